"""Reads dead letters, moves them back to the queue that they came from, and deletes them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final

from apressure import dead_letters
from apressure.core import reviving
from apressure.core.reviving import fitting
from apressure.core.searching import Read
from apressure.core.waiting import Wait
from apressure.dead_letters import DeadLetter
from apressure.exceptions import PressureError, QueueDoesNotExistError
from apressure.pressure.engine.batching import MAX_MESSAGES
from apressure.pressure.engine.steps import Access, Steps

_PAGE: Final = 1000
_REASON: Final = re.compile(rb"([0-9]{1,15}):([0-9]{1,9}):([0-9]{1,9}):(.*)", re.DOTALL)


async def letters(steps: Steps, limit: int | None, decode: Callable[[bytes], Any]) -> AsyncIterator[DeadLetter[Any]]:
    """Read dead letters, the oldest first; none where there is no such queue.

    Args:
        steps: The steps of the dead-letter queue.
        limit: How many at most; None for all.
        decode: Decodes a message.
    """
    passed = 0
    seen: set[str] = set()
    while limit is None or passed < limit:
        page = await read(steps, passed, _PAGE if limit is None else min(_PAGE, limit - passed), decode)
        for letter in page.letters:
            if letter.when is not None and letter.id in seen:  # another one with this content, whose reason is lost
                yield _letter(letter.raw, b"", decode)
            else:
                yield letter
            seen.add(letter.id)
        passed += page.looked
        if not page.looked:
            return


async def read(steps: Steps, passed: int, most: int, decode: Callable[[bytes], Any]) -> Read[Any]:
    """Read dead letters behind the `passed` oldest ones, in one step; none where there is no such queue."""
    try:
        raws, reasons, total = await steps.dead_letters(passed, most)
    except QueueDoesNotExistError:
        return Read([], 0, 0)
    found = [_letter(raw, reason, decode) for raw, reason in zip(raws, reasons, strict=True)]
    return Read(found, len(found), total)


def _letter(raw: bytes, reason: bytes, decode: Callable[[bytes], Any]) -> DeadLetter[Any]:
    """Return a dead letter. Its id is a digest of the message and, if it is known, the time when it was moved."""
    name = hashlib.sha1(raw, usedforsecurity=False).hexdigest()[:16]
    matched = _REASON.fullmatch(reason)
    if matched is None:
        return DeadLetter(name, raw, None, None, None, decode)
    time, attempts, attempt = map(int, matched.groups()[:3])
    error = dead_letters.decode(matched[4], attempt) if attempt else None
    return DeadLetter(f"{name}-{time:x}", raw, attempts, error, time / 1000, decode)


class Revival:
    """The oldest dead letters on their way back into the queue; see `core.reviving.Revival`.

    Args:
        queue: The queue.
        source: The dead-letter queue.
        most: How many at most; None for all.

    Attributes:
        moved: How many have been moved.
        more: Whether there are more to move.
    """

    not_found: Sequence[str] = ()
    done = "moved"

    def __init__(self, queue: Access, source: Access, most: int | None = None) -> None:
        self.moved = 0
        self.more = True
        self._most = most
        self._queue = queue
        self._source = source
        self._waiting = queue  # or the source: each of the two queues waits for what is its own
        self._series = queue.series()

    async def go_on(self, timeout: float | None) -> None:
        """Make a step, waiting for room or for one of the two roles."""
        waiting = self._waiting
        try:
            await waiting.waits.until(self.step, timeout, waiting.name)
        except PressureError as error:
            if self.moved:
                error.add_note(f"{self.moved} dead letters were {self.done} before")
            raise

    async def step(self) -> Wait | None:
        """Move the next ones. A Wait is what the queue waits for that `go_on` looks at; otherwise it looks again."""
        most, chosen = self._next_step()
        queue, source = self._queue, self._source
        answer = await self._send(most, chosen)
        if isinstance(answer, Wait):
            before, self._waiting = self._waiting, source if answer.reason == "consumer" else queue
            return answer if self._waiting is before else None
        self.moved += answer[0]
        self._note(*answer)
        return None

    async def _send(self, most: int, chosen: list[bytes]) -> list[int] | Wait:
        """Send a step."""
        return await self._queue.requeue(self._series, self._source, most, chosen)

    def _next_step(self) -> tuple[int, list[bytes]]:
        """Return how many to move at most, and the chosen ones as the step takes them, or none."""
        return MAX_MESSAGES if self._most is None else min(MAX_MESSAGES, self._most - self.moved), []

    def _note(self, count: int, left: int) -> None:  # noqa: ARG002
        """Note what a step has moved, and how many dead letters are left."""
        # Messages that become dead letters meanwhile are left out: a message could go round for ever.
        rest = self.moved + left
        self._most = rest if self._most is None else min(self._most, rest)
        self.more = self.moved < self._most


class Chosen(Revival):
    """Some that were chosen by their ids, also if several with the same content share one."""

    def __init__(self, queue: Access, source: Access, chosen: list[DeadLetter[Any]], ids: Iterable[str]) -> None:
        super().__init__(queue, source)
        self._left = chosen
        self._ids = ids
        self._missing = {*ids}.difference(letter.id for letter in chosen)
        self.more = bool(chosen)

    @property
    def not_found(self) -> list[str]:  # type: ignore[override]
        """The ids that no dead letter has, also since somebody has taken it away before it could be moved."""
        return [letter_id for letter_id in self._ids if letter_id in self._missing]

    def _next_step(self) -> tuple[int, list[bytes]]:
        chosen, arguments = self._left[: fitting(letter.raw for letter in self._left)], []
        for letter in chosen:
            time = letter.id.partition("-")[2]
            arguments += [letter.raw, b"%d" % int(time, 16) if time else b""]
        return len(chosen), arguments

    def _note(self, count: int, left: int) -> None:  # noqa: ARG002
        if not count:
            self._missing.add(self._left[0].id)
        del self._left[: max(1, count)]
        self.more = bool(self._left)


class Discarded(Chosen):
    """Some that were chosen, to be deleted: only the dead-letter queue matters."""

    done = "deleted"

    async def _send(self, most: int, chosen: list[bytes]) -> list[int] | Wait:  # noqa: ARG002
        try:
            return await self._queue.discard(self._series, chosen)
        except QueueDoesNotExistError:
            return [0, 0]  # they are gone with it


async def revival(queue: Access, source: Access, wanted: reviving.Chosen) -> Revival:
    """Return what moves or deletes the oldest dead letters, or those that were chosen."""
    if wanted.ids is None:
        return Revival(queue, source, wanted.most)
    ids, found = {*wanted.ids}, [letter for letter in wanted.letters if letter.id not in wanted.ids]
    unique = all("-" in letter_id for letter_id in ids)
    if ids:
        missing = len(ids)
        async for letter in letters(source, None, bytes):
            if letter.id in ids:
                found.append(letter)
                missing -= 1
                if unique and not missing:
                    break
    if wanted.discard:
        return Discarded(source, source, found, wanted.names)
    return Chosen(queue, source, found, wanted.names)
