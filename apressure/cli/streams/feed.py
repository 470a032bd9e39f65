"""Puts items into a queue as fast as the queue takes them, and counts exactly which have been put.

A cancelled `put_many` does not say how many items it has put. So each call here is one step that does not wait and
returns how many items it put. Only a single item waits for room, and `unblock` ends that wait instead of a
cancellation, so the wait has a result, too.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from apressure.cli.exits import UsageError
from apressure.cli.streams.framing import Decoder
from apressure.cli.streams.meter import Meter
from apressure.cli.streams.pipes import Input
from apressure.exceptions import DurabilityError, PressureError, QueueFullError, QueueInUseError, ServerTooOldError

_BATCH: Final = 1000
"""The most items in one put: the library sends them in one step."""

_SMALLEST: Final = 512
_LARGEST: Final = 64 * 1024
"""The fewest and the most bytes in one read."""


class Feeder:
    """Puts items into a queue and counts them.

    Args:
        queue: The queue to put items into, of any kind.
        meter: Counts the items that were put.
        convert: Makes a message of an item.
        timeout: Seconds to wait for room, or for another producer, each time; None to wait for ever.
        on_id: Is called with the id of each item; then each is put in a step of its own.
        **options: Further arguments of `put` and `put_many`, such as `delay`.
    """

    def __init__(
        self,
        queue: Any,
        meter: Meter,
        convert: Callable[[bytes], bytes],
        *,
        timeout: float | None = None,
        on_id: Callable[[str], None] | None = None,
        **options: Any,
    ) -> None:
        self._queue = queue
        self._meter = meter
        self._convert = convert
        self._put = functools.partial(queue.put, timeout=timeout, **options)
        self._put_many = functools.partial(queue.put_many, timeout=0, **options)
        self._forced = bool(options.get("force"))
        self._on_id = on_id
        self._singly = on_id is not None or not options.keys().isdisjoint(("dedup_id", "id"))
        self._unput: deque[bytes] = deque()
        self._decoder: Decoder | None = None
        self._window = _BATCH
        self.unconfirmed = 0
        """How many of the items that were put are not confirmed by enough replicas, or by the disk."""

    @property
    def unput(self) -> int:
        """How many items were read and are not in the queue. An incomplete item counts."""
        return len(self._unput) + bool(self._decoder and self._decoder.pending)

    async def put_stream(self, source: Input, decoder: Decoder) -> None:
        """Put the items of `source` until it ends, each one as soon as it is complete."""
        self._decoder = decoder
        bound = 0 if self._forced else await self._bound()
        size = _SMALLEST if bound else _LARGEST
        while data := await source.read(size):
            items = decoder.feed(data)
            await self.put(items)
            if bound and items:
                # Read ahead about as many items as the queue holds: the writer of a stream into a queue of ten should
                # not be ten thousand items ahead of the consumer.
                size = min(_LARGEST, max(_SMALLEST, bound * (len(data) // len(items) + 1)))
        await self.put(decoder.finish())

    async def _bound(self) -> int:
        try:
            bound: int = await self._queue.bound()
        except ServerTooOldError:  # a released okq has no bounds
            return 0
        return bound

    async def put(self, items: Iterable[bytes]) -> None:
        """Put some items in order, waiting for room."""
        given = list(items)
        try:
            messages = list(map(self._convert, given))
        except (ValueError, UsageError):
            self._unput.extend(given)  # they count as items that were not put
            raise
        self._unput.extend(messages)
        while self._singly and self._unput:
            await self._step(self._put(self._unput[0]))
        while self._unput:
            batch = list(itertools.islice(self._unput, self._window))
            before = self._meter.messages
            try:
                await self._step(self._put_many(batch))
                self._window = min(_BATCH, 2 * self._window)
            except (QueueFullError, QueueInUseError):
                # A queue that is nearly full takes few items, so send it few.
                self._window = max(1, 2 * (self._meter.messages - before))
                if self._unput:
                    await self._step(self._put(self._unput[0]))

    async def _step(self, operation: Coroutine[Any, Any, int | str | None]) -> None:
        """Count the items that the operation puts. When cancelled, unblock the operation, so that it has a result."""
        task = asyncio.ensure_future(operation)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            # Repeated, since `unblock` reaches only waits, and the operation may be between two of them.
            while not task.done():
                await self._queue.unblock()
                await asyncio.wait({task}, timeout=0.05)
            raise
        finally:
            if task.done() and not task.cancelled():
                self._count(task)

    def _count(self, task: asyncio.Task[int | str | None]) -> None:
        error = task.exception()
        # An error says how many items were put before it; `put` returns the id of its one item, if it has one.
        accepted = error.accepted if isinstance(error, PressureError) else 0
        if error is None:
            result = task.result()
            accepted = result if isinstance(result, int) else 1
            if self._on_id is not None and isinstance(result, str):
                self._on_id(result)
        elif isinstance(error, DurabilityError):  # the items are in the queue, and must not be put again
            self.unconfirmed = int(error.answer)
            accepted += self.unconfirmed
        self._meter.add(accepted, sum(len(self._unput.popleft()) for _ in range(accepted)))
