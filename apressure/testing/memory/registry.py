"""Those that work on a queue in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from apressure.core.workers import Letter, letter_of, stored
from apressure.testing.memory.stored import StoredQueue


class MemoryRegistry:
    """The registrations of a queue; see `core.registration.Registry`.

    They are no steps: a service that tells what it does must not meet a failure that a test plans.
    """

    def __init__(self, queue: StoredQueue) -> None:
        self._queue = queue

    def beat(self, name: bytes, letter: bytes, record: bytes, lasts: float, on_answer: Callable[[Any], None]) -> None:
        now, workers = self._now, self._queue.workers
        asked = letter_of(workers.get(name, b""), 0) == Letter.ASKED
        for expired in [other for other, value in workers.items() if letter_of(value, now) is None]:
            del workers[expired]
        workers[name] = stored(now + int(lasts * 1000), now, Letter.ASKED if asked else letter, record)
        asyncio.get_running_loop().call_soon(on_answer, int(asked))

    def leave(self, name: bytes) -> None:
        self._queue.workers.pop(name, None)

    async def drain(self, worker_id: bytes) -> int:
        now, told = self._now, 0
        for name, value in self._queue.workers.items():
            if name.rpartition(b"/")[0] == worker_id and letter_of(value, now) in {Letter.WORKS, Letter.ASKED}:
                until, written, _, record = value.split(b" ", 3)
                self._queue.workers[name] = stored(int(until), int(written), Letter.ASKED, record)
                told += 1
        return told

    @property
    def _now(self) -> int:
        """Milliseconds since 1970."""
        return self._queue.records()[0]
