"""FileQueue: a queue in a directory, as a program sees it."""

from __future__ import annotations

import functools
from pathlib import PurePath
from typing import Any, ClassVar, Literal, TypeVar, Unpack, overload

from apressure.codecs import Codec, UntypedCodec, codec_for
from apressure.concurrency.handover import note_taken
from apressure.core.browsing import Asked, Found
from apressure.core.consumer import ConsumerOptions
from apressure.core.dedup import knows_no_repeats
from apressure.core.due import Due
from apressure.files.administration import Administration
from apressure.files.consumer import FileConsumer
from apressure.files.delivery import FileDelivery
from apressure.files.options import FileQueueOptions, settings_from
from apressure.items import Items, Progress

T = TypeVar("T")

Path = str | PurePath


class FileQueue(Administration[T]):
    """A FIFO queue in a directory, for any number of processes, without a server, in the format of vsqs.

    A message that is not acknowledged comes again when its lease ends: at-least-once. Messages are delivered in the
    order in which they were put, also when they come again. Constructing it does no I/O. `create` makes the queue with
    a bound; without it, the first put or receive makes the directory, for its owner only.

    A delayed message (`put(delay=)`, `nack(delay=)`) is due by the clock of the machine; on a network file system, by
    that of the machine whose client looks. It then joins the end of the line, and so has another id than before.

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

    _put_most: ClassVar[int] = 64
    _reads_ahead: ClassVar[bool] = False

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
        self: FileQueue[Any], path: Path, *, codec: UntypedCodec, **options: Unpack[FileQueueOptions]
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

    def _lease_of(self, lease: float | None) -> float:
        return self._store.settings.lease_of(lease)

    def _consumer(self, options: ConsumerOptions) -> FileConsumer[Any]:
        return FileConsumer(self, self._receiver, options)

    # What is behind puts.

    async def _put_one(self, message: bytes, timeout: float | None, due: Due | None) -> str:
        if due is not None and due.dedup is not None:
            raise knows_no_repeats(self.name, "a FileQueue has no server that remembers what was put")
        return await self._until(functools.partial(self._putter.put, [message], Progress(), due), timeout)

    async def _put_chunk(self, chunk: list[bytes], timeout: float | None, progress: Progress, due: Due | None) -> None:
        await self._until(functools.partial(self._putter.put, chunk, progress, due), timeout)

    # What is behind receiving and getting.

    async def _receive(self, most: int, timeout: float | None, lease: float | None) -> list[FileDelivery[T]]:
        return self.deliveries(await self.take(most, timeout, self._lease_of(lease)))

    async def _get(self, most: int, timeout: float | None) -> list[T]:
        while True:
            got = await self.take(most, timeout, self._lease_of(None))
            items, broken = self._items.decode_first([one.data for one in got])
            with self._operation():  # an item that cannot be decoded is in the error
                done = await self._receiver.take_for_good(got, max(1, len(items)))
            if done:
                note_taken(functools.partial(self._receiver.restore, done))
            if done and broken is not None:
                raise broken
            if done:  # otherwise their leases have ended already, and others get them
                keys = {one.key for one in done}
                return [item for item, one in zip(items, got, strict=False) if one.key in keys]

    async def _peek(self, newest: bool) -> bytes | None:
        with self._operation():
            return await self._receiver.peek(newest)

    async def _browse(self, asked: Asked) -> Found:
        with self._operation():
            return await self._receiver.browse(asked)
