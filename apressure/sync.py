"""Queues for scripts and notebooks without asyncio: each call waits for its result.

An event loop in a thread of its own does the work, so this also runs where a loop runs already, as in Jupyter. Ctrl-C
cancels the operation under way, and waits until it has ended: no message is left in between.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Final, Generic, Protocol, Self, TypeVar

from anyio.from_thread import start_blocking_portal

from apressure import protocols, validation
from apressure.concurrency.loop_thread import LoopThread
from apressure.exceptions import PressureError, QueueClosedError
from apressure.protocols import AcknowledgesSoon, Destination, NotesErrors, Source

T = TypeVar("T")

_CHUNK: Final = 500
"""How many items `put_many` reads ahead."""


class AsyncioQueue(Source[T], Destination[T], Protocol[T]):
    """What `Queue` needs of a queue: an AsyncQueue, EventQueue, FileQueue or TaskQueue has it."""

    async def create(self, bound: int = 0, exist_ok: bool = False) -> bool:
        """Create the queue; returns whether it is new."""

    async def delete(self) -> None:
        """Delete the queue with all that is in it."""

    async def qsize(self) -> int:
        """How many messages wait in the queue."""


class Delivery(Generic[T]):
    """A message in flight, to be acknowledged or given back."""

    def __init__(self, delivery: protocols.Delivery[T], loop: LoopThread) -> None:
        self._delivery = delivery
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._delivery)

    @property
    def id(self) -> str:
        """The name of the delivery, for logs."""
        return self._delivery.id

    @property
    def item(self) -> T:
        """The message, decoded. Raises DecodeError where it cannot be decoded; the message stays in flight."""
        return self._delivery.item

    @property
    def raw(self) -> bytes:
        """The encoded message."""
        return self._delivery.raw

    @property
    def attempts(self) -> int:
        """How often the message has been delivered, this time included."""
        return self._delivery.attempts

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before, and not acknowledged."""
        return self._delivery.redelivered

    @property
    def settled(self) -> bool:
        """Whether `ack` or `nack` has been called."""
        return self._delivery.settled

    def ack(self) -> None:
        """Acknowledge the message: it never comes again. Raises LeaseLostError where it has gone back meanwhile."""
        self._loop.call(self._delivery.ack)

    def nack(self) -> None:
        """Give the message back, first in line. Raises LeaseLostError where it has gone back meanwhile."""
        self._loop.call(self._delivery.nack)

    def extend(self, seconds: float) -> None:
        """Keep the message in flight for at least `seconds` from now."""
        self._loop.call(lambda: self._delivery.extend(seconds))


class Consumer(Generic[T]):
    """A block that gets items until the queue is closed and drained: `with`, then `for`. Made by `Queue.consumer`.

    An item is acknowledged when the loop asks for the next one, or when the block ends well. When the body raises, also
    after Ctrl-C, the item comes again, first in line, and so does everything that was received ahead.
    """

    acknowledges_the_one_before: Final = True

    def __init__(self, consumer: protocols.Consumer[protocols.Delivery[T]], loop: LoopThread) -> None:
        self._consumer = consumer
        self._loop = loop
        self._current: protocols.Delivery[T] | None = None

    def __enter__(self) -> Self:
        self._loop.call(self._consumer.__aenter__, lambda entered: entered.__aexit__(None, None, None))
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
                await self._consumer.__aexit__(kind, error, traceback)

        self._loop.call(leave)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        async def step() -> protocols.Delivery[T] | None:
            await self._acknowledge()
            return await anext(self._consumer, None)

        async def give_back(delivery: protocols.Delivery[T] | None) -> None:
            if delivery is not None:
                await delivery.nack()

        self._current = self._loop.call(step, give_back)
        if self._current is None:
            raise StopIteration
        return self._current.item

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


class Queue(Generic[T]):
    """A queue of any kind, for code without asyncio.

    Several threads may use it. After a fork, the child process opens one of its own.

    Args:
        queue: An `AsyncQueue`, `EventQueue`, `FileQueue` or `TaskQueue` that has not been used before. It belongs to
            this object, and is opened and closed with it.

    Example:
        >>> with Queue(AsyncQueue("orders", url="redis://127.0.0.1:6379/0", codec="text")) as queue:
        ...     queue.create(bound=100, exist_ok=True)
        ...     queue.put("first")
    """

    def __init__(self, queue: AsyncioQueue[T]) -> None:
        self._queue = queue
        self._stack = contextlib.ExitStack()
        self._running: LoopThread | None = None

    def open(self) -> Self:
        """Open the queue without a block, as in a notebook with many cells; `release` ends it. Returns this object.

        Raises:
            RuntimeError: It is open, or the queue that was given to it has been opened by itself.
            PressureError, OSError: As for opening the kind of queue.
        """
        if self._running is not None:
            raise RuntimeError(f"the queue {self.name!r} is open already")
        if self._queue.opened:
            raise RuntimeError(
                f"the queue {self._queue.name!r} is open on another event loop: give Queue() one that is new"
            )
        with contextlib.ExitStack() as stack:
            loop = LoopThread(stack.enter_context(start_blocking_portal("asyncio")))
            stack.callback(lambda: loop.call(lambda: self._queue.__aexit__(None, None, None)))
            loop.call(self._queue.__aenter__)
            self._running = loop
            self._stack = stack.pop_all()
        atexit.register(self._release_at_exit, os.getpid())
        return self

    def release(self) -> None:
        """Give back what was received and not acknowledged, and end the connections and the thread. The queue stays.

        The end of the program does the same. A second call does nothing.
        """
        atexit.unregister(self._release_at_exit)
        self._running = None
        self._stack.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._queue.name

    def create(self, bound: int = 0, exist_ok: bool = False) -> bool:
        """Create the queue; with `bound`, `put` waits while so many messages are in it. Returns whether it is new.

        Raises:
            QueueAlreadyExistsError: It exists, and `exist_ok` is false.
        """
        return self._loop.call(lambda: self._queue.create(bound, exist_ok))

    def exists(self) -> bool:
        """Whether the queue exists."""
        return self._loop.call(self._queue.exists)

    def qsize(self) -> int:
        """How many messages wait in the queue."""
        return self._loop.call(self._queue.qsize)

    def closed(self) -> bool:
        """Whether the queue is closed."""
        return self._loop.call(self._queue.closed)

    def close(self) -> None:
        """Accept no more items. Consumers end when they have got what is left."""
        self._loop.call(self._queue.close)

    def delete(self) -> None:
        """Delete the queue with all that is in it."""
        self._loop.call(self._queue.delete)

    def put(self, item: T, timeout: float | None = None) -> None:
        """Put an item, waiting while the queue is full.

        Args:
            item: The item.
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.

        Raises:
            QueueFullError: The queue stayed full until the timeout. Nothing was put.
            QueueClosedError: It is closed. Nothing was put.
            PressureError: As for the `put` of the kind of queue.

        After Ctrl-C the item is in the queue, or not; while `put` waits for room, it is not.
        """
        self._loop.call(lambda: self._queue.put(item, timeout))

    def put_many(self, items: Iterable[T], timeout: float | None = None) -> int:
        """Put items in order, waiting while the queue is full; returns how many.

        Args:
            items: The items. A generator runs in this thread, and is read ahead by up to 500 items. What was read and
                not put is lost when this fails.
            timeout: Seconds for all of them.

        Raises:
            QueueFullError, QueueClosedError, PressureError: As for `put`. `accepted` says how many were put before.

        After Ctrl-C the first of the items are in the queue, in order, and the others are not.
        """
        validation.batch(items, "put_many", "put")
        validation.timeout(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        source, done = iter(items), 0
        while chunk := list(itertools.islice(source, _CHUNK)):
            done += self._put_chunk(chunk, None if end is None else max(end - time.monotonic(), 0.0), done)
        return done

    def receive(self, timeout: float | None = None, lease: float | None = None) -> Delivery[T]:
        """Receive a message, waiting while the queue is empty. It is in flight until you acknowledge it.

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            lease: Seconds after which others get the message when this process dies; None for the queue's default.

        Raises:
            QueueEmptyError: There was no message within the timeout.
            QueueClosedError: The queue is closed and drained.

        After Ctrl-C no message is in flight. The end of the queue's block gives back what was not acknowledged.
        """
        (delivery,) = self.receive_many(1, timeout, lease)
        return delivery

    def receive_many(
        self, max_items: int, timeout: float | None = None, lease: float | None = None
    ) -> list[Delivery[T]]:
        """Receive one to max_items messages, waiting for the first. See `receive`."""
        loop = self._loop

        async def give_back(deliveries: Iterable[protocols.Delivery[T]]) -> None:
            for delivery in reversed(list(deliveries)):
                await delivery.nack()

        received = loop.call(lambda: self._queue.receive_many(max_items, timeout, lease), give_back)
        return [Delivery(delivery, loop) for delivery in received]

    def consumer(
        self, *, prefetch: int | None = None, lease: float | None = None, shared: bool | None = None
    ) -> Consumer[T]:
        """Return a block that gets items, at-least-once: `with queue.consumer() as items: for item in items`.

        Args:
            prefetch: How many messages to receive at a time; None lets the queue decide.
            lease: Seconds after which others get the messages when this process dies; None for the queue's default.
            shared: Other consumers may get messages at the same time; None for the default of the kind of queue.
        """
        if shared is None:
            consumer = self._queue.consumer("manual", prefetch=prefetch, lease=lease)
        else:
            consumer = self._queue.consumer("manual", prefetch=prefetch, lease=lease, shared=shared)
        return Consumer(consumer, self._loop)

    @contextlib.contextmanager
    def producer(self) -> Iterator[Self]:
        """Return a block that closes the queue when it ends well: `with queue.producer() as producer`."""
        yield self
        with contextlib.suppress(QueueClosedError):  # another producer was first
            self.close()

    def _release_at_exit(self, pid: int) -> None:
        if os.getpid() == pid:  # a forked child has no thread to end
            self.release()

    def _put_chunk(self, chunk: list[T], timeout: float | None, done: int) -> int:
        try:
            return self._loop.call(lambda: self._queue.put_many(chunk, timeout))
        except PressureError as error:
            error.accepted += done
            raise

    @property
    def _loop(self) -> LoopThread:
        if self._running is None:
            raise RuntimeError(
                "the queue is not open: use it inside its block (with Queue(...) as queue), or call open()"
            )
        return self._running
