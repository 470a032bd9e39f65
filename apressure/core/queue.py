"""The queue as a program sees it, for every kind: putting, receiving, getting, looking."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterable, Iterable
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar, overload

from apressure import validation
from apressure.concurrency.deadline import with_deadline, within
from apressure.core.administration import Administration
from apressure.core.consumer import QueueConsumer
from apressure.core.delivery import LeasedDelivery
from apressure.core.producer import QueueProducer
from apressure.dead_letters import DeadLetter
from apressure.exceptions import QueueClosedError, QueueEmptyError
from apressure.items import Items, Progress

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
D = TypeVar("D", bound=LeasedDelivery[Any])


class _Gets(Protocol[T_co]):
    async def get(self) -> T_co: ...


class Iterating(Generic[T]):
    """A queue with `get`, whose items `async for` gets."""

    def __aiter__(self) -> Self:
        """Get items until the queue is closed and drained: at-most-once. `consumer` is at-least-once."""
        return self

    async def __anext__(self: _Gets[T]) -> T:
        try:
            return await self.get()
        except QueueClosedError:
            raise StopAsyncIteration from None


class Queue(Administration, Iterating[T], Generic[T, D]):
    """A queue of any number of competing consumers, as a program sees it.

    `T` is what items are, `D` what deliveries are.
    """

    _a_kind: ClassVar[str]
    """What it is, for errors."""

    _most_prefetched: ClassVar[int | None] = None
    """The largest `prefetch`; None for no limit."""

    _put_most: ClassVar[int]
    """The most messages that one step puts."""

    _reads_ahead: ClassVar[bool] = True
    """`put_many` reads an asynchronous iterable while a chunk is being put."""

    _items: Items[T]

    # What a kind of queue says.

    async def _put_one(self, message: bytes, timeout: float | None) -> str:
        """Put a message, waiting for room; returns its id. A kind whose `put` takes more arguments has its own."""
        raise NotImplementedError

    @abstractmethod
    async def _put_chunk(self, chunk: list[bytes], timeout: float | None, progress: Progress) -> None:
        """Put messages in order, waiting for room; the progress counts what is in the queue, also at a failure."""

    @abstractmethod
    async def _receive(self, most: int, timeout: float | None, lease: float | None) -> list[D]:
        """Take one to `most` messages, waiting while there is none. A lease of None is this kind's default."""

    @abstractmethod
    def _consumer(
        self, manual: bool, delete: bool, prefetch: int | None, lease: float | None, max_hold: float | None
    ) -> QueueConsumer[Any, D]:
        """Return a consuming end. None is this kind's default."""

    @abstractmethod
    async def _get(self, most: int, timeout: float | None) -> list[T]:
        """Take one to `most` items for good, waiting while there is none."""

    @abstractmethod
    async def _peek(self, newest: bool) -> bytes | None:
        """Return the message that is next, or the one that was put last; None if none waits."""

    @abstractmethod
    async def _letters(self, limit: int | None, source: str | None) -> list[DeadLetter[T]]:
        """Return dead letters, the oldest first."""

    async def prepare(self) -> None:
        """Make sure, at the beginning of a producer's block, that the object can be used."""
        self.check()

    # What programs call.

    async def put(self, item: T, timeout: float | None = None, *, deadline: float | None = None) -> str:
        """Put an item, waiting while the queue is full.

        Args:
            item: The item; bytes, or what the codec takes. For a `TaskQueue`, the parameters of the task.
            timeout: Seconds to wait for room at most; None to wait for ever, 0 for a single try.
            deadline: Seconds for the whole operation, with connecting, repeating and settling; None for no limit. Use
                it in request handlers: it also holds when the server, or the disk, is down or frozen.

        Returns:
            The message's id.

        Raises:
            QueueFullError: The queue stayed full until the timeout. Nothing was put.
            QueueClosedError: It is closed. Nothing was put.
            QueueDoesNotExistError: It was created and deleted. Nothing was put.
            OutcomeUnknownError: The connection broke and could not be restored in time.
            StorageError: The file system refused: disk full, read-only, permissions. Nothing was put, unless
                `accepted` is 1: then the item is in, but its name may not be on the disk.
            DeadlineError: The deadline passed. Nothing was put, unless it is a DeadlineOutcomeUnknownError: then the
                item was sent, and may still be put.
            TypeError, ValueError: The item cannot be encoded, or is too large. Nothing was put.

        Cancelled while it waits, nothing was put. Cancelled while the step is on its way, it waits for the answer,
        then raises: the item is in the queue, or not. `timeout=` gives a certain answer.

        On this kind:
            TaskQueue: The specification calls it Submission, and `enqueue` is another name of it.
            FileQueue: The specification calls it New. Calls of the file system that the event loop makes itself cannot
                be interrupted by a deadline: `threads=True` makes all of them in a thread.
        """
        if deadline is not None:
            return await within(deadline, self.name, self.put(item, timeout))
        return await self._put_one(self._items.encode(item), timeout)

    async def put_nowait(self, item: T, *, deadline: float | None = None) -> str:
        """Put an item without waiting for room.

        Returns:
            The message's id.

        Raises:
            QueueFullError: The queue is full. Nothing was put.
            PressureError, TypeError, ValueError: As for `put`.

        Cancelled, the item is in the queue, or not.
        """
        return await self.put(item, 0, deadline=deadline)

    @with_deadline()
    async def put_many(
        self, items: Iterable[T] | AsyncIterable[T], timeout: float | None = None, *, deadline: float | None = None
    ) -> int:
        """Put any number of items in order, with random ids, as many in a step as there is room for.

        Args:
            items: An iterable or an asynchronous one. It is read ahead by up to a chunk (2,000 items, of tasks 1,000,
                of a `FileQueue` 64, or 1 MiB), and items that were read and not put are lost when this fails. A
                consumer is refused: reading ahead would acknowledge its items. A `FileQueue` puts each item of an
                asynchronous iterable before it reads the next one.
            timeout: Seconds for all of them.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            How many were put.

        Raises:
            QueueFullError: The timeout passed.
            QueueClosedError, QueueDoesNotExistError, OutcomeUnknownError, StorageError, TypeError, ValueError: As for
                `put`. A note on any error says how many were put before, and so does `accepted` of a PressureError. On
                a released okq, up to 99 items behind those may be in the queue, too: it takes one in each command.

        Cancelled, the first of the items are in the queue, in order, and the others are not.
        """
        validation.timeout(timeout)
        self.check()
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout

        async def put_chunk(chunk: list[bytes], progress: Progress) -> None:
            await self._put_chunk(chunk, None if until is None else max(0.0, until - loop.time()), progress)

        return await self._items.put_chunks(items, put_chunk, self._put_most, self._reads_ahead)

    def producer(self, close: bool = True) -> QueueProducer[T]:
        """Return the producing end of the queue, for `async with`.

        Args:
            close: Close the queue at the end of the block, unless it raises. Producers that share a queue pass False.
        """
        return QueueProducer(self, close)

    async def receive(
        self, timeout: float | None = None, lease: float | None = None, *, deadline: float | None = None
    ) -> D:
        """Receive the message that is next, to be acknowledged, waiting while there is none.

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            lease: Seconds for which no other consumer gets it; None for 15, for the queue's own of a `TaskQueue` or
                `FileQueue`, or for 30 on an okq server. Only the delivery's `extend` renews it: `consumer` renews by
                itself. A released okq rounds it up to whole seconds, and cannot extend it.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            QueueEmptyError: There was none until the timeout.
            QueueClosedError: The queue is closed, and none waits; of tasks, none is scheduled either. A message in
                flight may still come back: then the next `receive` gets it.
            QueueDoesNotExistError: It was created and deleted.
            ServerError, ServerUnavailableError: The server refused, or cannot be reached. Messages that were claimed
                come again when their lease ends.
            StorageError: The file system refused, or the message is too large, does not fit into memory, or is a file
                with another name elsewhere. It stays where it is. With `max_attempts`, one that is too large counts as
                delivered, and becomes a dead letter after so many tries.
            TypeError, ValueError: An argument is invalid, or the clock is wrong. Nothing was taken.

        Cancelled, nothing was taken, or it has been given back.

        On this kind:
            EventQueue: The specification calls it QRPOP, behind QREGISTER and QNOTIFY. TaskQueue: Node Task Pop.
            FileQueue: The specification calls it Ready.
        """
        return (await self.receive_many(1, timeout, lease, deadline=deadline))[0]

    @with_deadline()
    async def receive_many(
        self, max_items: int, timeout: float | None = None, lease: float | None = None, *, deadline: float | None = None
    ) -> list[D]:
        """Receive one to max_items messages, as many as there are, waiting while there is none.

        Very many or large messages come in chunks: the list may be shorter than the queue.

        Raises:
            TypeError, ValueError: max_items is not a positive whole number.
            PressureError: As for `receive`.

        Cancelled, nothing was taken, or it has been given back, in order.
        """
        validation.whole(max_items, "max_items")
        return await self._receive(max_items, timeout, lease)

    @overload
    def consumer(
        self, ack: Literal["auto"] = ..., delete: bool = ..., prefetch: int | None = ..., lease: float | None = ...,
        timeout: float | None = ..., max_hold: float | None = ..., shared: bool = ...,
    ) -> QueueConsumer[T, D]: ...  # fmt: skip
    @overload
    def consumer(
        self, ack: Literal["manual"], delete: bool = ..., prefetch: int | None = ..., lease: float | None = ...,
        timeout: float | None = ..., max_hold: float | None = ..., shared: bool = ...,
    ) -> QueueConsumer[D, D]: ...  # fmt: skip
    def consumer(
        self, ack: Literal["auto", "manual"] = "auto", delete: bool = False, prefetch: int | None = None,
        lease: float | None = None, timeout: float | None = None, max_hold: float | None = None, shared: bool = True,
    ) -> QueueConsumer[Any, D]:  # fmt: skip
        """Return a consuming end of the queue, for `async with` and `async for`: at-least-once, and one of several.

        Args:
            ack: `"auto"`: an item is acknowledged when the loop asks for the next one, and at the end of the block
                unless it raises. `"manual"`: the loop gets deliveries, to be acknowledged by hand.
            delete: Delete the queue at the end of the block, unless it raises, if the queue was closed and everything
                was acknowledged. On a released okq, the beginning of the block raises ServerTooOldError.
            prefetch: How many messages to receive at a time. None adapts to how quickly the body works, and to how many
                consumers there are.
            lease: Seconds after which other consumers get the messages if this process dies; a thread renews it. None
                for 15, for the queue's own of a `TaskQueue` or `FileQueue`, or for 30 on an okq server.
            timeout: As for `AsyncQueue.consumer`, which waits for the role. Here nothing waits.
            max_hold: Seconds after which the leases of a handler that is stuck are given up: nothing was handed out
                meanwhile. None for an hour.
            shared: Always True: any number of consumers compete. False is refused.

        Raises:
            TypeError, ValueError: An argument is invalid.

        On this kind:
            TaskQueue: What was reserved ahead goes back when a task takes longer than milliseconds. `max_hold=None`
                lets tasks take as long as they like, while the event loop turns: when it has stood still for an hour,
                the leases end.
            FileQueue: None prefetches 1, which is fair to other consumers. A timer of the event loop renews the lease,
                so a body that blocks the loop must be quicker.
            EventQueue with the address of a released okq: it receives one event at a time, and cannot renew the lease:
                the body must be quicker.
        """
        if not shared:
            raise ValueError(f"consumers of {self._a_kind} always share it: leave out shared=False")
        validation.consumer(ack, prefetch, timeout, self._most_prefetched)
        return self._consumer(ack == "manual", delete, prefetch, lease, max_hold)

    async def get(self, timeout: float | None = None, *, deadline: float | None = None) -> T:
        """Get an item, waiting while the queue is empty: at-most-once.

        The item is acknowledged before it is returned. `receive` and `consumer` lose none.

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            QueueEmptyError: The queue stayed empty until the timeout.
            QueueClosedError: It is closed, and none waits.
            OutcomeUnknownError: The connection broke after the step was sent: an item may be lost. Tasks keep their
                parameters; see `tasks`.
            DecodeError: The codec cannot decode the item, which is in the error.
            PressureError, TypeError, ValueError: As for `receive`.

        Cancelled while it waits, nothing was taken. Cancelled while it takes an item, it ends that step, puts the item
        back, first in line, then raises. By then, consumers of a closed queue may have ended; on an okq server, a
        closed queue takes nothing back, and the item is lost.

        On this kind:
            EventQueue: The specification's QRPOP with EX 0. TaskQueue: The task is complete, without a result.
            FileQueue: The message is deleted.
        """
        return (await self.get_many(1, timeout, deadline=deadline))[0]

    async def get_nowait(self, *, deadline: float | None = None) -> T:
        """Get an item without waiting.

        Raises:
            QueueEmptyError: The queue is empty.
            PressureError: As for `get`.

        Cancelled, nothing is lost, as with `get`.
        """
        return await self.get(0, deadline=deadline)

    @with_deadline()
    async def get_many(self, max_items: int, timeout: float | None = None, *, deadline: float | None = None) -> list[T]:
        """Get one to max_items items, as many as there are, waiting while there is none: at-most-once.

        Raises:
            DecodeError: The first item cannot be decoded. The messages behind it have been given back.
            TypeError, ValueError: max_items is not a positive whole number.
            PressureError: As for `get`.

        Cancelled, nothing is lost, as with `get`.
        """
        validation.whole(max_items, "max_items")
        return await self._get(max_items, timeout)

    @with_deadline(reads=True)
    async def peek(self, *, deadline: float | None = None) -> T:
        """Return the item that is next, without taking it.

        Raises:
            QueueEmptyError: None waits.
            DecodeError: The codec cannot decode it.
            PressureError: As for `statistics`.
        """
        return await self._peeked(False)

    @with_deadline(reads=True)
    async def peek_newest(self, *, deadline: float | None = None) -> T:
        """Return the item that was put last, without taking it.

        Raises:
            QueueEmptyError, DecodeError, PressureError: As for `peek`.
        """
        return await self._peeked(True)

    @with_deadline(reads=True)
    async def dead_letters(self, limit: int | None = 100, *, deadline: float | None = None) -> list[DeadLetter[T]]:
        """Return dead letters, the oldest first, with the reason of each. It changes nothing.

        A reason is the last error of the message (what a handler of `serve` or `pipe` or the body of `consumer` raised,
        or what was given to `nack`), its attempts, and when it became a dead letter. Until then, a server keeps errors
        of 10,000 events of a queue at most.

        Args:
            limit: How many at most; None for all. They are in memory together.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            A list. It is read in chunks, so dead letters that are moved meanwhile may be missing.

        Raises:
            ServerTooOldError: It is on a released okq, which has none.
            TypeError, ValueError: An argument is invalid.
            PressureError: As for `statistics`.

        Cancelled, nothing has changed.

        On this kind:
            EventQueue with an `okq://` address: those of `EventQueue`s on the server's Redis.
            TaskQueue: the tasks that have failed.
        """
        return await self._dead_letters(limit)

    async def _peeked(self, newest: bool) -> T:
        self.check()
        message = await self._peek(newest)
        if message is None:
            raise QueueEmptyError(f"the queue {self.name!r} is empty", name=self.name)
        return self._items.decode(message)

    async def _dead_letters(self, limit: int | None, source: str | None = None) -> list[DeadLetter[T]]:
        if limit is not None:
            validation.whole(limit, "limit")
        self.check()
        return await self._letters(limit, source)
