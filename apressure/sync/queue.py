"""What queues of every kind have in common, for code without asyncio."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, Self, TypeVar, Unpack, overload

from apressure.concurrency.loop_thread import LoopThread
from apressure.core.due import ManyTerms, PutTerms
from apressure.protocols import Destination, Source
from apressure.sync.blocks import ClosingProducer, Consumer, Producer
from apressure.sync.calls import blocking, give_back, put_in_chunks
from apressure.sync.delivery import Delivery

if TYPE_CHECKING:
    from apressure.events.queue import EventQueue
    from apressure.files.queue import FileQueue
    from apressure.pressure.queue import AsyncQueue
    from apressure.sync.events import BlockingEventQueue
    from apressure.sync.files import BlockingFileQueue
    from apressure.sync.pressure import BlockingQueue
    from apressure.sync.tasks import BlockingTaskQueue
    from apressure.tasks.queue import TaskQueue

T = TypeVar("T")

_KINDS: Final = {
    "AsyncQueue": "apressure.sync.pressure:BlockingQueue",
    "EventQueue": "apressure.sync.events:BlockingEventQueue",
    "FileQueue": "apressure.sync.files:BlockingFileQueue",
    "TaskQueue": "apressure.sync.tasks:BlockingTaskQueue",
}
"""Which class wraps which kind of queue. Each is imported when it is needed: a `FileQueue` needs no Redis."""


class AsyncioQueue(Source[T], Destination[T], Protocol[T]):
    """What `Queue` needs of a queue: an AsyncQueue, EventQueue, FileQueue or TaskQueue has it."""

    async def create(self, bound: int = 0, exist_ok: bool = False) -> bool:
        """Create the queue; returns whether it is new."""

    async def delete(self) -> None:
        """Delete the queue with all that is in it."""

    async def qsize(self) -> int:
        """How many messages wait in the queue."""


class Opening:
    """An object around a queue that is opened once, and released.

    Args:
        queue: A queue that has not been used before.
    """

    def __init__(self, queue: Any) -> None:
        self._behind = queue
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
        if self._behind.opened:
            raise RuntimeError(f"the queue {self.name!r} is open on another event loop: give Queue() one that is new")
        with contextlib.ExitStack() as stack:
            loop = stack.enter_context(LoopThread())
            stack.callback(lambda: loop.call(lambda: self._behind.__aexit__(None, None, None)))
            stack.callback(loop.settle)
            loop.call(self._behind.__aenter__)
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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._behind!r}>"

    @property
    def opened(self) -> bool:
        """Whether it is open."""
        return self._running is not None

    @property
    def name(self) -> str:
        """The queue's name."""
        return str(self._behind.name)

    @property
    def max_attempts(self) -> int | None:
        """How often a message is delivered at most; None for no limit."""
        most: int | None = self._behind.max_attempts
        return most

    def _release_at_exit(self, pid: int) -> None:
        if os.getpid() == pid:  # a forked child has no thread to end
            self.release()

    @property
    def _loop(self) -> LoopThread:
        if self._running is None:
            raise RuntimeError(
                "the queue is not open: use it inside its block (with Queue(...) as queue), or call open()"
            )
        return self._running


class Queue(Opening, Generic[T]):
    """A queue of any kind, for code without asyncio.

    `Queue(AsyncQueue(…))` returns a `BlockingQueue`, with the methods of `AsyncQueue`; other kinds likewise. This class
    has what all kinds have, and what a queue of your own needs.

    Several threads may use it. After a fork, the child process opens one of its own.

    Args:
        queue: An `AsyncQueue`, `EventQueue`, `FileQueue` or `TaskQueue` that has not been used before. It belongs to
            this object, and is opened and closed with it.

    Example:
        >>> with Queue(AsyncQueue("orders", url="redis://127.0.0.1:6379/0", codec="text")) as queue:
        ...     queue.create(bound=100, exist_ok=True)
        ...     queue.put("first")
        ...     item = queue.get(timeout=5.0)
    """

    @overload
    def __new__(cls, queue: AsyncQueue[T]) -> BlockingQueue[T]: ...
    @overload
    def __new__(cls, queue: EventQueue[T]) -> BlockingEventQueue[T]: ...
    @overload
    def __new__(cls, queue: FileQueue[T]) -> BlockingFileQueue[T]: ...
    @overload
    def __new__(cls, queue: TaskQueue[T]) -> BlockingTaskQueue[T]: ...
    @overload
    def __new__(cls, queue: AsyncioQueue[T]) -> Self: ...
    def __new__(cls, queue: Any) -> Any:
        kinds = (one.__name__ for one in type(queue).__mro__ if one.__module__.startswith("apressure."))
        if cls is Queue and (found := next((_KINDS[kind] for kind in kinds if kind in _KINDS), None)) is not None:
            module, _, name = found.partition(":")
            return super().__new__(getattr(importlib.import_module(module), name))
        return super().__new__(cls)

    create = blocking(AsyncioQueue[T].create)
    exists = blocking(AsyncioQueue[T].exists)
    qsize = blocking(AsyncioQueue[T].qsize)
    closed = blocking(AsyncioQueue[T].closed)
    close = blocking(AsyncioQueue[T].close)
    delete = blocking(AsyncioQueue[T].delete)

    def put(self, item: T, timeout: float | None = None, **terms: Unpack[PutTerms]) -> Any:
        """Put an item, waiting while the queue is full.

        Args:
            item: The item.
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            delay: Seconds after which it is due; see `put` of the kind of queue.
            at: When it is due, with a time zone.
            expires: Seconds after which it is no longer delivered.
            key: What it is about: messages of a key are handled one at a time.
            cost: For how many messages it counts against the rate of the queue.
            dedup_id: A name for what it is about: a repeat is refused.
            dedup_window: Seconds for which repeats are refused; None until the message is done.
            replace: Put it in the place of the message with the same `dedup_id`, while that waits.

        Returns:
            What `put` of the kind of queue returns, such as an id.

        Raises:
            QueueFullError: The queue stayed full until the timeout. Nothing was put.
            QueueClosedError: It is closed. Nothing was put.
            PressureError: As for the `put` of the kind of queue.

        After Ctrl-C the item is in the queue, or not; while `put` waits for room, it is not.
        """
        return self._loop.call(lambda: self._behind.put(item, timeout, **terms))

    def put_many(self, items: Iterable[T], timeout: float | None = None, **terms: Unpack[ManyTerms]) -> int:
        """Put items in order, waiting while the queue is full; returns how many.

        Args:
            items: The items. A generator runs in this thread, and is read ahead by up to 500 items. What was read and
                not put is lost when this fails.
            timeout: Seconds for all of them.
            delay: Seconds after which each is due.
            at: When all of them are due.
            expires: Seconds after which each is no longer delivered.
            key: The key of all of them.
            cost: What each of them costs.

        Raises:
            QueueFullError, QueueClosedError, PressureError: As for `put`. `accepted` says how many were put before.

        After Ctrl-C the first of the items are in the queue, in order, and the others are not.
        """
        return put_in_chunks(self._loop, self._behind.put_many, items, timeout, **terms)

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
    ) -> Sequence[Delivery[T]]:
        """Receive one to max_items messages, waiting for the first. See `receive`."""
        loop = self._loop
        received = loop.call(lambda: self._behind.receive_many(max_items, timeout, lease), give_back)
        return [Delivery(delivery, loop) for delivery in received]

    @overload
    def consumer(
        self, ack: Literal["auto"] = ..., delete: bool = ..., prefetch: int | None = ..., lease: float | None = ...,
        timeout: float | None = ..., max_hold: float | None = ..., shared: bool | None = ...,
    ) -> Consumer[T]: ...  # fmt: skip
    @overload
    def consumer(
        self, ack: Literal["manual"], delete: bool = ..., prefetch: int | None = ..., lease: float | None = ...,
        timeout: float | None = ..., max_hold: float | None = ..., shared: bool | None = ...,
    ) -> Consumer[Delivery[T]]: ...  # fmt: skip
    def consumer(
        self, ack: Literal["auto", "manual"] = "auto", delete: bool = False, prefetch: int | None = None,
        lease: float | None = None, timeout: float | None = None, max_hold: float | None = None,
        shared: bool | None = None,
    ) -> Consumer[Any]:  # fmt: skip
        """Return a block that gets items, at-least-once: `with queue.consumer() as items: for item in items`.

        An argument that the kind of queue does not know is refused if it is given.

        Args:
            ack: `"auto"`: an item is acknowledged when the loop asks for the next one, and at the end of the block
                unless it raises. `"manual"`: the loop gets deliveries, to be acknowledged by hand.
            delete: Delete the queue when it is closed and drained.
            prefetch: How many messages to receive at a time; None lets the queue decide.
            lease: Seconds after which others get the messages when this process dies; None for the queue's default.
            timeout: Seconds to wait for the consumer role of an `AsyncQueue` at most.
            max_hold: Seconds without progress after which the leases end.
            shared: Other consumers may get messages at the same time; None for the default of the kind of queue.

        Raises:
            TypeError, ValueError: An argument is invalid.
        """
        more = {"delete": delete or None, "timeout": timeout, "max_hold": max_hold, "shared": shared}
        given: dict[str, Any] = {name: value for name, value in more.items() if value is not None}
        how = "manual" if ack == "auto" else ack  # each step is a task of its own, so the acknowledgement is here
        behind = self._behind.consumer(how, prefetch=prefetch, lease=lease, **given)
        return Consumer(behind, self._loop, None if ack == "auto" else self._delivery)

    def producer(self, close: bool = True) -> Producer[T]:
        """Return a block that closes the queue when it ends well: `with queue.producer() as producer`.

        Args:
            close: Close the queue.
        """
        return ClosingProducer(self._behind, self._loop, close)

    _delivery: Any = Delivery
    """Makes the delivery that a program gets."""
