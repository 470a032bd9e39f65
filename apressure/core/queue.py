"""The queue as a program sees it, for every kind: putting, receiving, getting, looking."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, Unpack, overload

from apressure import validation
from apressure.concurrency.deadline import with_deadline, within
from apressure.core.browsing import Browsing
from apressure.core.consumer import ConsumerOptions, QueueConsumer
from apressure.core.delivery import LeasedDelivery
from apressure.core.draining import Drainable
from apressure.core.due import Due, ManyTerms, PutTerms, due_of
from apressure.core.history import History
from apressure.core.letters import Letters
from apressure.core.producer import QueueProducer
from apressure.core.promoting import Promoting
from apressure.core.requests import Requests
from apressure.core.schedules import Schedules
from apressure.dead_letters import DeadLetter
from apressure.exceptions import QueueClosedError, QueueEmptyError
from apressure.items import Items, Progress

T = TypeVar("T")
D = TypeVar("D", bound=LeasedDelivery[Any])
D_any = TypeVar("D_any")
Put = TypeVar("Put")


class AnyQueue(
    Letters[T], Schedules[T], Requests[T], Browsing[T], Promoting, History, Drainable, Generic[T, D_any, Put]
):
    """A queue as a program sees it, whatever its consumers are.

    `T` is what items are, `D_any` what deliveries are, and `Put` what `put` returns: an id, or None.
    """

    _put_most: ClassVar[int]
    """The most messages that one step puts."""

    _reads_ahead: ClassVar[bool] = True
    """`put_many` reads an asynchronous iterable while a chunk is being put."""

    _unable_to_expire: ClassVar[str] = ""
    """What this kind of queue is called in the error, if its messages cannot expire."""

    _items: Items[T]

    # What a kind of queue says.

    async def _put_one(self, message: bytes, timeout: float | None, due: Due | None) -> Put:
        """Put a message, waiting for room; returns its id. A kind whose `put` takes more arguments has its own."""
        raise NotImplementedError

    @abstractmethod
    async def _put_chunk(self, chunk: list[bytes], timeout: float | None, progress: Progress, due: Due | None) -> None:
        """Put messages in order, waiting for room; the progress counts what is in the queue, also at a failure."""

    @abstractmethod
    async def _receive(self, most: int, timeout: float | None, lease: float | None) -> list[D_any]:
        """Take one to `most` messages, waiting while there is none. A lease of None is this kind's default."""

    @abstractmethod
    async def _get(self, most: int, timeout: float | None) -> list[T]:
        """Take one to `most` items for good, waiting while there is none."""

    @abstractmethod
    async def _peek(self, newest: bool) -> bytes | None:
        """Return the message that is next, or the one that was put last; None if none waits."""

    async def put_letter(self, letter: DeadLetter[Any], timeout: float | None) -> bool:
        await self._put_chunk([letter.raw], timeout, Progress(), None)
        return True

    def _due_of(self, terms: PutTerms | ManyTerms) -> Due | None:
        return due_of(terms, self.name, self._unable_to_expire, self._keyless)

    async def prepare(self) -> None:
        """Make sure, at the beginning of a producer's block, that the object can be used."""
        self.check()

    # What programs call.

    def __aiter__(self) -> Self:
        """Get items until the queue is closed and drained: at-most-once. `consumer` is at-least-once."""
        return self

    async def __anext__(self) -> T:
        try:
            return await self.get()
        except QueueClosedError:
            raise StopAsyncIteration from None

    async def put(
        self, item: T, timeout: float | None = None, *, deadline: float | None = None, **terms: Unpack[PutTerms]
    ) -> Put:
        """Put an item, waiting while the queue is full.

        With `delay=` or `at=`, it is delayed: consumers get it when it is due, by the server's clock, behind what waits
        then. Until then it counts towards the bound, and a closed queue waits for it: `async for` ends after it.

        Args:
            item: The item; bytes, or what the codec takes. For a `TaskQueue`, the parameters of the task.
            timeout: Seconds to wait for room at most; None to wait for ever, 0 for a single try.
            delay: Seconds after which it is due, from when the queue has accepted it; at most ten years.
            at: When it is due, with a time zone. A time that has passed is now.
            expires: Seconds after which it is no longer delivered, from when the queue has accepted it. It becomes
                a dead letter then, with the error `expired`, when a consumer comes upon it. What is in hand is not
                taken back. At most ten years.
            key: What the item is about, such as a customer: the messages of a key are handled one at a time, in order,
                or as `set_key` says. Up to 512 bytes.
            cost: For how many messages it counts against the rate of the queue (`set_rate`), such as the tokens that it
                uses: a whole number of up to a billion. See `spend`, too.
            dedup_id: A name for what the item is about, up to 1,024 bytes. A message that is put with the same one is
                a repeat, and is refused.
            dedup_window: Seconds for which repeats are refused, from when the queue has accepted the message; at most
                ten years. None refuses them until the message is done: acknowledged, a dead letter, or deleted.
            replace: Put it in the place of the message with the same `dedup_id`, if that waits or is delayed. One that
                is in flight or done is not replaced: then it is put as a new one. Not together with `dedup_window`.
            deadline: Seconds for the whole operation, with connecting, repeating and settling; None for no limit. Use
                it in request handlers: it also holds when the server, or the disk, is down or frozen.

        Returns:
            The message's id; with `replace`, of the one that it has replaced. An AsyncQueue has none: None.

        Raises:
            QueueFullError: The queue stayed full until the timeout. Nothing was put.
            QueueInUseError: Another client held the producer role of an AsyncQueue until the timeout. Nothing was put.
            DuplicateMessageError: It is a repeat. Nothing was put.
            UnsupportedError: A FileQueue, or a server with an `okq://` address, knows no repeats, no keys and no costs;
                an AsyncQueue knows no keys and no costs. Nothing was put.
            QueueClosedError: It is closed. Nothing was put.
            QueueDoesNotExistError: It was created and deleted. An AsyncQueue must exist. Nothing was put.
            OutcomeUnknownError: The connection broke and could not be restored in time.
            StorageError: The file system refused: disk full, read-only, permissions. Nothing was put, unless
                `accepted` is 1: then the item is in, but its name may not be on the disk.
            DeadlineError: The deadline passed. Nothing was put, unless it is a DeadlineOutcomeUnknownError: then the
                item was sent, and may still be put.
            TypeError, ValueError: The item cannot be encoded, or is too large. Nothing was put.

        Cancelled while it waits, nothing was put. Cancelled while the step is on its way, it waits for the answer,
        then raises: the item is in the queue, or not. `timeout=` gives a certain answer.

        On this kind:
            AsyncQueue: Concurrent puts of a client travel together; each task's puts keep their order. Producers that
                wait for room are not served first come, first served. It keeps nothing beside a message: `expires=` and
                `replace=` are refused, and `dedup_id=` needs a `dedup_window=`.
            TaskQueue: The specification calls it Submission, and `enqueue` is another name of it.
            FileQueue: The specification calls it New. Calls of the file system that the event loop makes itself cannot
                be interrupted by a deadline: `threads=True` makes all of them in a thread. The id is a place in line,
                so a delayed message has another one when it is due.
        """
        if deadline is not None:
            put = self.put(item, timeout, **terms)
            return await within(deadline, self.name, put)
        return await self._put_one(self._items.encode(item), timeout, self._due_of(terms) if terms else None)

    async def put_nowait(self, item: T, *, deadline: float | None = None, **terms: Unpack[PutTerms]) -> Put:
        """Put an item without waiting for room; the other arguments are those of `put`.

        Returns:
            What `put` returns.

        Raises:
            QueueFullError: The queue is full. Nothing was put.
            PressureError, TypeError, ValueError: As for `put`.

        Cancelled, the item is in the queue, or not.
        """
        return await self.put(item, 0, deadline=deadline, **terms)

    @with_deadline()
    async def put_many(
        self,
        items: Iterable[T] | AsyncIterable[T],
        timeout: float | None = None,
        *,
        deadline: float | None = None,
        **terms: Unpack[ManyTerms],
    ) -> int:
        """Put any number of items in order, with random ids, as many in a step as there is room for.

        Args:
            items: An iterable or an asynchronous one. It is read ahead by up to a chunk (2,000 items, of tasks 1,000,
                of a `FileQueue` 64, or 1 MiB), and items that were read and not put are lost when this fails. So a
                generator must not acknowledge or delete an item at its source when the next one is asked for, and a
                consumer is refused. A `FileQueue` puts each item of an asynchronous iterable before it reads the next
                one.
            timeout: Seconds for all of them.
            delay: Seconds after which each is due, from when the queue has accepted it; see `put`.
            at: When all of them are due.
            expires: Seconds after which each is no longer delivered; see `put`.
            key: The key of all of them; see `put`.
            cost: What each of them costs; see `put`.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            How many were put.

        Raises:
            QueueFullError, QueueInUseError: The timeout passed.
            QueueClosedError, QueueDoesNotExistError, OutcomeUnknownError, StorageError, TypeError, ValueError: As for
                `put`. A note on any error says how many were put before, and so does `accepted` of a PressureError. On
                a released okq, up to 99 items behind those may be in the queue, too: it takes one in each command.

        Cancelled, the first of the items are in the queue, in order, and the others are not.
        """
        due = self._due_of(terms)

        async def put(chunk: list[bytes], timeout: float | None, progress: Progress) -> None:
            await self._put_chunk(chunk, timeout, progress, due)

        return await self.put_chunks(items, timeout, put)

    async def receive(
        self, timeout: float | None = None, lease: float | None = None, *, deadline: float | None = None
    ) -> D_any:
        """Receive the message that is next, to be acknowledged, waiting while there is none.

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            lease: Seconds for which no other consumer gets it; None for 15, for the queue's own of a `TaskQueue` or
                `FileQueue`, or for 30 on an okq server. Only the delivery's `extend` renews it: `consumer` renews by
                itself, and so does an AsyncQueue. A released okq rounds it up to whole seconds, and cannot extend it.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            QueueEmptyError: There was none until the timeout.
            QueueInUseError: Another client held the consumer role of an AsyncQueue until the timeout.
            LeaseLostError: The lease of earlier deliveries of an AsyncQueue has ended; they were given back. Receive
                again.
            QueueClosedError: The queue is closed, and none waits; of tasks, none is scheduled either. A message in
                flight may still come back: then the next `receive` gets it.
            QueueDoesNotExistError: It was created and deleted. An AsyncQueue must exist.
            ServerError, ServerUnavailableError: The server refused, or cannot be reached. Messages that were claimed
                come again when their lease ends.
            StorageError: The file system refused, or the message is too large, does not fit into memory, or is a file
                with another name elsewhere. It stays where it is. With `max_attempts`, one that is too large counts as
                delivered, and becomes a dead letter after so many tries.
            TypeError, ValueError: An argument is invalid, or the clock is wrong. Nothing was taken.

        Cancelled, nothing was taken, or it has been given back.

        On this kind:
            AsyncQueue: The consumer role stays with this client until everything that it received is settled. All that
                it has in flight shares one lease, which a thread renews while the client lives, also while the event
                loop is blocked. When the client dies, or stands still for longer than the lease, the items come again,
                first in line. With `scripting=False`, it raises ScriptingRefusedError.
            EventQueue: The specification calls it QRPOP, behind QREGISTER and QNOTIFY. TaskQueue: Node Task Pop.
            FileQueue: The specification calls it Ready.
        """
        return (await self.receive_many(1, timeout, lease, deadline=deadline))[0]

    @with_deadline()
    async def receive_many(
        self, max_items: int, timeout: float | None = None, lease: float | None = None, *, deadline: float | None = None
    ) -> list[D_any]:
        """Receive one to max_items messages, as many as there are, waiting while there is none.

        Very many or large messages come in chunks: the list may be shorter than the queue.

        Raises:
            TypeError, ValueError: max_items is not a positive whole number.
            PressureError: As for `receive`.

        Cancelled, nothing was taken, or it has been given back, in order.
        """
        validation.whole(max_items, "max_items")
        return await self._receive(max_items, timeout, lease)

    async def get(self, timeout: float | None = None, *, deadline: float | None = None) -> T:
        """Get an item, waiting while the queue is empty: at-most-once.

        The item is acknowledged before it is returned. `receive` and `consumer` lose none.

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            QueueEmptyError: The queue stayed empty until the timeout.
            QueueInUseError: Another client held the consumer role of an AsyncQueue until the timeout.
            QueueClosedError: It is closed, and none waits.
            OutcomeUnknownError: The connection broke after the step was sent: an item may be lost. Tasks keep their
                parameters; see `tasks`.
            DecodeError: The codec cannot decode the item, which is in the error.
            PressureError, TypeError, ValueError: As for `receive`.

        Cancelled while it waits, nothing was taken. Cancelled while it takes an item, it ends that step, puts the item
        back, first in line, then raises. By then, consumers of a closed queue may have ended; on an okq server, a
        closed queue takes nothing back, and the item is lost.

        On this kind:
            AsyncQueue: An item that arrives while clients wait is sent once more to each of them: consider that for
                large items.
            EventQueue: The specification's QRPOP with EX 0. TaskQueue: The task is complete, without a result.
            FileQueue: The message is deleted.
        """
        if deadline is not None:
            return await within(deadline, self.name, self.get(timeout))
        return (await self._get(1, timeout))[0]

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

        Very many or large items come in chunks: the list may be shorter than the queue.

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

    async def put_chunks(
        self,
        items: Iterable[T] | AsyncIterable[T],
        timeout: float | None,
        put: Callable[[list[bytes], float | None, Progress], Awaitable[None]],
    ) -> int:
        """Put items with `put`, which puts a chunk of them; the timeout is for all. See `Items.put_chunks`."""
        validation.timeout(timeout)
        self.check()
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout

        async def put_chunk(chunk: list[bytes], progress: Progress) -> None:
            await put(chunk, None if until is None else max(0.0, until - loop.time()), progress)

        return await self._items.put_chunks(items, put_chunk, self._put_most, self._reads_ahead)

    async def _peeked(self, newest: bool) -> T:
        self.check()
        message = await self._peek(newest)
        if message is None:
            raise QueueEmptyError(f"the queue {self.name!r} is empty", name=self.name)
        return self._items.decode(message)


class Queue(AnyQueue[T, D, str], Generic[T, D]):
    """A queue of any number of competing consumers, with a lease for each delivery."""

    _a_kind: ClassVar[str]
    """What it is, for errors."""

    _most_prefetched: ClassVar[int | None] = None
    """The largest `prefetch`; None for no limit."""

    @abstractmethod
    def _lease_of(self, lease: float | None) -> float:
        """Return a lease in seconds, checked; None for this kind's default."""

    @abstractmethod
    def _consumer(self, options: ConsumerOptions) -> QueueConsumer[Any, D]:
        """Return a consuming end."""

    def producer(self, close: bool = True) -> QueueProducer[T]:
        """Return the producing end of the queue, for `async with`.

        Args:
            close: Close the queue at the end of the block, unless it raises. Producers that share a queue pass False.
        """
        return QueueProducer(self, close)

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
        """Return a consuming end of the queue, for `async with` and `async for`: at-least-once.

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
                meanwhile, or settled by hand. The log has the stacks, and everything in flight goes back. None for an
                hour.
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
        return self._consumer(ConsumerOptions(ack == "manual", delete, prefetch, self._lease_of(lease), max_hold))
