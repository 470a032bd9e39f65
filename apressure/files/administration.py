"""What is behind the operations on a `FileQueue` as a whole, and those that only it has."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import ClassVar, Generic, NamedTuple, TypeVar

from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.settle import note_sent
from apressure.core.letters import LettersBeside
from apressure.dead_letters import DeadLetter
from apressure.exceptions import QueueDoesNotExistError
from apressure.files.core import Core
from apressure.files.letters import Revived, oldest_first, read_letters
from apressure.files.statistics import FileQueueStatistics
from apressure.files.steps import QueueSteps
from apressure.files.storage import names
from apressure.files.storage.state import MAX_BOUND

T = TypeVar("T")


class Status(NamedTuple):
    """What a look at the directory tells. A queue that was deleted when it had been closed counts as closed."""

    closed: bool
    waiting: int
    exists: bool = True
    created: bool = True


class Administration(LettersBeside[T], Core[T], Generic[T]):
    """The part of `FileQueue` that is about the queue as a whole."""

    _max_bound: ClassVar[int] = MAX_BOUND

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

    # What is behind the operations of every kind.

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
        with self._operation(), self._dead(source) as dead:
            return await self._store.worker.in_thread(read_letters, dead, limit, self._items.decode)

    @contextlib.asynccontextmanager
    async def _revival(
        self, max_items: int | None, ids: Iterable[str] | None, source: str | None
    ) -> AsyncIterator[Revived]:
        chosen = None if ids is None else dict.fromkeys(ids)
        with self._operation(), self._dead(source) as dead:
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
