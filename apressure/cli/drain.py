"""Getting items and writing them out, so that none is lost between the queue and whoever reads the output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from apressure import AsyncQueue
from apressure.cli.framing import Framing, encode, fits
from apressure.cli.meter import Meter
from apressure.cli.options import complain
from apressure.cli.streams import Output
from apressure.exceptions import QueueClosedError, QueueEmptyError


class Drain:
    """Writes items to an output.

    Args:
        queue: Where they come from.
        output: Where they go.
        meter: Counts them.
        framing: How the reader tells them apart.
        number: How many to get; None for all.
        follow: Wait for more items where there are none; False to end then.
        timeout: Seconds to wait for the next item, and for another consumer to leave; None for ever.
        delete: Delete the queue once it is closed and drained.
    """

    def __init__(
        self,
        queue: AsyncQueue[bytes],
        output: Output,
        meter: Meter,
        framing: Framing,
        *,
        number: int | None = None,
        follow: bool = True,
        timeout: float | None = None,
        delete: bool = False,
    ) -> None:
        self._queue = queue
        self._output = output
        self._meter = meter
        self._framing = framing
        self._number = number
        self._follow = follow
        self._timeout = timeout
        self._delete = delete
        self._warned = False

    async def at_least_once(self) -> None:
        """Get items in the consumer role, where each is acknowledged after it has been written.

        Raises:
            FramingError: An item cannot be told apart from two. It has gone back into the queue.
            BrokenPipeError: Nobody reads the output any more. What was not written has gone back.
            QueueClosedError: The queue was closed before `number` items came.
            QueueEmptyError: No item came before the timeout.
            QueueInUseError: Another consumer had the role until the timeout.
        """
        with self._output.noticing_the_reader():
            async with self._queue.consumer(delete=self._delete, timeout=self._timeout) as consumer:
                items = aiter(consumer)
                while not self._satisfied:
                    try:
                        item = await self._next(items)
                    except StopAsyncIteration:
                        self._end()
                        break
                    except QueueEmptyError:
                        if self._follow:
                            raise
                        break
                    await self._output.write(encode(item, self._framing))
                    self._meter.add(1, len(item))

    async def at_most_once(self) -> None:
        """Get items one by one, where each is taken from the queue and then written.

        An item that cannot be told apart from two is written all the same, with a warning, since it has been taken.

        Raises:
            BrokenPipeError: Nobody reads the output any more. The item that was taken is lost.
            QueueClosedError: The queue was closed before `number` items came.
            QueueEmptyError: No item came before the timeout.
            QueueInUseError: Another consumer had the role until the timeout.
        """
        with self._output.noticing_the_reader():
            while not self._satisfied:
                try:
                    item = await self._queue.get(self._timeout if self._follow else 0)
                except QueueClosedError:
                    self._end()
                    if self._delete:
                        await self._queue.delete(self._timeout)
                    break
                except QueueEmptyError:
                    if self._follow:
                        raise
                    break
                if not fits(item, self._framing) and not self._warned:
                    self._warned = True
                    complain("apressure: an item contains what ends an item in the output: use --length-prefixed")
                await self._output.write(encode(item, self._framing, strict=False))
                self._meter.add(1, len(item))

    @property
    def _satisfied(self) -> bool:
        return self._number is not None and self._meter.messages >= self._number

    def _end(self) -> None:
        """The queue is closed and drained: is that all that was asked for?"""
        if self._number is not None and self._follow:
            raise QueueClosedError(
                f"the queue {self._queue.name!r} is closed: {self._meter.messages} of {self._number} items came",
                name=self._queue.name,
            )

    async def _next(self, items: AsyncIterator[bytes]) -> bytes:
        timeout = self._timeout if self._follow else 0
        if timeout is None:
            return await anext(items)
        # When an item and the timeout come together, the item is there at the second attempt, without waiting.
        for seconds in (timeout, 0):
            try:
                async with asyncio.timeout(seconds) as patience:
                    return await anext(items)
            except TimeoutError:
                if not patience.expired():
                    raise
        raise QueueEmptyError(f"the queue {self._queue.name!r} is empty", name=self._queue.name)
