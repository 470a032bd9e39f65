"""Those that work on a queue in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from apressure.core import registrations
from apressure.core.registration import Wish
from apressure.testing.memory.stored import StoredQueue


class MemoryRegistry:
    """The registrations of a queue; see `core.registration.Registry`.

    They are no steps: a service that tells what it does must not meet a failure that a test plans.
    """

    def __init__(self, queue: StoredQueue) -> None:
        self._queue = queue

    def beat(self, name: bytes, letter: bytes, record: bytes, lasts: float, on_answer: Callable[[Any], None]) -> None:
        answer = registrations.beat(self._queue.workers, self._now, name, letter, record, int(lasts * 1000))
        asyncio.get_running_loop().call_soon(on_answer, answer)

    def leave(self, name: bytes) -> None:
        registrations.leave(self._queue.workers, self._now, name)

    async def ask(self, worker_id: bytes, what: Wish) -> int:
        return registrations.ask(self._queue.workers, self._now, worker_id, what)

    @property
    def _now(self) -> int:
        """Milliseconds since 1970."""
        return self._queue.records()[0]
