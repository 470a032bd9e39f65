"""Those that work on a queue in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from apressure.core.registration import DRAIN, STACK, Wish
from apressure.core.workers import Letter, letter_of, stored
from apressure.testing.memory.stored import StoredQueue

_STACK_WANTED: Final = {
    Letter.WORKS: Letter.SHOWS, Letter.SHOWS: Letter.SHOWS, Letter.ASKED: Letter.ASKED_SHOWS,
    Letter.ASKED_SHOWS: Letter.ASKED_SHOWS,
}  # fmt: skip
_TO_DRAIN: Final = {
    Letter.WORKS: Letter.ASKED, Letter.ASKED: Letter.ASKED, Letter.SHOWS: Letter.ASKED_SHOWS,
    Letter.ASKED_SHOWS: Letter.ASKED_SHOWS,
}  # fmt: skip
"""What letters become."""


class MemoryRegistry:
    """The registrations of a queue; see `core.registration.Registry`.

    They are no steps: a service that tells what it does must not meet a failure that a test plans.
    """

    def __init__(self, queue: StoredQueue) -> None:
        self._queue = queue

    def beat(self, name: bytes, letter: bytes, record: bytes, lasts: float, on_answer: Callable[[Any], None]) -> None:
        now, workers = self._now, self._queue.workers
        before = letter_of(workers.get(name, b""), 0)
        drains, shows = before in {Letter.ASKED, Letter.ASKED_SHOWS}, before in {Letter.SHOWS, Letter.ASKED_SHOWS}
        for expired in [other for other, value in workers.items() if letter_of(value, now) is None]:
            del workers[expired]
        workers[name] = stored(now + int(lasts * 1000), now, Letter.ASKED if drains else letter, record)
        asyncio.get_running_loop().call_soon(on_answer, DRAIN * drains + STACK * shows)

    def leave(self, name: bytes) -> None:
        self._queue.workers.pop(name, None)

    async def ask(self, worker_id: bytes, what: Wish) -> int:
        becomes = _STACK_WANTED if what == "stack" else _TO_DRAIN
        now, told = self._now, 0
        for name, value in self._queue.workers.items():
            letter = becomes.get(letter_of(value, now) or b"")
            if name.rpartition(b"/")[0] == worker_id and letter is not None:
                until, written, _, record = value.split(b" ", 3)
                self._queue.workers[name] = stored(int(until), int(written), letter, record)
                told += 1
        return told

    @property
    def _now(self) -> int:
        """Milliseconds since 1970."""
        return self._queue.records()[0]
