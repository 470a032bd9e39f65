"""Dead letters that a program adds: those of another queue, for example."""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple, Self

from apressure import validation
from apressure.dead_letters import DeadLetter, encoded

_MOST_ATTEMPTS: Final = 999_999_999
_LATEST: Final = 10**10 - 1
"""Seconds since 1970. It is in the year 2286: displays can show it, and a file of FileQueue has digits for it."""

_LONGEST_ID: Final = 1024
"""Bytes, as of the ids of events."""


class Added(NamedTuple):
    """A dead letter that a program adds.

    Attributes:
        id: Its id in the queue that it comes from.
        raw: The message.
        when: When it became a dead letter, in milliseconds since 1970.
        attempts: How often it was delivered; None where nothing is known but the message.
        attempt: The attempt that ended with the error; 0 for none.
        error: The error, as `dead_letters.encode` returns it; empty for none.
    """

    id: str
    raw: bytes
    when: int
    attempts: int | None
    attempt: int
    error: bytes

    @classmethod
    def of(cls, letter: DeadLetter[Any]) -> Self:
        """Return what is added for a dead letter of any queue, checked."""
        if not isinstance(letter, DeadLetter):
            raise TypeError(f"add_dead_letters takes DeadLetters, not {type(letter).__name__}")
        validation.encoded(letter.id, "the id of a dead letter", _LONGEST_ID)
        if not isinstance(letter.raw, bytes):
            raise TypeError(f"the raw of a dead letter must be bytes, not {type(letter.raw).__name__}")
        validation.optional(validation.whole, letter.attempts, "attempts of a dead letter", 0, _MOST_ATTEMPTS)
        when = time.time() if letter.when is None else letter.when
        if not 0 <= when <= _LATEST:
            raise ValueError(f"when of a dead letter must be in seconds since 1970, up to {_LATEST}, not {when}")
        attempt = 0 if letter.error is None else letter.error.attempt
        validation.whole(attempt, "attempt of a failure", 0, _MOST_ATTEMPTS)
        error = b"" if letter.error is None else encoded(letter.error)
        return cls(letter.id, letter.raw, round(when * 1000), letter.attempts, attempt, error)

    @property
    def reason(self) -> bytes:
        """What the scripts of AsyncQueue and EventQueue keep of it; empty where nothing is known."""
        if self.attempts is None:
            return b""
        return b"%d:%d:%d:%s" % (self.when, self.attempts, self.attempt, self.error)
