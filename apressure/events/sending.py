"""How a step is sent: its script, and the number by which the server recognizes a repeat."""

from __future__ import annotations

import functools
import secrets
from typing import Any, Final

from apressure.connection.wire.script import Call, Script
from apressure.events.keys import EventKeys


@functools.cache
def script(name: str) -> Script:
    """Return the script of that name, read once."""
    return Script("apressure.events", name)


def changed(answer: Any) -> bool:
    """Whether a step changed anything that must be durable, by its answer."""
    match answer[:1] if isinstance(answer, list) else answer:
        case [b"pushed"] | [b"settled"] | [b"moved"]:
            return bool(answer[1].strip(b"0d:"))
        case [b"events"]:
            return bool(answer[1]) or answer[4] > 0
        case [b"created"] | [b"done"] | [b"flushed"]:
            return True
        case _:
            return isinstance(answer, int) and answer > 0


NOT_DURABLE: Final = frozenset({"extend", "heal", "register", "resign", "peek", "status"})
"""Steps that `durability=` does not apply to: they change nothing, or nothing that cannot be done again."""


class Series:
    """A series of numbered steps, of which at most one is unanswered at a time.

    The server keeps the result of the latest step under a key of the series, and answers a repeat with it.

    Attributes:
        name: The series' name, which no other has.
        number: The number of the latest step.
    """

    def __init__(self, keys: EventKeys) -> None:
        self.name = secrets.token_hex(8)
        self.keys = keys.for_script(self.name)
        self.number = 0
        self._calls: dict[str, Call] = {}

    def call(self, name: str) -> Call:
        """Return the call of a script with this series' keys."""
        if name not in self._calls:
            self._calls[name] = script(name).on(self.keys)
        return self._calls[name]

    def next(self) -> int:
        """Return the number of the step that is about to be sent."""
        self.number += 1
        return self.number

    @property
    def token(self) -> bytes:
        """The token of the claims that the latest step makes."""
        return f"{self.name}-{self.number}".encode()
