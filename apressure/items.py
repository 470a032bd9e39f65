"""Items become messages, and messages items: the codec, the limit on their size, and chunks for `put_many`."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from apressure import validation
from apressure.codecs import Codec, RawCodec
from apressure.concurrency.settle import telling_accepted
from apressure.exceptions import DecodeError

T = TypeVar("T")

MAX_BYTES: Final = 1 << 20
"""The most bytes in one chunk of several messages."""


class Progress:
    """How far a `put_many` has come.

    Attributes:
        accepted: How many items are in the queue.
    """

    accepted = 0


class Items(Generic[T]):
    """Encodes and decodes the items of one queue.

    Args:
        name: The queue's name, for errors.
        codec: Encodes and decodes items.
        max_size: The most bytes that a message may have.

    Attributes:
        codec: As given.
    """

    def __init__(self, name: str, codec: Codec[T], max_size: int) -> None:
        self._name = name
        self.codec = codec
        self._max_size = max_size
        if isinstance(codec, RawCodec) and type(codec) is RawCodec:  # it takes any message, and each item passes here
            self.decode = codec.decode

    def encode(self, item: T) -> bytes:
        """Encode an item.

        Raises:
            TypeError, ValueError: The codec does not take the item, or the message is too large.
        """
        message = self.codec.encode(item)
        if len(message) > self._max_size:
            raise self._too_large(message)
        return message

    def decode(self, message: bytes) -> T:
        """Decode a message.

        Raises:
            DecodeError: The codec cannot decode it.
        """
        try:
            return self.codec.decode(message)
        except Exception as error:
            raise self._undecodable(message, error) from error

    def decode_first(self, messages: Sequence[bytes]) -> tuple[list[T], DecodeError | None]:
        """Decode messages up to one that cannot be decoded.

        Returns:
            The items; and the error, if the very first message cannot be decoded.
        """
        items: list[T] = []
        try:
            self.decode_into(items, messages)
        except DecodeError as error:
            return items, None if items else error
        return items, None

    def decode_into(self, items: list[T], messages: Sequence[bytes]) -> None:
        """Decode messages and append them to an empty list.

        Raises:
            DecodeError: The codec cannot decode one of them. Those before it are in the list.
        """
        decode = self.codec.decode
        try:
            items.extend(decode(message) for message in messages)  # `map` would take a StopIteration for the end
        except Exception as error:
            raise self._undecodable(messages[len(items)], error) from error

    async def put_chunks(
        self,
        items: Iterable[T] | AsyncIterable[T],
        put: Callable[[list[bytes], Progress], Awaitable[object]],
        most: int,
        ahead: bool,
    ) -> int:
        """Encode and put items in chunks, in order: `put_many` of every kind of queue.

        Args:
            items: The items; not a consumer.
            put: Puts a chunk, and counts in the progress what is in the queue, also when it fails or is cancelled.
            most: The most messages in a chunk.
            ahead: Read an asynchronous iterable while a chunk is being put. Otherwise each item is put before the next
                one is read.

        Returns:
            How many items were put.

        Raises:
            TypeError, ValueError: The items are no iterable of items, or one cannot be encoded, or is too large.
            Exception: What the iterable or `put` raises. A note says how many items were put before, and so does
                `accepted` of a PressureError.

        Cancelled, the first of the items are in the queue, in order, and the others are not.
        """
        validation.batch(items, "put_many", "put")
        progress = Progress()
        try:
            with telling_accepted(lambda: progress.accepted):  # also where the iterable raises
                if not isinstance(items, AsyncIterable):
                    for chunk in self._chunks(items, most):
                        await put(chunk, progress)
                elif ahead:
                    await self._stream(items, most, lambda chunk: put(chunk, progress))
                else:
                    async for item in items:
                        await put([self.encode(item)], progress)
        except Exception as error:
            if progress.accepted:
                error.add_note(f"{progress.accepted} items were put before")
            raise
        return progress.accepted

    def _chunks(self, items: Iterable[T], most: int) -> Iterator[list[bytes]]:
        encode, largest = self.codec.encode, self._max_size
        chunk: list[bytes] = []
        size = 0
        for item in items:
            message = encode(item)
            length = len(message)
            if length > largest:  # not `self.encode`: this runs for every item of a large batch
                raise self._too_large(message)
            if chunk and size + length > MAX_BYTES:
                yield chunk
                chunk, size = [], 0
            chunk.append(message)
            size += length
            if size >= MAX_BYTES or len(chunk) >= most:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    async def _stream(
        self, items: AsyncIterable[T], most: int, put: Callable[[list[bytes]], Awaitable[object]]
    ) -> None:
        """Put items as they come: those that arrive while one chunk is being put are the next chunk."""
        gathered: list[bytes] = []
        size = 0
        sender: asyncio.Task[None] | None = None
        before = _cancellations()

        async def send() -> None:
            nonlocal gathered, size
            while gathered:
                chunk, gathered, size = gathered, [], 0
                await put(chunk)

        try:
            # A group: a put that fails must end the wait for an item that may never come.
            async with asyncio.TaskGroup() as group:
                async for item in items:
                    gathered.append(self.encode(item))
                    size += len(gathered[-1])
                    if sender is None or sender.done():
                        sender = group.create_task(send())
                    elif len(gathered) >= most or size >= MAX_BYTES:
                        await sender
                if sender is not None:
                    # Before Python 3.13, a group whose task fails while the group itself waits for it leaves a
                    # cancellation behind, which nobody asked for.
                    await asyncio.wait((sender,))
        except BaseExceptionGroup as errors:
            if _cancellations() > before:
                # A group forgets a cancellation that comes together with a failure. Since Python 3.13 it cancels again,
                # during the first sleep. anyio cancels during the second, with the exception that its scope knows.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
                await asyncio.sleep(0.001)
                raise asyncio.CancelledError from errors.exceptions[0]
            raise errors.exceptions[0] from None

    def _undecodable(self, message: bytes, error: Exception) -> DecodeError:
        return DecodeError(
            f"a message of the queue {self._name!r} ({len(message)} bytes) cannot be decoded: {error}. Its producer "
            "may use another codec",
            name=self._name,
            raw=message,
        )

    def _too_large(self, message: bytes) -> ValueError:
        return ValueError(
            f"the message has {len(message)} bytes; at most {self._max_size} are allowed (max_message_size)"
        )


def _cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def new_id() -> bytes:
    """Return a random id, a UUID of version 4."""
    return _id_of(os.urandom(16))


def new_ids(count: int) -> list[bytes]:
    """Return so many random ids, which is faster than one by one."""
    random = os.urandom(16 * count)
    return [_id_of(random[begin : begin + 16]) for begin in range(0, 16 * count, 16)]


def _id_of(random: bytes) -> bytes:
    raw, variant = random.hex(), "89ab"[random[8] >> 6]
    return f"{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-{variant}{raw[17:20]}-{raw[20:]}".encode()
