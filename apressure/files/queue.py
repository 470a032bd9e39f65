"""FileQueue: what a program sees of a queue in a directory."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from pathlib import PurePath
from typing import Any, Final, Generic, Literal, TypeVar, Unpack, overload

from apressure import codecs
from apressure.codecs import Codec
from apressure.exceptions import DecodeError, PressureError, StorageError
from apressure.files.administration import Administration
from apressure.files.message import FileMessage, Settler
from apressure.files.options import FileQueueOptions, positive, resolve, visibility

T = TypeVar("T")

Path = str | PurePath

_PORTION: Final = 64
_PORTION_BYTES: Final = 1 << 20
"""How many messages, and how many bytes of them, are published in one go."""


class FileQueue(Administration, Generic[T]):
    """A FIFO queue in a directory, for any number of processes, without a server, in the format of vsqs.

    Whoever receives a message deletes it when it is done with it, or else it comes again when its visibility timeout
    ends: at-least-once. Messages are delivered in the order in which they were published, also after they came again.
    Constructing it does no I/O; the first operation, or `async with`, opens the directory and makes it where it is
    missing, for its owner alone.

    Args:
        path: The queue's directory. It must not go up (`..`), and must not be a symbolic link.
        codec: What items are: None for bytes, `"text"`, `"json"`, `"msgpack"`, a class, or a codec.
        **options: See `FileQueueOptions`.

    Attributes:
        name: The queue's name, which is its directory's.
        path: Its directory.
        capacity: The most messages that may be there; None for any number.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is of no use; the message says why.

    Example:
        >>> async with FileQueue("spool/orders", capacity=1000) as queue:
        ...     message_id = await queue.publish(b"first")
        ...     message = await queue.receive(timeout=5.0)
        ...     await message.ack()
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
        self: FileQueue[Any], path: Path, *, codec: Literal["json", "msgpack"], **options: Unpack[FileQueueOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: FileQueue[T], path: Path, *, codec: Codec[T] | type[T], **options: Unpack[FileQueueOptions]
    ) -> None: ...
    def __init__(
        self, path: Path, *, codec: Codec[Any] | type[Any] | str | None = None, **options: Unpack[FileQueueOptions]
    ) -> None:
        settings = resolve(path, options)
        super().__init__(settings)
        self._codec: Codec[T] = codecs.resolve(codec)
        self._largest = settings.max_message_size
        self._settler = Settler(self.name, self._receiver, self._decode, self._operation)

    async def publish(self, item: T, timeout: float | None = None) -> str:
        """Publish an item, waiting while the queue is full (specification: New).

        Args:
            item: The item; bytes, or what the codec takes.
            timeout: Seconds to wait for room at most; None to wait for ever, 0 for a single try.

        Returns:
            The message's id.

        Raises:
            QueueFullError: The queue stayed full until the timeout. Nothing was published.
            QueueDoesNotExistError: The directory was deleted. Nothing was published.
            StorageError: The file system refused: disk full, read-only, permissions. Nothing was published, unless
                `accepted` is 1: then only the directory could not be brought to the disk.
            TypeError, ValueError: The item cannot be encoded, or is too large. Nothing was published.

        Cancelled while it waits, nothing was published. Cancelled while it writes, it waits until that is done, then
        raises: the item is wholly in.
        """
        return (await self._publish([self._encode(item)], self._deadline(timeout)))[0]

    async def publish_many(self, items: Iterable[T] | AsyncIterable[T], timeout: float | None = None) -> list[str]:
        """Publish any number of items in order, as many in one go as there is room for.

        Args:
            items: An iterable or an asynchronous one; it is read as far as the queue takes its items, and no further
                than a portion of 64 ahead.
            timeout: Seconds for all of them.

        Returns:
            The messages' ids.

        Raises:
            QueueFullError: The timeout passed.
            QueueDoesNotExistError, StorageError, TypeError, ValueError: As for `publish`.
                `accepted` of a PressureError, and a note on any error, say how many were published before.

        Cancelled, the first of the items are in the queue, in order, and the others are not.
        """
        if isinstance(items, (str, bytes, bytearray, memoryview)):
            raise TypeError(
                f"publish_many takes an iterable of items, not {type(items).__name__}: use publish for one item"
            )
        deadline = self._deadline(timeout)
        done: list[str] = []
        try:
            if isinstance(items, AsyncIterable):
                async for item in items:
                    await self._publish([self._encode(item)], deadline, done)
            else:
                for portion in self._portions(items):
                    await self._publish(portion, deadline, done)
        except Exception as error:
            if isinstance(error, PressureError):
                error.accepted = len(done) + (error.accepted if isinstance(error, StorageError) else 0)
            if count := getattr(error, "accepted", len(done)):
                error.add_note(f"{count} items were published before")
            raise
        return done

    async def receive(self, timeout: float | None = None, visibility_timeout: float | None = None) -> FileMessage[T]:
        """Receive the oldest message that waits, waiting while there is none (specification: Ready).

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            visibility_timeout: Seconds for which nobody else gets it; None for what the queue has.

        Raises:
            QueueEmptyError: There was none until the timeout.
            QueueDoesNotExistError: The directory was deleted.
            StorageError: The file system refused, or the message is too large. It is where it was.

        Cancelled, nothing was taken, or it has been given back.
        """
        return (await self._receive(1, timeout, visibility_timeout))[0]

    async def receive_many(
        self, max_items: int, timeout: float | None = None, visibility_timeout: float | None = None
    ) -> list[FileMessage[T]]:
        """Receive one to max_items messages, as many as there are, waiting while there is none.

        Raises:
            TypeError, ValueError: max_items is not a positive whole number.
            PressureError: As for `receive`.

        Cancelled, nothing was taken, or it has been given back.
        """
        positive(max_items, "max_items")
        return await self._receive(max_items, timeout, visibility_timeout)

    def __aiter__(self) -> AsyncIterator[FileMessage[T]]:
        """Receive messages for ever, each to be acknowledged or deleted by hand."""
        return self

    async def __anext__(self) -> FileMessage[T]:
        return await self.receive()

    def _decode(self, data: bytes) -> T:
        """Decode a message, or raise DecodeError with it."""
        try:
            return self._codec.decode(data)
        except Exception as error:
            raise DecodeError(
                f"a message of the queue {self.name!r} ({len(data)} bytes) cannot be decoded: {error}",
                name=self.name,
                raw=data,
            ) from error

    async def _publish(self, portion: list[bytes], deadline: float | None, done: list[str] | None = None) -> list[str]:
        done = [] if done is None else done
        ticket = self._waits.publishers.ticket()
        first = 0
        with self._operation():
            await self._breathe()
            while first < len(portion):
                ids = await self._publisher.publish(portion[first:] if first else portion)
                first += len(ids)
                done += ids
                if not ids:
                    await self._wait(self._waits.publishers, ticket, deadline)
        return done

    async def _receive(self, most: int, timeout: float | None, seconds: float | None) -> list[FileMessage[T]]:
        deadline = self._deadline(timeout)
        if seconds is not None:
            visibility(seconds)
        ticket = self._waits.receivers.ticket()
        with self._operation():
            await self._breathe()
            while not (got := await self._receiver.take(most, seconds)):
                await self._wait(self._waits.receivers, ticket, deadline)
            if self._closed:  # nobody could settle them any more
                await self._receiver.give_back(got)
                self._check()
        return [FileMessage(self._settler, one) for one in got]

    def _encode(self, item: T) -> bytes:
        message = self._codec.encode(item)
        if len(message) > self._largest:
            raise ValueError(
                f"the message has {len(message)} bytes; at most {self._largest} are allowed (max_message_size)"
            )
        return message

    def _portions(self, items: Iterable[T]) -> Iterator[list[bytes]]:
        portion: list[bytes] = []
        size = 0
        for item in items:
            portion.append(self._encode(item))
            size += len(portion[-1])
            if len(portion) >= _PORTION or size >= _PORTION_BYTES:
                yield portion
                portion, size = [], 0
        if portion:
            yield portion
