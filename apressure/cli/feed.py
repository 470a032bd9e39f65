"""Putting what comes in, no faster than the queue takes it, and knowing at any moment what is in and what is not.

`put_many` alone would do, but when it is cancelled nobody can say how much of it was put. So each call here is one
step that does not wait, which answers with what it accepted; only a single item waits for room; and a wait is ended
by `unblock`, which answers too, rather than by cancelling it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine, Iterable
from typing import Any, Final, TypeVar

from apressure import AsyncQueue
from apressure.cli.framing import Decoder
from apressure.cli.meter import Meter
from apressure.cli.streams import Input
from apressure.exceptions import OperationUnblockedError, QueueFullError, QueueInUseError

_T = TypeVar("_T")

_BATCH: Final = 1000
"""Items in one put: the library sends these in one step."""

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
            batch = [item for item, _ in zip(self._unput, range(_BATCH), strict=False)]
            try:
                self._count(await self._certain(self._queue.put_many(batch, timeout=0, force=self._force)))
            except (QueueFullError, QueueInUseError) as error:
                self._count(error.accepted)
                if self._unput:
                    first = self._unput[0]
                    await self._certain(self._queue.put(first, timeout=self._timeout, force=self._force))
                    self._count(1)

    def _count(self, accepted: int) -> None:
        self._meter.add(accepted, sum(len(self._unput.popleft()) for _ in range(accepted)))

    async def _certain(self, operation: Coroutine[Any, Any, _T]) -> _T:
        """Return what the operation returns; when cancelled, end it so that it says whether it was carried out."""
        task = asyncio.ensure_future(operation)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # Again and again, since unblocking reaches what is parked, and this may be between two attempts.
            while not task.done():
                await self._queue.unblock()
                await asyncio.wait({task}, timeout=0.05)
            with contextlib.suppress(OperationUnblockedError):
                try:
                    outcome = await task
                    self._count(outcome if isinstance(outcome, int) else 1)
                except (QueueFullError, QueueInUseError) as error:
                    self._count(error.accepted)
            raise
