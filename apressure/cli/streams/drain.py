"""Gets items from a queue and writes them to an output, without losing one in between."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

from apressure.cli.asking import command_for
from apressure.cli.options import complain
from apressure.cli.streams.framing import Framing, fits
from apressure.cli.streams.meter import Meter
from apressure.cli.streams.pipes import Output
from apressure.concurrency.blocked import Cause, on_block
from apressure.exceptions import QueueClosedError, QueueEmptyError
from apressure.queue_addresses import QueueAddress

_MOMENT: Final = 0.05
"""Seconds for an answer that is on its way."""

_PATIENCE: Final = 1.0
"""Seconds of a pause after which people are told of it."""


@dataclasses.dataclass
class Drain:
    """Writes items to an output.

    Attributes:
        queue: The queue to get items from, of any kind.
        output: The output to write them to.
        meter: Counts the items.
        framing: How the items are separated.
        convert: Makes an item of a message.
        address: The queue's address.
        number: How many items to get; None for all.
        follow: Wait for more items while the queue is empty; False to end then.
        timeout: Seconds to wait for the next item, and for another consumer to leave; None to wait for ever.
        delete: Delete the queue when it is closed and drained.
        shared: Share the consumer role of an `AsyncQueue`. Consumers of the other kinds always compete.
    """

    queue: Any
    output: Output
    meter: Meter
    framing: Framing
    convert: Callable[[bytes], bytes]
    _: dataclasses.KW_ONLY
    address: QueueAddress
    number: int | None = None
    follow: bool = True
    timeout: float | None = None
    delete: bool = False
    shared: bool = False
    _warned: bool = dataclasses.field(default=False, init=False)
    _pause_told: asyncio.TimerHandle | None = dataclasses.field(default=None, init=False)

    async def at_least_once(self) -> None:
        """Get items in the consumer role. Each is acknowledged after it has been written.

        Raises:
            FramingError: An item contains the delimiter. It has gone back into the queue.
            BrokenPipeError: The reader of the output has ended. Items that were not written have gone back.
            QueueClosedError: The queue was closed before `number` items came.
            QueueEmptyError: No item came before the timeout.
            QueueInUseError: Another consumer had the role until the timeout.
        """
        with self.output.noticing_the_reader(), self._pause_noticed():
            wanted = {name: True for name in ("delete", "shared") if getattr(self, name)}  # not all kinds have both
            async with self.queue.consumer(timeout=self.timeout, **wanted) as consumer:
                items = aiter(consumer)
                while not self._satisfied:
                    try:
                        item = await self._next(items)
                    except StopAsyncIteration:
                        self._end()
                        break
                    except QueueEmptyError:
                        if self.follow:
                            raise
                        break
                    await self.output.write_item(self.convert(item), self.framing)
                    self._received(item)

    async def at_most_once(self) -> None:
        """Get items one by one. Each is removed from the queue and then written.

        An item that contains the delimiter is written with a warning, since it is no longer in the queue.

        Raises:
            BrokenPipeError: The reader of the output has ended. The item that was removed is lost.
            QueueClosedError: The queue was closed before `number` items came.
            QueueEmptyError: No item came before the timeout.
            QueueInUseError: Another consumer had the role until the timeout.
        """
        with self.output.noticing_the_reader(), self._pause_noticed():
            while not self._satisfied:
                try:
                    item = self.convert(await self.queue.get(self.timeout if self.follow else 0))
                except QueueClosedError:
                    self._end()
                    if self.delete:
                        await self.queue.delete(self.timeout)
                    break
                except QueueEmptyError:
                    if self.follow:
                        raise
                    break
                if not fits(item, self.framing) and not self._warned:
                    self._warned = True
                    complain("apressure: an item contains the delimiter, so its reader sees two. Use --length-prefixed")
                await self.output.write_item(item, self.framing, strict=False)
                self._received(item)

    @contextlib.contextmanager
    def _pause_noticed(self) -> Iterator[None]:
        """Tell after a moment that the queue is paused, once for each pause in the block."""
        before = on_block.set(self._blocked)
        try:
            yield
        finally:
            on_block.reset(before)
            self._go_on()

    def _blocked(self, cause: Cause) -> None:
        if cause != "paused":
            self._go_on()
        elif self._pause_told is None:
            text = f"apressure: {self.address} is paused: `{command_for('resume', self.address)}` lets consumers go on"
            self._pause_told = asyncio.get_running_loop().call_later(_PATIENCE, complain, text)

    def _go_on(self) -> None:
        if self._pause_told is not None:
            self._pause_told.cancel()
            self._pause_told = None

    def _received(self, item: bytes) -> None:
        self._go_on()
        self.meter.add(1, len(item))

    @property
    def _satisfied(self) -> bool:
        return self.number is not None and self.meter.messages >= self.number

    def _end(self) -> None:
        """End at a closed and drained queue. That is an error if more items were asked for."""
        if self.number is not None and self.follow:
            raise QueueClosedError(
                f"the queue {self.queue.name!r} is closed: {self.meter.messages} of {self.number} items came",
                name=self.queue.name,
            )

    async def _next(self, items: AsyncIterator[bytes]) -> bytes:
        timeout = self.timeout if self.follow else 0
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
            raise QueueEmptyError(f"the queue {self.queue.name!r} is {state}", name=self.queue.name)
        return attempt.result()

    async def _state(self) -> str:
        """Return why no item comes: the queue is paused, held, limited or empty. Nothing if one waits."""
        statistics = await self.queue.statistics()
        if statistics.paused:
            return "paused"
        if not statistics.length:
            return "empty"
        limits = statistics.limits
        return "held" if limits.held_for else "limited" if limits.rate or limits.concurrency else ""
