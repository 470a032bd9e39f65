"""The producer and the consumer of a queue as `with` blocks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, Unpack

from apressure import protocols
from apressure.concurrency.loop_thread import LoopThread
from apressure.core.due import ManyTerms, PutTerms
from apressure.exceptions import QueueClosedError
from apressure.protocols import AcknowledgesSoon, NotesErrors
from apressure.sync.calls import give_back, put_in_chunks
from apressure.sync.delivery import Delivery

T = TypeVar("T")


class Consumer(Generic[T]):
    """A block that gets items until the queue is closed and drained: `with`, then `for`. Made by `Queue.consumer`.

    An item is acknowledged when the loop asks for the next one, or when the block ends well. When the body raises, also
    after Ctrl-C, the item comes again, first in line, and so does everything that was received ahead.

    With `ack="manual"`, the loop gets deliveries, which the program acknowledges or gives back. What it has not settled
    comes again when the block ends.
    """

    acknowledges_the_one_before: Final = True

    def __init__(
        self,
        consumer: Any,
        loop: LoopThread,
        delivery: Callable[[Any, LoopThread], Any] | None = None,
    ) -> None:
        self._behind = consumer
        self._loop = loop
        self._delivery = delivery
        self._current: protocols.Delivery[Any] | None = None

    def __enter__(self) -> Self:
        self._loop.call(self._behind.__aenter__, lambda entered: entered.__aexit__(None, None, None))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        async def leave() -> None:
            try:
                if kind is None:
                    await self._acknowledge()
                elif isinstance(error, Exception) and isinstance(self._current, NotesErrors):
                    self._current.note_error(error)
            finally:
                self._current = None
                await self._behind.__aexit__(kind, error, traceback)

        self._loop.call(leave)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        async def step() -> Any:
            await self._acknowledge()
            return await anext(self._behind, None)

        async def undo(received: Any) -> None:
            if received is not None:
                await give_back([received])

        received = self._loop.call(step, undo)
        if self._delivery is None:
            self._current = received
        if received is None:
            raise StopIteration
        item: T = received.item if self._delivery is None else self._delivery(received, self._loop)
        return item

    def take_ready(self, most: int) -> list[T]:
        """Return up to `most` deliveries that have come already, without waiting; none without `ack="manual"`."""
        make = self._delivery
        if make is None or not isinstance(self._behind, protocols.BufferedConsumer):
            return []
        taken: list[Any] = []

        async def take() -> list[T]:
            taken.extend(self._behind.take_ready(most))
            return [make(one, self._loop) for one in taken]

        return self._loop.call(take, lambda _: give_back(taken))

    def on_lost(self, callback: Callable[[Exception], None]) -> None:
        """Have `callback(error)` called when what is in flight was lost to others: in another thread, so briefly."""
        self._loop.run(lambda: self._behind.on_lost(callback))

    @property
    def attempts(self) -> int:
        """How often the current item has been delivered, this time included; 0 where there is none."""
        return 0 if self._current is None else self._current.attempts

    @property
    def redelivered(self) -> bool:
        """Whether the current item was delivered before, and not acknowledged."""
        return self.attempts > 1

    async def _acknowledge(self) -> None:
        delivery, self._current = self._current, None
        if delivery is None:
            return
        if isinstance(delivery, AcknowledgesSoon):
            delivery.ack_soon()
        else:
            await delivery.ack()


class EventConsumers(Consumer[Delivery[Any]]):
    """A consumer of several queues of events, with an event loop of its own. Made by `BlockingEventQueue.consume`."""

    def __init__(self, consumer: Any) -> None:
        self._running = contextlib.ExitStack()
        self._behind = consumer
        self._delivery = Delivery
        self._current = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._loop = stack.enter_context(LoopThread())
            super().__enter__()
            stack.callback(self._loop.settle)
            self._running = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._running:
            self._loop.settle()
            super().__exit__(kind, error, traceback)

    @property
    def name(self) -> str:
        """The name of the queue that the latest delivery is from; empty before the first one."""
        return str(self._behind.name)


class Producer(Generic[T]):
    """The producing end of a queue: `with queue.producer() as producer`. A good end of the block closes the queue.

    If the block raises, also after Ctrl-C, the queue stays open, so that another producer can go on.
    """

    def __init__(self, producer: Any, loop: LoopThread) -> None:
        self._behind = producer
        self._loop = loop

    def __enter__(self) -> Self:
        self._loop.call(self._behind.__aenter__, lambda entered: entered.__aexit__(asyncio.CancelledError, None, None))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call(lambda: self._behind.__aexit__(kind, error, traceback))

    def put(self, item: T, timeout: float | None = None, **terms: Unpack[PutTerms]) -> Any:
        """Put an item, waiting while the queue is full; see `Queue.put`."""
        return self._loop.call(lambda: self._behind.put(item, timeout, **terms))

    def put_many(self, items: Iterable[T], timeout: float | None = None, **terms: Unpack[ManyTerms]) -> int:
        """Put items in order, waiting while the queue is full; see `Queue.put_many`."""
        return put_in_chunks(self._loop, self._behind.put_many, items, timeout, **terms)


class ClosingProducer(Producer[T]):
    """The producing end of a queue whose kind has none.

    Args:
        queue: The queue.
        loop: Where it is open.
        close: Close it at the end.
    """

    def __init__(self, queue: protocols.Destination[T], loop: LoopThread, close: bool) -> None:
        super().__init__(queue, loop)
        self._close = close

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._close and kind is None:
            with contextlib.suppress(QueueClosedError):  # another producer was first
                self._loop.call(self._behind.close)
