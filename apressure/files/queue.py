"""FileQueue: a queue in a directory, as a program sees it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeVar, Unpack, overload

from apressure.codecs import Codec, UntypedCodec, codec_for
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.handover import note_taken
from apressure.concurrency.settle import note_sent
from apressure.core.leases.arguments import max_hold_of
from apressure.dead_letters import DeadLetter, Requeued
from apressure.exceptions import QueueDoesNotExistError
from apressure.files.consumer import FileConsumer
from apressure.files.core import Core
from apressure.files.delivery import FileDelivery
from apressure.files.letters import Revived, oldest_first, read_letters
from apressure.files.options import FileQueueOptions, check_lease, settings_from
from apressure.files.statistics import FileQueueStatistics
from apressure.files.steps import QueueSteps
from apressure.files.storage import names
from apressure.files.storage.state import MAX_BOUND
from apressure.items import Items, Progress

T = TypeVar("T")

Path = str | PurePath

_PREFETCH: Final = 1
"""A message that waits in a consumer's hands could be in another's."""


class Status(NamedTuple):
    """What a look at the directory tells. A queue that was deleted when it had been closed counts as closed."""

    closed: bool
    waiting: int
    exists: bool = True
    created: bool = True


class FileQueue(Core[T]):
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

    _max_bound: ClassVar[int] = MAX_BOUND
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

    # What only queues in directories have.

    @with_deadline(reads=True)
    async def statistics(self, *, deadline: float | None = None) -> FileQueueStatistics:
        """Return a snapshot of the queue.

        Raises:
            QueueDoesNotExistError: There is no such queue.
            StorageError: The directory cannot be read.
        """
        with self._operation():
            await self._breathe()
            await self._store.refresh()
        index = self._store.index
        oldest, expiry = index.oldest(), index.next_expiry()
        return FileQueueStatistics(
            name=self.name,
            path=str(self.path),
            length=index.waiting,
            bound=self._store.bound,
            closed=index.closed,
            paused=index.paused,
            in_flight=index.in_flight,
            unfinished=len(index.unfinished),
            oldest=None if oldest is None else datetime.fromtimestamp(names.time_of(oldest) / 1e6, UTC),
            next_expiry=None if expiry is None else max(0.0, (expiry[0] - self._store.now) / 1e6),
            put_count=self.put_count,
            received_count=self._receiver.received,
            deleted_count=self._receiver.deleted,
            dead_lettered_count=self._receiver.dead_lettered,
            waiting_putters=len(self._waits.putters),
            waiting_receivers=len(self._waits.receivers) + len(self._waits.drainers),
            notified=self._store.notified,
            blocked=self._waits.blocked.seconds(),
        )

    @property
    def put_count(self) -> int:
        """How many messages this object has put."""
        return self._putter.count

    @with_deadline()
    async def ack(self, message_id: str, *, deadline: float | None = None) -> bool:
        """Acknowledge a message by its id: it is deleted, also if another process has received it, or none has.

        Returns:
            Whether it was there (specification: Deleted).

        Raises:
            TypeError, ValueError: It is not a message's id.
            QueueDoesNotExistError: There is no such queue.
            StorageError: The file system refused.

        Cancelled, it is deleted or not.
        """
        if not isinstance(message_id, str):
            raise TypeError(f"a message's id must be a string, not {type(message_id).__name__}")
        key = names.key_of(message_id)
        if key is None:
            raise ValueError(f"not a message's id: {message_id!r}")
        with self._operation():
            await self._breathe()
            return await self._receiver.delete(key)

    @with_deadline()
    async def give_back_in_flight(self, *, deadline: float | None = None) -> int:
        """Give back every message that is in flight in any process, before its lease ends.

        Returns:
            How many were given back.

        Cancelled, some of them are given back.
        """
        return await self._each(self._receiver.requeue, self._store.index.taken_names)

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
        return await self._dead_letters(limit, source)

    @with_deadline()
    async def requeue(
        self,
        max_items: int | None = None,
        timeout: float | None = None,
        source: str | None = None,
        *,
        ids: Iterable[str] | None = None,
        deadline: float | None = None,
    ) -> Requeued:
        """Move dead letters back to the end of the queue, the oldest first, as for every kind of queue.

        Args:
            max_items: How many at most; None for all.
            timeout: Seconds to wait for room at most.
            source: The dead-letter queue's name, which must exist; None for this queue's own.
            ids: Only these, by the ids that `dead_letters` shows; None for any.
            deadline: Seconds for the whole operation; see `put`.

        Returns:
            How many were moved. Its attribute `not_found` has the ids that no dead letter has (any more).

        Raises:
            QueueFullError, QueueClosedError, TypeError, ValueError: As for every kind of queue.
            QueueDoesNotExistError: There is no such queue, or no queue of the name `source`.
            StorageError: The file system refused.

        Cancelled, each of them is in one of the two queues.
        """
        return await self._requeue(max_items, timeout, ids, source)

    # What is behind the operations of every kind.

    def _consumer(
        self, manual: bool, delete: bool, prefetch: int | None, lease: float | None, max_hold: float | None
    ) -> FileConsumer[Any]:
        if lease is not None:
            check_lease(lease, none=True)
        seconds = self._store.settings.lease if lease is None else lease
        return FileConsumer(self, manual, delete, prefetch or _PREFETCH, seconds, max_hold_of(max_hold))

    # What is behind puts.

    async def _put_one(self, message: bytes, timeout: float | None) -> str:
        return await self._until(functools.partial(self._putter.put, [message], Progress()), timeout)

    async def _put_chunk(self, chunk: list[bytes], timeout: float | None, progress: Progress) -> None:
        await self._until(functools.partial(self._putter.put, chunk, progress), timeout)

    # What is behind receiving and getting.

    async def _receive(self, most: int, timeout: float | None, lease: float | None) -> list[FileDelivery[T]]:
        return [FileDelivery(self, got) for got in await self._take(most, timeout, lease)]

    async def _get(self, most: int, timeout: float | None) -> list[T]:
        while True:
            got = await self._take(most, timeout, None)
            items, broken = self._items.decode_first([one.data for one in got])
            with self._operation():  # an item that cannot be decoded is in the error
                done = await self._receiver.take_for_good(got, max(1, len(items)))
            if done:
                note_taken(lambda done=done: self._receiver.restore(done))  # type: ignore[misc]
            if done and broken is not None:
                raise broken
            if done:  # otherwise their leases have ended already, and others get them
                keys = {one.key for one in done}
                return [item for item, one in zip(items, got, strict=False) if one.key in keys]

    async def _peek(self, newest: bool) -> bytes | None:
        with self._operation():
            return await self._receiver.peek(newest)

    # What is behind the operations on the queue as a whole.

    @property
    def _administration(self) -> QueueSteps:
        return QueueSteps(self._store, self._operation)

    async def _look(self) -> Status:
        with self._operation():
            try:
                await self._store.refresh()
            except QueueDoesNotExistError:
                if not self._store.index.closed:  # it was deleted before it was closed
                    raise
        return Status(self._store.index.closed, self._store.index.waiting)

    async def _exists(self) -> bool:
        with self._operation():
            return await self._store.worker.in_thread(self._store.directory.exists)

    async def _purge(self) -> int:
        return await self._each(self._receiver.remove, self._store.index.waiting_names)

    async def _letters(self, limit: int | None, source: str | None) -> list[DeadLetter[T]]:
        with self._operation(), self._beside(self._source(source)) as dead:
            return await self._store.worker.in_thread(read_letters, dead, limit, self._items.decode)

    @contextlib.asynccontextmanager
    async def _revival(
        self, max_items: int | None, ids: Iterable[str] | None, source: str | None
    ) -> AsyncIterator[Revived]:
        chosen = None if ids is None else dict.fromkeys(ids)
        with self._operation(), self._beside(self._source(source)) as dead:
            await self._store.refresh()
            try:
                found = await self._store.worker.in_thread(oldest_first, dead)
            except QueueDoesNotExistError:
                if source is not None:
                    raise
                found = []  # there are no dead letters yet
            if chosen is not None:
                found = [filename for filename in found if filename in chosen]
            yield Revived(self._putter, dead, found[:max_items][::-1], chosen or {}, self._breathe)

    def _source(self, source: str | None) -> str:
        return self._store.settings.dead_letters if source is None else names.check_queue_name(source)

    async def _each(self, act: Callable[[str], Awaitable[bool | None]], names_of: Callable[[], list[str]]) -> int:
        """Do something with all messages that have these names. Returns with how many of them it was possible."""
        count = 0
        with self._operation():
            await self._store.refresh()
            for filename in names_of():
                await self._breathe()
                count += bool(await act(filename))
                note_sent()
        return count
