"""Putting what comes in, no faster than the queue takes it, and knowing at any moment what is in and what is not.

`put_many` alone would do, but when it is cancelled nobody can say how much of it was put. So each call here is one
step that does not wait, which answers with what it accepted; only a single item waits for room; and a wait is ended
by `unblock`, which answers too, rather than by cancelling it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Coroutine, Iterable
from typing import Any, Final

from apressure import AsyncQueue
from apressure.cli.framing import Decoder
from apressure.cli.meter import Meter
from apressure.cli.streams import Input
from apressure.exceptions import DurabilityError, PressureError, QueueFullError, QueueInUseError

_BATCH: Final = 1000
"""Items in one put at most: the library sends these in one step."""

_SMALLEST: Final = 512
_LARGEST: Final = 64 * 1024
"""Bytes in one read."""


class Feeder:
    """Puts items into a queue and keeps count.

    Args:
        queue: Where they go.
        meter: Counts what was put.
        timeout: Seconds to wait for room, or for another producer, each time; None for ever.
        force: Put whatever the bound says.
    """

    def __init__(
        self, queue: AsyncQueue[bytes], meter: Meter, *, timeout: float | None = None, force: bool = False
    ) -> None:
        self._queue = queue
        self._meter = meter
        self._timeout = timeout
        self._force = force
        self._unput: deque[bytes] = deque()
        self._decoder: Decoder | None = None
        self._window = _BATCH
        self.unconfirmed = 0
        """How many of those that were put too few servers have confirmed."""

    @property
    def unput(self) -> int:
        """How many items were read and are not in the queue, the beginning of one included."""
        return len(self._unput) + bool(self._decoder and self._decoder.pending)

    async def put_stream(self, source: Input, decoder: Decoder) -> None:
        """Put what `source` has until it ends, each item as soon as it is there."""
        self._decoder = decoder
        bound = 0 if self._force else await self._queue.bound()
        size = _SMALLEST if bound else _LARGEST
        while data := await source.read(size):
            items = decoder.feed(data)
            await self.put(items)
            if bound and items:
                # Read ahead about as many items as the queue takes: a stream of numbers into a queue of ten should
                # not be ten thousand numbers ahead of whoever waits for the eleventh.
                size = min(_LARGEST, max(_SMALLEST, bound * (len(data) // len(items) + 1)))
        await self.put(decoder.finish())

    async def put(self, items: Iterable[bytes]) -> None:
        """Put some items in order, waiting for room."""
        self._unput.extend(items)
        while self._unput:
            batch = list(itertools.islice(self._unput, self._window))
            before = self._meter.messages
            try:
                await self._step(self._queue.put_many(batch, timeout=0, force=self._force))
                self._window = min(_BATCH, 2 * self._window)
            except (QueueFullError, QueueInUseError):
                # A queue that is nearly full takes few: no use in sending it a thousand each time.
                self._window = max(1, 2 * (self._meter.messages - before))
                if self._unput:
                    await self._step(self._queue.put(self._unput[0], timeout=self._timeout, force=self._force))

    async def _step(self, operation: Coroutine[Any, Any, int | None]) -> None:
        """Count what the operation puts; when cancelled, end it in a way that says what it has put."""
        task = asyncio.ensure_future(operation)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            # Again and again, since unblocking reaches what waits, and this may be between two attempts.
            while not task.done():
                await self._queue.unblock()
                await asyncio.wait({task}, timeout=0.05)
            raise
        finally:
            if task.done() and not task.cancelled():
                self._count(task)

    def _count(self, task: asyncio.Task[int | None]) -> None:
        error = task.exception()
        # An error tells how many were put before, if any; `put` returns nothing for its one item.
        accepted = error.accepted if isinstance(error, PressureError) else 0
        if error is None:
            accepted = task.result() or 1
        elif isinstance(error, DurabilityError):  # they are in the queue; a second time would double them
            self.unconfirmed = int(error.answer)
            accepted += self.unconfirmed
        self._meter.add(accepted, sum(len(self._unput.popleft()) for _ in range(accepted)))
