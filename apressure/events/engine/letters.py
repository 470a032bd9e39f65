"""Dead letters: reads them, moves them back into the queue, and deletes them."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, TypeVar

from apressure import dead_letters
from apressure.core.added_letters import Added
from apressure.core.letters import Letters
from apressure.core.packed import unpack
from apressure.core.reviving import Chosen, Reviving, fitting
from apressure.core.searching import Read
from apressure.core.waiting import FULL, Wait
from apressure.dead_letters import DeadLetter
from apressure.events.engine.steps import MAX_EVENTS
from apressure.items import Items

T = TypeVar("T")

_PAGE: Final = 1000
_REASON: Final = re.compile(rb"([0-9]{1,15}):([0-9]{1,9}):([0-9]{1,9}):(.*)", re.DOTALL)


def read(letter: bytes, decode: Callable[[bytes], Any]) -> DeadLetter[Any]:
    """Return a dead letter from how the server keeps it; see `read_letter` in `lua/prelude.lua`.

    One that another program wrote cannot be moved. It is shown as it is, under a name that no event has.
    """
    key, begin = unpack(letter, 1) if letter[:1] == b"#" else (b"", 0)
    explained = letter[begin : begin + 1] == b"+"
    reason: bytes | None = b""
    event_id, begin = unpack(letter, begin + explained) if key is not None else (None, 0)
    if explained and event_id is not None:
        reason, begin = unpack(letter, begin)
    if event_id is None or reason is None:
        name = hashlib.sha1(letter, usedforsecurity=False).hexdigest()[:16]
        return DeadLetter(f"damaged-{name}", letter, None, None, None, decode)
    shown, contents = event_id.decode(errors="surrogateescape"), letter[begin:]
    matched = _REASON.fullmatch(reason)
    if matched is None:
        return DeadLetter(shown, contents, None, None, None, decode, letter[:begin])
    time, attempts, attempt = map(int, matched.groups()[:3])
    error = dead_letters.decode(matched[4], attempt) if attempt or matched[4] else None
    return DeadLetter(shown, contents, attempts, error, time / 1000, decode, letter[:begin])


async def letters(steps: Any, limit: int | None) -> AsyncIterator[bytes]:
    """Read dead letters as the server keeps them, the oldest first; at most `limit`."""
    passed = 0
    while limit is None or passed < limit:
        page = await steps.dead_letters(passed, _PAGE if limit is None else min(_PAGE, limit - passed))
        for letter in page:
            yield letter
        passed += len(page)
        if not page:
            return


class Revived(Reviving):
    """Dead letters on their way back to the end of their queue, or to be deleted.

    Args:
        steps, expected, present, most: As for `Reviving`.
        take_room: Takes what this client was told of room: the next step finds out.
    """

    def __init__(
        self, steps: Any, take_room: Callable[[], object], expected: bool, present: int, most: int | None
    ) -> None:
        super().__init__(steps, expected, present, most)
        self._take_room = take_room
        self._discard = False

    async def choose(self, chosen: Chosen) -> None:
        """Move or delete those instead that were chosen. If several have the same id, it is the oldest one."""
        missing = chosen.sought
        self._chosen = [(letter.id, letter.kept) for letter in chosen.letters]
        self._discard = chosen.discard
        async for letter in letters(self._steps, self._left):
            if not missing:
                break
            name = read(letter, bytes).id
            if name in missing:
                del missing[name]
                self._chosen.append((name, letter))
        self._left, self.not_found = 0, list(missing)

    async def step(self) -> Wait | None:
        """Move or delete the next ones. Without room, none moves."""
        chosen = self._chosen[: fitting(letter for _, letter in self._chosen)]
        letters = [letter for _, letter in chosen]
        if self._discard:
            outcomes = await self._steps.discard(letters)
        else:
            self._take_room()
            outcomes = await self._steps.requeue(len(chosen) or min(self._wanted, MAX_EVENTS), letters, self._expected)
        self.moved += outcomes.count(b"m")
        self.not_found += [name for (name, _), outcome in zip(chosen, outcomes, strict=False) if outcome == ord("0")]
        if chosen:
            del self._chosen[: len(outcomes)]
        else:
            self._left -= len(outcomes)
        return None if outcomes else FULL


class EventLetters(Letters[T]):
    """What an `EventQueue` does about dead letters, by the steps of its driver."""

    _driver: Any
    _items: Items[T]

    @contextlib.asynccontextmanager
    async def _revival(self, chosen: Chosen) -> AsyncIterator[Revived]:
        present = (await self._existing()).dead
        revived = Revived(self._driver.steps, self._driver.waits.take_room, self._expected, present, chosen.most)
        if chosen.ids is not None:
            await revived.choose(chosen)
        yield revived

    async def _letters(self, limit: int | None, source: str | None) -> list[DeadLetter[T]]:
        return [read(letter, self._items.decode) async for letter in letters(self._driver.steps, limit)]

    async def _bury(self, letters: Sequence[Added]) -> None:
        await self._driver.steps.bury(letters, self._expected)

    async def _letters_at(self, passed: int, most: int, source: str | None) -> Read[T]:
        total = (await self._existing()).dead
        page = await self._driver.steps.dead_letters(passed, most)
        return Read([read(letter, self._items.decode) for letter in page], len(page), total)
