"""Dead letters: reads them, and moves them back into the queue."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from apressure import dead_letters
from apressure.concurrency.settle import note_accepted
from apressure.core.waiting import FULL, Wait
from apressure.dead_letters import DeadLetter
from apressure.events.engine.steps import MAX_EVENTS
from apressure.exceptions import PressureError

A = TypeVar("A")

_PAGE: Final = 1000
_CHUNK_BYTES: Final = 1 << 20
_MOST_CHOSEN: Final = 500
"""Dead letters that are chosen in one step: the server looks for each one in the whole list."""

_LENGTH: Final = re.compile(rb"([0-9]{1,10}):")
_REASON: Final = re.compile(rb"([0-9]{1,15}):([0-9]{1,9}):([0-9]{1,9}):(.*)", re.DOTALL)


class Reads(Protocol):
    """What reads dead letters."""

    async def dead_letters(self, passed: int, most: int) -> list[bytes]:
        """Return up to `most` dead letters behind the `passed` oldest ones, as the server keeps them."""


class Moves(Protocol):
    """What moves dead letters."""

    @property
    def name(self) -> str:
        """The queue's name."""

    async def requeue(self, most: int, chosen: Sequence[bytes], expected: bool) -> bytes:
        """Move dead letters back; see `EventSteps.requeue`."""


class WaitsForRoom(Protocol):
    """What waits for room."""

    def take_room(self) -> None:
        """Take what was told of room: the next step finds out."""

    async def until(self, attempt: Callable[[], Awaitable[A | Wait]], timeout: float | None, name: str) -> A:
        """Try a step, wait while it says so, try again."""


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
    error = dead_letters.decode(matched[4], attempt) if attempt else None
    return DeadLetter(shown, contents, attempts, error, time / 1000, decode)


def _unpack(packed: bytes, begin: int) -> tuple[bytes | None, int]:
    """Return the text that begins there behind its length, and the place behind it."""
    length = _LENGTH.match(packed, begin)
    if length is None or (end := length.end() + int(length[1])) > len(packed):
        return None, begin
    return packed[length.end() : end], end


async def letters(steps: Reads, limit: int | None) -> AsyncIterator[bytes]:
    """Read dead letters as the server keeps them, the oldest first; at most `limit`."""
    passed = 0
    while limit is None or passed < limit:
        page = await steps.dead_letters(passed, _PAGE if limit is None else min(_PAGE, limit - passed))
        for letter in page:
            yield letter
        passed += len(page)
        if not page:
            return


class Choice(Protocol):
    """Which dead letters are moved.

    Attributes:
        moved: How many have been moved.
    """

    moved: int

    def next_step(self) -> tuple[int, Sequence[bytes]]:
        """Return how many the next step looks at, 0 for the end, and the chosen ones, or none."""

    def note(self, outcomes: bytes) -> None:
        """Note what a step has done, as `EventSteps.requeue` returns it."""


class Oldest:
    """The oldest ones, of those that are there when it begins.

    Args:
        present: How many these are.
        most: How many to move at most; None for all.

    Attributes:
        moved: How many have been moved.
    """

    def __init__(self, present: int, most: int | None) -> None:
        self.moved = 0
        self._left = present
        self._most = most

    def next_step(self) -> tuple[int, Sequence[bytes]]:
        wanted = self._left if self._most is None else min(self._left, self._most - self.moved)
        return min(wanted, MAX_EVENTS), ()

    def note(self, outcomes: bytes) -> None:
        self.moved += outcomes.count(b"m")
        self._left -= len(outcomes)


class Chosen:
    """Some that were chosen.

    Args:
        found: The dead letters by their ids.
        missing: The ids that no dead letter has.

    Attributes:
        moved: How many have been moved.
        not_found: The ids that no dead letter has (any more).
    """

    def __init__(self, found: dict[str, bytes], missing: Iterable[str]) -> None:
        self.moved = 0
        self.not_found = list(missing)
        self._left = list(found.items())

    def next_step(self) -> tuple[int, Sequence[bytes]]:
        chosen: list[bytes] = []
        size = 0
        for _, letter in self._left[:_MOST_CHOSEN]:
            size += len(letter)
            if chosen and size > _CHUNK_BYTES:
                break
            chosen.append(letter)
        return len(chosen), chosen

    def note(self, outcomes: bytes) -> None:
        self.moved += outcomes.count(b"m")
        self.not_found += [
            name for (name, _), outcome in zip(self._left, outcomes, strict=False) if outcome == ord("0")
        ]
        del self._left[: len(outcomes)]


async def choose(steps: Reads, ids: Iterable[str], present: int) -> Chosen:
    """Find the dead letters that have these ids, among the oldest `present` ones; the oldest one of each id."""
    missing = dict.fromkeys(ids)
    found: dict[str, bytes] = {}
    async for letter in letters(steps, present):
        if not missing:
            break
        name = read(letter, bytes).id
        if name in missing:
            del missing[name]
            found[name] = letter
    return Chosen(found, missing)


async def requeue(steps: Moves, waits: WaitsForRoom, choice: Choice, timeout: float | None, expected: bool) -> int:
    """Move dead letters back to the end of the queue, waiting for room. Returns how many were moved.

    `expected`: the queue must have been created.
    """
    loop = asyncio.get_running_loop()
    until = None if timeout is None else loop.time() + timeout

    async def attempt() -> int | Wait:
        waits.take_room()
        most, chosen = choice.next_step()
        outcomes = await steps.requeue(most, chosen, expected)
        choice.note(outcomes)
        return len(outcomes) or FULL

    try:
        while choice.next_step()[0] > 0:
            remaining = None if until is None else max(0.0, until - loop.time())
            await waits.until(attempt, remaining, steps.name)
    except asyncio.CancelledError:
        note_accepted(choice.moved)
        raise
    except PressureError as error:
        error.accepted = choice.moved
        raise
    return choice.moved
