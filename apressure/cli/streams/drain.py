"""Gets items from a queue and writes them to an output, without losing one in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from apressure.cli.options import complain
from apressure.cli.streams.framing import Framing, fits
from apressure.cli.streams.meter import Meter
from apressure.cli.streams.pipes import Output
from apressure.exceptions import QueueClosedError, QueueEmptyError

_MOMENT: Final = 0.05
"""Seconds for an answer that is on its way."""


class Drain:
    """Writes items to an output.

    Args:
        queue: The queue to get items from, of any kind.
        output: The output to write them to.
        meter: Counts the items.
        framing: How the items are separated.
        convert: Makes an item of a message.
        number: How many items to get; None for all.
        follow: Wait for more items while the queue is empty; False to end then.
        timeout: Seconds to wait for the next item, and for another consumer to leave; None to wait for ever.
        delete: Delete the queue when it is closed and drained.
        shared: Share the consumer role of an `AsyncQueue`. Consumers of the other kinds always compete.
    """

    def __init__(
        self,
        queue: Any,
        output: Output,
        meter: Meter,
        framing: Framing,
        convert: Callable[[bytes], bytes],
        *,
        number: int | None = None,
        follow: bool = True,
        timeout: float | None = None,
        delete: bool = False,
        shared: bool = False,
    ) -> None:
        self._queue = queue
        self._output = output
        self._meter = meter
        self._framing = framing
        self._convert = convert
        self._number = number
        self._follow = follow
        self._timeout = timeout
        self._delete = delete
        self._shared = {"shared": True} if shared else {}
        self._warned = False

    async def at_least_once(self) -> None:
        """Get items in the consumer role. Each is acknowledged after it has been written.

        Raises:
            FramingError: An item contains the delimiter. It has gone back into the queue.
            BrokenPipeError: The reader of the output has ended. Items that were not written have gone back.
            QueueClosedError: The queue was closed before `number` items came.
            QueueEmptyError: No item came before the timeout.
            QueueInUseError: Another consumer had the role until the timeout.
        """
        with self._output.noticing_the_reader():
            deleted = {"delete": True} if self._delete else {}
            block = self._queue.consumer(timeout=self._timeout, **deleted, **self._shared)
            async with block as consumer:
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
                    await self._output.write_item(self._convert(item), self._framing)
                    self._meter.add(1, len(item))

    async def at_most_once(self) -> None:
        """Get items one by one. Each is removed from the queue and then written.

        An item that contains the delimiter is written with a warning, since it is no longer in the queue.

        Raises:
            BrokenPipeError: The reader of the output has ended. The item that was removed is lost.
            QueueClosedError: The queue was closed before `number` items came.
            QueueEmptyError: No item came before the timeout.
            QueueInUseError: Another consumer had the role until the timeout.
        """
        with self._output.noticing_the_reader():
            while not self._satisfied:
                try:
                    item = self._convert(await self._queue.get(self._timeout if self._follow else 0))
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
                    complain("apressure: an item contains the delimiter, so its reader sees two. Use --length-prefixed")
                await self._output.write_item(item, self._framing, strict=False)
                self._meter.add(1, len(item))

    @property
    def _satisfied(self) -> bool:
        return self._number is not None and self._meter.messages >= self._number

    def _end(self) -> None:
        """End at a closed and drained queue. That is an error if more items were asked for."""
        if self._number is not None and self._follow:
            raise QueueClosedError(
                f"the queue {self._queue.name!r} is closed: {self._meter.messages} of {self._number} items came",
                name=self._queue.name,
            )

    async def _next(self, items: AsyncIterator[bytes]) -> bytes:
        timeout = self._timeout if self._follow else 0
        if timeout is None:
            return await anext(items)
        # The attempt goes on while we look, since a cancelled one gives back what it was about to get.
        attempt = asyncio.ensure_future(anext(items))
        try:
            await asyncio.wait((attempt,), timeout=timeout)
            state = ""
            while not attempt.done() and not state:
                state = await self._state()
                # What it took before we looked comes before our answer, or in a moment.
                await asyncio.wait((attempt,), timeout=_MOMENT)
        finally:
            attempt.cancel()
            await asyncio.wait((attempt,))
        if attempt.cancelled():
            raise QueueEmptyError(f"the queue {self._queue.name!r} is {state}", name=self._queue.name)
        return attempt.result()

    async def _state(self) -> str:
        """Return why no item comes: the queue is paused or empty. Nothing if one waits."""
        statistics = await self._queue.statistics()
        if statistics.paused:
            return "paused"
        return "" if statistics.length else "empty"
