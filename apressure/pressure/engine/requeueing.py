"""Reads dead letters, and moves them back to the queue that they came from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final

from apressure import dead_letters
from apressure.core.letters import fitting
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
        try:
            page = await steps.dead_letters(passed, _PAGE if limit is None else min(_PAGE, limit - passed))
        except QueueDoesNotExistError:
            return
        for raw, reason in zip(*page, strict=True):
            letter = _letter(raw, reason, decode)
            if letter.when is not None and letter.id in seen:
                letter = _letter(raw, b"", decode)  # another one with this content, whose reason is lost
            seen.add(letter.id)
            yield letter
        passed += len(page[0])
        if not page[0]:
            return


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
    """The oldest dead letters on their way back into the queue; see `core.letters.Revival`.

    Args:
        queue: The queue.
        source: The dead-letter queue.
        most: How many at most; None for all.

    Attributes:
        moved: How many have been moved.
        more: Whether there are more to move.
    """

    not_found: Sequence[str] = ()

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
                error.add_note(f"{self.moved} dead letters were moved before")
            raise

    async def step(self) -> Wait | None:
        """Move the next ones. A Wait is what the queue waits for that `go_on` looks at; otherwise it looks again."""
        most, chosen = self._next_step()
        queue, source = self._queue, self._source
        answer = await queue.requeue(self._series, source, most, chosen)
        if isinstance(answer, Wait):
            before, self._waiting = self._waiting, source if answer.reason == "consumer" else queue
            return answer if self._waiting is before else None
        self.moved += answer[0]
        self._note(*answer)
        return None

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


async def revival(queue: Access, source: Access, most: int | None, ids: Iterable[str] | None) -> Revival:
    """Return what moves the oldest dead letters, or those that have these ids."""
    if ids is None:
        return Revival(queue, source, most)
    wanted = {*ids}
    chosen: list[DeadLetter[Any]] = []
    unique = all("-" in letter_id for letter_id in wanted)
    if wanted:
        async for letter in letters(source, None, bytes):
            if letter.id in wanted:
                chosen.append(letter)
                if unique and len(chosen) == len(wanted):
                    break
    return Chosen(queue, source, chosen, ids)
