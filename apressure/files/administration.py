"""Operations on a queue as a whole: creating and closing it, looking at it, and cleaning it up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from apressure import logs, validation
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.settle import note_accepted, note_sent
from apressure.core.statistics import Looking
from apressure.dead_letters import Requeued, checked_ids
from apressure.exceptions import (
    PressureError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
)
from apressure.files.core import Core
from apressure.files.letters import oldest_first
from apressure.files.statistics import FileQueueStatistics
from apressure.files.storage import lifecycle, names
from apressure.files.storage.state import MAX_BOUND


class Administration(Core, Looking):
    """The part of `FileQueue` that knows no items."""

    @with_deadline()
    async def create(self, bound: int = 0, exist_ok: bool = False, *, deadline: float | None = None) -> bool:
        """Create the queue: its directory, with its bound in it, in one step.

        Args:
            bound: The most messages that may be there, those in flight included; 0 for no bound. It holds for each
                `FileQueue` of the directory that was made without `bound=`.
            exist_ok: Leave a queue that exists as it is, with its own bound.
            deadline: Seconds for the whole operation; see `put`.

        Returns:
            Whether the queue is new.

        Raises:
            QueueAlreadyExistsError: It exists, perhaps because a put or a receive made its directory.
            StorageError: The file system refused.
            TypeError, ValueError: The bound is not a whole number of messages.

        Cancelled, the queue is created or not; creating it again with `exist_ok=True` is safe.
        """
        validation.whole(bound, "bound", 0, MAX_BOUND, "messages")
        with self._operation():
            new = await self._store.worker.in_thread(lifecycle.create, self._store.beside(self.name), bound)
            self._auto_create = False  # if another process deletes it, a put does not make it again
            await self._store.reopen()
        if not new and not exist_ok:
            raise QueueAlreadyExistsError(
                f"the queue {self.name!r} exists already: {self.path}. Pass exist_ok=True to use it", name=self.name
            )
        if not new:
            await logs.kept_bound(self, bound)
        return new

    @with_deadline(reads=True)
    async def exists(self, *, deadline: float | None = None) -> bool:
        """Return whether the queue exists. False if another directory has replaced the one that this object opened."""
        with self._operation():
            return await self._store.worker.in_thread(self._store.directory.exists)

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
            blocked=self._blocked.seconds(),
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
    async def close(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Close the *queue*: nothing more can be put, and consumers end when it is drained.

        A put that is under way either returns, and its message is delivered, or raises QueueClosedError. vsqs does not
        know that a queue is closed: what it puts is delivered, too. (`aclose` releases this object's descriptors.)

        Args:
            timeout: As for `AsyncQueue.close`, which waits for the producer role. Here nothing waits.
            deadline: Seconds for the whole operation; see `put`.

        Raises:
            QueueClosedError: It was closed before.
            QueueDoesNotExistError: There is no such queue.
            StorageError: The file system refused.

        Cancelled, the queue is closed or open.
        """
        self._until(timeout)
        with self._operation():
            await self._store.refresh()
            try:
                await self._store.worker.in_thread(self._store.directory.close_queue)
            except FileExistsError:
                raise QueueClosedError(f"the queue {self.name!r} is closed", name=self.name) from None

    @with_deadline()
    async def pause(self, *, deadline: float | None = None) -> bool:
        """Pause the queue: its consumers take no further message until `resume`, in all processes.

        This stops `receive`, `receive_many`, consumers, `serve` and `pipe` where they read from the queue. They wait as
        if it were empty, also when it is closed. One that is taking a message at this moment may still get it. Messages
        in hand can be settled, and leases are renewed. A consumer gives back what it has prefetched when its loop goes
        on, after a third of the lease at the latest. Puts go on up to the bound. The pause lasts until `resume` or
        `delete`, also when this process ends. vsqs does not know of it, and goes on.

        Args:
            deadline: Seconds for the whole operation; see `put`.

        Returns:
            Whether it was not paused before.

        Raises:
            QueueDoesNotExistError: There is no such queue.
            StorageError: The file system refused.

        Cancelled, the queue is paused or not; pausing it again is safe.
        """
        with self._operation():
            await self._store.refresh()
            return await self._store.worker.in_thread(self._store.directory.pause)

    @with_deadline()
    async def resume(self, *, deadline: float | None = None) -> bool:
        """End a pause: all consumers that wait for that wake at once (without notifications, at their next listing).

        Returns:
            Whether the queue was paused.

        Raises:
            QueueDoesNotExistError, StorageError: As for `pause`.

        Cancelled, the queue is paused or not; resuming it again is safe.
        """
        with self._operation():
            await self._store.refresh()
            return await self._store.worker.in_thread(self._store.directory.resume)

    @with_deadline(reads=True)
    async def wait_closed(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Wait until the queue is closed; messages may be left in it.

        Raises:
            QueueOpenError: It stayed open until the timeout (a TimeoutError).
            QueueDoesNotExistError: There is no such queue, or it was deleted meanwhile.

        Cancelled, nothing has changed.
        """
        until = self._until(timeout)
        ticket = self._waits.ticket()
        with self._operation():
            while True:
                try:
                    await self._store.refresh()
                except QueueDoesNotExistError:
                    if not self._store.index.closed:  # it was deleted before it was closed
                        raise
                if self._store.index.closed:
                    return
                await self._wait(self._waits.closers, ticket, until)

    @with_deadline()
    async def delete(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Delete the queue with all messages, those in flight included. Waiting tasks get QueueDoesNotExistError.

        It deletes only what belongs to a queue. Dead letters are in another queue, and stay.

        Args:
            timeout: As for `AsyncQueue.delete`, which waits for the queue's roles. Here nothing waits.
            deadline: Seconds for the whole operation; see `put`.

        Raises:
            QueueDoesNotExistError: There is no such queue.
            StorageError: The file system refused, or the directory contains something else, which the error names.
                Nothing was deleted then.

        Cancelled, or when the process is killed, the queue is deleted or untouched. After a kill, the next `create` or
        `delete` beside it removes what is left of the directory.
        """
        self._until(timeout)
        with self._operation():
            await self._store.refresh()
            await self._store.worker.in_thread(lifecycle.delete, self._store.directory)

    @with_deadline()
    async def purge(self, *, deadline: float | None = None) -> int:
        """Delete the messages that wait when it begins; those in flight and dead letters stay.

        `give_back_in_flight` before it makes those in flight wait, too.

        Args:
            deadline: Seconds for the whole operation; see `put`.

        Returns:
            How many were deleted.

        Cancelled, some of them are deleted.
        """
        return await self._each(self._receiver.remove, waiting=True)

    @with_deadline()
    async def give_back_in_flight(self, *, deadline: float | None = None) -> int:
        """Give back every message that is in flight in any process, before its lease ends.

        Returns:
            How many were given back.

        Cancelled, some of them are given back.
        """
        return await self._each(self._receiver.requeue, waiting=False)

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
        """Move dead letters back to the end of the queue, the oldest first, those that are there when it begins.

        Args:
            max_items: How many at most; None for all.
            ids: Only these, by the ids that `dead_letters` shows; None for any.
            timeout: Seconds to wait for room at most.
            source: The dead-letter queue's name; None for this queue's own.
            deadline: Seconds for the whole operation; see `put`.

        Returns:
            How many were moved. Its attribute `not_found` has the ids that no dead letter has (any more).

        Raises:
            QueueFullError: The queue stayed full until the timeout. `accepted` says how many were moved before.
            QueueClosedError: The queue is closed.
            QueueDoesNotExistError: There is no such queue, or no queue of the name `source`.
            StorageError: The file system refused.
            TypeError, ValueError: An argument is invalid, or both `max_items` and `ids` are given.

        Cancelled, each of them is in one of the two queues.
        """
        if max_items is not None:
            validation.whole(max_items, "max_items")
        left = None if ids is None else checked_ids(ids)
        if left is not None and max_items is not None:
            raise ValueError("give either max_items= or ids=: the ids say how many")
        until = self._until(timeout)
        source_name = self._store.settings.dead_letters if source is None else names.check_queue_name(source)
        ticket = self._waits.ticket()
        moved = 0
        with self._operation(), self._beside(source_name) as dead:
            await self._store.refresh()
            try:
                found = await self._store.worker.in_thread(oldest_first, dead)
            except QueueDoesNotExistError:
                if source is not None:
                    raise
                return Requeued(0, left or ())  # there are no dead letters yet
            try:
                for filename in found[:max_items]:
                    if left is not None and filename not in left:
                        continue
                    await self._breathe()
                    while (adopted := await self._putter.adopt(dead, filename)) is None:
                        await self._wait(self._waits.putters, ticket, until)
                    moved += adopted
                    if left is not None and adopted:
                        del left[filename]
            except asyncio.CancelledError:
                note_accepted(moved)
                raise
            except PressureError as error:
                error.accepted = moved
                raise
        return Requeued(moved, left or ())

    async def _each(self, act: Callable[[str], Any], *, waiting: bool) -> int:
        """Do something with all messages that wait, or with all that are in flight. Returns how many were there."""
        count = 0
        with self._operation():
            await self._store.refresh()
            for filename in self._store.index.filenames(waiting=waiting, in_flight=not waiting):
                await self._breathe()
                count += bool(await act(filename))
                note_sent()
        return count
