"""FileQueue: a queue in a directory, as a program sees it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Iterable
from pathlib import PurePath
from typing import Any, Final, Generic, Literal, TypeVar, Unpack, overload

from apressure import validation
from apressure.codecs import Codec, UntypedCodec, codec_for
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.getting import Getting
from apressure.concurrency.handover import note_taken
from apressure.core.leases.arguments import max_hold_of
from apressure.dead_letters import DeadLetter
from apressure.exceptions import QueueEmptyError, StorageError
from apressure.files.administration import Administration
from apressure.files.delivery import FileDelivery
from apressure.files.letters import read_letters
from apressure.files.options import FileQueueOptions, check_lease, settings_from
from apressure.files.roles import FileConsumer, FileProducer
from apressure.files.storage import names
from apressure.items import Items, Progress

T = TypeVar("T")

Path = str | PurePath

_CHUNK: Final = 64
"""The most messages that are put in one go."""

_PREFETCH: Final = 1
"""A message that waits in a consumer's hands could be in another's."""


class FileQueue(Administration, Getting[T], Generic[T]):
    """A FIFO queue in a directory, for any number of processes, without a server, in the format of vsqs.

    A message that is not acknowledged comes again when its lease ends: at-least-once. Messages are delivered in the
    order in which they were put, also when they come again. Constructing it does no I/O. `create` makes the queue with
    a bound; without it, the first put or receive makes the directory, for its owner only.

    Args:
        path: The queue's directory. It must not go up (`..`), and must not be a symbolic link.
        codec: What items are: None for bytes, `"text"`, `"json"`, `"msgpack"`, a class or pydantic model, or a codec.
        **options: See `FileQueueOptions`.

    Attributes:
        name: The queue's name, which is its directory's name.
        path: Its directory.
        max_attempts: How often a message is delivered at most; None for no limit.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is invalid; the message says why.

    Example:
        >>> async with FileQueue("spool/orders") as queue:
        ...     await queue.create(bound=1000, exist_ok=True)
        ...     await queue.put(b"first")
        ...     delivery = await queue.receive(timeout=5.0)
        ...     await delivery.ack()
    """

    @overload
    def __init__(
        self: FileQueue[bytes], path: Path, *, codec: Literal["raw"] | None = ..., **options: Unpack[FileQueueOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: FileQueue[str], path: Path, *, codec: Literal["text"], **options: Unpack[FileQueueOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: FileQueue[Any],
        path: Path,
        *,
        codec: UntypedCodec,
        **options: Unpack[FileQueueOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: FileQueue[T], path: Path, *, codec: Codec[T] | type[T], **options: Unpack[FileQueueOptions]
    ) -> None: ...
    def __init__(
        self, path: Path, *, codec: Codec[Any] | type[Any] | str | None = None, **options: Unpack[FileQueueOptions]
    ) -> None:
        settings = settings_from(path, options)
        super().__init__(settings)
        self._items: Items[T] = Items(self.name, codec_for(codec), settings.max_message_size)

    @with_deadline()
    async def put(self, item: T, timeout: float | None = None, *, deadline: float | None = None) -> str:
        """Put an item, waiting while the queue is full (specification: New).

        Args:
            item: The item; bytes, or what the codec takes.
            timeout: Seconds to wait for room at most; None to wait for ever, 0 for a single try.
            deadline: Seconds for the whole operation, with waiting for a disk that does not answer; None for no limit.
                Calls of the file system that the event loop makes itself cannot be interrupted: `threads=True` makes
                all of them in a thread.

        Returns:
            The message's id.

        Raises:
            QueueFullError: The queue stayed full until the timeout. Nothing was put.
            QueueClosedError: It is closed. Nothing was put.
            QueueDoesNotExistError: The directory was deleted, or is missing with `auto_create=False`. Nothing was put.
            StorageError: The file system refused: disk full, read-only, permissions. Nothing was put, unless
                `accepted` is 1: then the item is in, but its name may not be on the disk.
            DeadlineError: The deadline passed. Nothing was put, unless it is a DeadlineOutcomeUnknownError: then the
                item may be in the queue, or may be later.
            TypeError, ValueError: The item cannot be encoded, or is too large. Nothing was put.

        Cancelled while it waits, nothing was put. Cancelled while it writes, it raises when the item is in.
        """
        return await self._put([self._items.encode(item)], self._until(timeout), Progress())

    async def put_nowait(self, item: T, *, deadline: float | None = None) -> str:
        """Put an item without waiting for room.

        Returns:
            The message's id.

        Raises:
            QueueFullError: The queue is full. Nothing was put.
            PressureError, TypeError, ValueError: As for `put`.

        Cancelled, the item is in, or nothing was put.
        """
        return await self.put(item, 0, deadline=deadline)

    @with_deadline()
    async def put_many(
        self, items: Iterable[T] | AsyncIterable[T], timeout: float | None = None, *, deadline: float | None = None
    ) -> int:
        """Put any number of items in order, as many in one go as there is room for.

        Args:
            items: An iterable or an asynchronous one; it is read as far as the queue takes its items, and no further
                than a chunk of 64 ahead. A consumer is refused: reading ahead would acknowledge its items.
            timeout: Seconds for all of them.
            deadline: Seconds for the whole operation; see `put`.

        Returns:
            How many were put.

        Raises:
            QueueFullError: The timeout passed.
            QueueClosedError, QueueDoesNotExistError, StorageError, TypeError, ValueError: As for `put`.
                `accepted` of a PressureError, and a note on any error, say how many were put before.

        Cancelled, the first of the items are in the queue, in order, and the others are not.
        """
        until = self._until(timeout)

        def put(chunk: list[bytes], progress: Progress) -> Awaitable[object]:
            return self._put(chunk, until, progress)

        return await self._items.put_chunks(items, put, _CHUNK, ahead=False)

    @with_deadline()
    async def receive(
        self, timeout: float | None = None, lease: float | None = None, *, deadline: float | None = None
    ) -> FileDelivery[T]:
        """Receive the oldest message that waits, waiting while there is none (specification: Ready).

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            lease: Seconds for which no other consumer gets it; None for the queue's `lease`. Only
                `FileDelivery.extend` renews it.
            deadline: Seconds for the whole operation; see `put`.

        Raises:
            QueueEmptyError: There was none until the timeout.
            QueueClosedError: The queue is closed, and none waits. A message in flight may still come back: then the
                next `receive` gets it.
            QueueDoesNotExistError: The directory was deleted, or is missing with `auto_create=False`.
            StorageError: The file system refused, or the message is too large, does not fit into memory, or is a file
                with another name elsewhere. It stays where it is. With `max_attempts`, one that is too large counts as
                delivered, and moves to the dead-letter queue after so many tries.
            TypeError, ValueError: An argument is invalid, or the clock is wrong. Nothing was taken.

        Cancelled, nothing was taken, or it has been given back.
        """
        return FileDelivery(self, (await self._take(1, timeout, lease))[0])

    @with_deadline()
    async def receive_many(
        self, max_items: int, timeout: float | None = None, lease: float | None = None, *, deadline: float | None = None
    ) -> list[FileDelivery[T]]:
        """Receive one to max_items messages, as many as there are, waiting while there is none.

        Raises:
            TypeError, ValueError: max_items is not a positive whole number.
            PressureError: As for `receive`.

        Cancelled, nothing was taken, or it has been given back.
        """
        validation.whole(max_items, "max_items")
        return [FileDelivery(self, got) for got in await self._take(max_items, timeout, lease)]

    @with_deadline()
    async def get_many(self, max_items: int, timeout: float | None = None, *, deadline: float | None = None) -> list[T]:
        """Get one to max_items items, as many as there are, waiting while there is none: at-most-once.

        The messages are deleted before their items are returned.

        Args:
            max_items: How many at most.
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            deadline: Seconds for the whole operation; see `put`.

        Raises:
            QueueEmptyError: There was none until the timeout.
            DecodeError: The first item cannot be decoded. The messages behind it have been given back.
            TypeError, ValueError: An argument is invalid.
            PressureError: As for `receive`.

        Cancelled while it waits, nothing was taken. Cancelled while it deletes messages, it puts them back, first in
        line, then raises. Consumers of a closed queue may have ended by then.
        """
        validation.whole(max_items, "max_items")
        while True:
            got = await self._take(max_items, timeout, None)
            items, broken = self._items.decode_first([one.data for one in got])
            taken = got[: max(1, len(items))]  # an item that cannot be decoded is in the error
            with self._operation():
                done = await self._receiver.take_for_good(taken, got[len(taken) :])
            if done:
                note_taken(lambda done=done: self._receiver.restore(done))  # type: ignore[misc]
            if done and broken is not None:
                raise broken
            if done:  # otherwise their leases have ended already, and others get them
                keys = {one.key for one in done}
                return [item for item, one in zip(items, taken, strict=True) if one.key in keys]

    @with_deadline(reads=True)
    async def dead_letters(
        self, limit: int | None = 100, source: str | None = None, *, deadline: float | None = None
    ) -> list[DeadLetter[T]]:
        """Return this queue's dead letters, the oldest first, with the reason of each. It moves nothing.

        A reason is the last error of the message (what a handler of `serve` or `pipe` or the body of `consumer` raised,
        or what was given to `nack`), its attempts, and when it was moved. It is in a small file beside the message.
        Where that is missing, because another program moved the message or its process was killed meanwhile,
        `attempts`, `error` and `when` are None.

        Args:
            limit: How many at most; None for all. They are in memory together.
            source: The dead-letter queue's name; None for this queue's own.
            deadline: Seconds for the whole operation; see `put`.

        Returns:
            A list; empty where there is no dead-letter queue. Those that are in flight there are left out. One that is
            too large or cannot be read has no bytes in `raw`, and its `item` raises StorageError.

        Raises:
            TypeError, ValueError: An argument is invalid.
            StorageError: The directory cannot be read.

        Cancelled, nothing has changed.
        """
        if limit is not None:
            validation.whole(limit, "limit")
        name = self._store.settings.dead_letters if source is None else names.check_queue_name(source)
        with self._operation(), self._beside(name) as dead:
            return await self._store.worker.in_thread(read_letters, dead, limit, self._items.decode)

    def producer(self, close: bool = True) -> FileProducer[T]:
        """Return the producing end of the queue, for `async with`.

        Args:
            close: Close the queue at the end of the block, unless it raises. Producers that share a queue pass False.
        """
        return FileProducer(self, close)

    @overload
    def consumer(
        self, ack: Literal["auto"] = ..., delete: bool = ..., prefetch: int | None = ..., lease: float | None = ...,
        timeout: float | None = ..., max_hold: float | None = ..., shared: bool = ...,
    ) -> FileConsumer[T]: ...  # fmt: skip
    @overload
    def consumer(
        self, ack: Literal["manual"], delete: bool = ..., prefetch: int | None = ..., lease: float | None = ...,
        timeout: float | None = ..., max_hold: float | None = ..., shared: bool = ...,
    ) -> FileConsumer[FileDelivery[T]]: ...  # fmt: skip
    def consumer(
        self,
        ack: Literal["auto", "manual"] = "auto",
        delete: bool = False,
        prefetch: int | None = None,
        lease: float | None = None,
        timeout: float | None = None,
        max_hold: float | None = None,
        shared: bool = True,
    ) -> FileConsumer[Any]:
        """Return a consuming end of the queue, for `async with` and `async for`: at-least-once, and one of several.

        Args:
            ack: `"auto"`: an item is acknowledged when the loop asks for the next one, and at the end of the block
                unless it raises. `"manual"`: the loop gets deliveries, to be acknowledged by hand.
            delete: Delete the queue at the end of the block, unless it raises, if the queue was closed and everything
                was acknowledged.
            prefetch: How many messages to receive at a time; None for 1, which is fair to other consumers.
            lease: Seconds after which other consumers get the messages if this process dies; a timer renews it. None
                for the queue's `lease`.
            timeout: As for `AsyncQueue.consumer`, which waits for the role. Here nothing waits.
            max_hold: Seconds after which the leases of a handler that is stuck are given up: nothing was handed out
                meanwhile. None for an hour.
            shared: Always True: any number of consumers share a directory. False is refused.
        """
        validation.shared(shared, "a FileQueue")
        validation.consumer(ack, prefetch, timeout)
        if lease is not None:
            check_lease(lease, none=True)
        seconds = self._store.settings.lease if lease is None else lease
        most = _PREFETCH if prefetch is None else prefetch
        return FileConsumer(self, ack == "manual", delete, most, seconds, max_hold_of(max_hold))

    @with_deadline(reads=True)
    async def peek(self, *, deadline: float | None = None) -> T:
        """Return the item that waits first, without taking it.

        Raises:
            QueueEmptyError: No message waits.
            QueueDoesNotExistError, StorageError, DecodeError: As for `receive`.
        """
        return await self._peek(newest=False)

    @with_deadline(reads=True)
    async def peek_newest(self, *, deadline: float | None = None) -> T:
        """Return the item that waits last, without taking it.

        Raises:
            QueueEmptyError, QueueDoesNotExistError, StorageError, DecodeError: As for `peek`.
        """
        return await self._peek(newest=True)

    async def _peek(self, newest: bool) -> T:
        with self._operation():
            data = await self._receiver.peek(newest)
        if data is None:
            raise QueueEmptyError(f"the queue {self.name!r} is empty", name=self.name)
        return self._items.decode(data)

    async def _put(self, chunk: list[bytes], until: float | None, progress: Progress) -> str:
        """Put a chunk, waiting for room; returns the id of its last message."""
        ticket = self._waits.ticket()
        ids: list[str] = []
        with self._operation():
            await self._breathe()
            await self._make()
            while chunk:
                try:
                    ids = await self._putter.put(chunk)
                except StorageError as error:
                    progress.accepted += error.accepted
                    raise
                progress.accepted += len(ids)
                if not ids:
                    await self._wait(self._waits.putters, ticket, until)
                chunk = chunk[len(ids) :]
        return ids[-1]
