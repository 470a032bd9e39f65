"""Dead letters: reads them, and moves them back into the queue."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from apressure import dead_letters
from apressure.core.waiting import FULL, Wait
from apressure.dead_letters import DeadLetter
from apressure.events.engine.steps import MAX_EVENTS

_PAGE: Final = 1000
_CHUNK_BYTES: Final = 1 << 20
_MOST_CHOSEN: Final = 500
"""Dead letters that are chosen in one step: the server looks for each one in the whole list."""

_LENGTH: Final = re.compile(rb"([0-9]{1,10}):")
_REASON: Final = re.compile(rb"([0-9]{1,15}):([0-9]{1,9}):([0-9]{1,9}):(.*)", re.DOTALL)


class Steps(Protocol):
    """What reads dead letters, and moves them."""

    async def dead_letters(self, passed: int, most: int) -> list[bytes]:
        """Return up to `most` dead letters behind the `passed` oldest ones, as the server keeps them."""

    async def requeue(self, most: int, chosen: Sequence[bytes], expected: bool) -> bytes:
        """Move dead letters back; see `EventSteps.requeue`."""


def read(letter: bytes, decode: Callable[[bytes], Any]) -> DeadLetter[Any]:
    """Return a dead letter from how the server keeps it; see `read_letter` in `lua/prelude.lua`.

    One that another program wrote cannot be moved. It is shown as it is, under a name that no event has.
    """
    explained = letter[:1] == b"+"
    reason: bytes | None = b""
    event_id, begin = _unpack(letter, int(explained))
    if explained and event_id is not None:
        reason, begin = _unpack(letter, begin)
    if event_id is None or reason is None:
        name = hashlib.sha1(letter, usedforsecurity=False).hexdigest()[:16]
        return DeadLetter(f"damaged-{name}", letter, None, None, None, decode)
    shown, contents = event_id.decode(errors="surrogateescape"), letter[begin:]
    matched = _REASON.fullmatch(reason)
    if matched is None:
        return DeadLetter(shown, contents, None, None, None, decode)
    time, attempts, attempt = map(int, matched.groups()[:3])
    error = dead_letters.decode(matched[4], attempt) if attempt or matched[4] else None
    return DeadLetter(shown, contents, attempts, error, time / 1000, decode)


def _unpack(packed: bytes, begin: int) -> tuple[bytes | None, int]:
    """Return the text that begins there behind its length, and the place behind it."""
    length = _LENGTH.match(packed, begin)
    if length is None or (end := length.end() + int(length[1])) > len(packed):
        return None, begin
    return packed[length.end() : end], end


async def letters(steps: Steps, limit: int | None) -> AsyncIterator[bytes]:
    """Read dead letters as the server keeps them, the oldest first; at most `limit`."""
    passed = 0
    while limit is None or passed < limit:
        page = await steps.dead_letters(passed, _PAGE if limit is None else min(_PAGE, limit - passed))
        for letter in page:
            yield letter
        passed += len(page)
        if not page:
            return


class Revived:
    """Dead letters on their way back to the end of their queue.

    Args:
        steps: Moves them.
        take_room: Takes what this client was told of room: the next step finds out.
        expected: The queue must have been created.
        present: Look at so many, the oldest first,
        most: and move at most so many of them; None for no limit.

    Attributes:
        moved: How many have been moved.
        not_found: The ids that no dead letter has (any more).
    """

    def __init__(
        self, steps: Steps, take_room: Callable[[], object], expected: bool, present: int, most: int | None
    ) -> None:
        self.moved = 0
        self.not_found: list[str] = []
        self._steps = steps
        self._take_room = take_room
        self._expected = expected
        self._left = present
        self._most = most
        self._chosen: list[tuple[str, bytes]] = []

    async def choose(self, ids: Iterable[str]) -> None:
        """Move those with these ids instead. If several have the same id, it is the oldest one."""
        missing = dict.fromkeys(ids)
        async for letter in letters(self._steps, self._left):
            if not missing:
                break
            name = read(letter, bytes).id
            if name in missing:
                del missing[name]
                self._chosen.append((name, letter))
        self._left, self.not_found = 0, list(missing)

    @property
    def more(self) -> bool:
        """Whether there are more to move."""
        return self._wanted > 0 or bool(self._chosen)

    @property
    def _wanted(self) -> int:
        """How many of the oldest ones may still be moved."""
        return self._left if self._most is None else min(self._left, self._most - self.moved)

    async def step(self) -> Wait | None:
        """Move the next ones. Without room, none moves."""
        self._take_room()
        chosen = self._next_chosen()
        most = len(chosen) or min(self._wanted, MAX_EVENTS)
        outcomes = await self._steps.requeue(most, [letter for _, letter in chosen], self._expected)
        self.moved += outcomes.count(b"m")
        self.not_found += [name for (name, _), outcome in zip(chosen, outcomes, strict=False) if outcome == ord("0")]
        if chosen:
            del self._chosen[: len(outcomes)]
        else:
            self._left -= len(outcomes)
        return None if outcomes else FULL

    def _next_chosen(self) -> list[tuple[str, bytes]]:
        """Return the chosen ones that the next step looks at."""
        size = 0
        for number, (_, letter) in enumerate(self._chosen[:_MOST_CHOSEN]):
            size += len(letter)
            if number and size > _CHUNK_BYTES:
                return self._chosen[:number]
        return self._chosen[:_MOST_CHOSEN]
