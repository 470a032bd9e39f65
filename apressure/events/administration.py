"""Operations on a queue of events as a whole: creating and closing it, looking at it, cleaning it up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from apressure import logs, validation
from apressure.concurrency.deadline import with_deadline
from apressure.core.statistics import Looking
from apressure.core.waiting import Wait
from apressure.dead_letters import Requeued, checked_ids
from apressure.events.core import Core
from apressure.events.engine.answers import Status
from apressure.events.engine.letters import Oldest, choose, requeue
from apressure.events.engine.steps import MAX_EVENTS
from apressure.events.statistics import EventQueueStatistics
from apressure.exceptions import QueueDoesNotExistError

MAX_BOUND: Final = 10**12


class Administration(Core, Looking):
    """The part of `EventQueue` that moves no item from or to the program."""

    def __repr__(self) -> str:
        return f"<EventQueue {self.name!r} at {self.client.server.address}>"

    @with_deadline()
    async def create(self, bound: int = 0, exist_ok: bool = False, *, deadline: float | None = None) -> bool:
        """Create the queue with a bound. A queue without a bound needs no `create`: the first put makes it.

        Events that are in the queue already stay. From then on, this object's operations raise QueueDoesNotExistError
        once the queue was deleted.

        Args:
            bound: The most events that may wait; 0 for no bound. It holds for every client of apressure. An okq beside
                them does not know it.
            exist_ok: Leave a queue that was created before as it is, with its bound, and return False.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            Whether the queue is new.

        Raises:
            QueueAlreadyExistsError: It was created before.
            TypeError, ValueError: The bound is not a whole number of events.

        Cancelled, the queue is created or not; creating it again with `exist_ok=True` is safe.
        """
        validation.whole(bound, "bound", 0, MAX_BOUND, "events")
        self.check()
        new = await self._steps.create(bound, exist_ok)
        self._expected = True
        if not new:
            await logs.kept_bound(self, bound)
        return new

    @with_deadline(reads=True)
    async def exists(self, *, deadline: float | None = None) -> bool:
        """Return whether the queue exists: it was created, or has events or registered consumers."""
        self.check()
        return (await self._steps.status()).exists

    @with_deadline(reads=True)
    async def statistics(self, *, deadline: float | None = None) -> EventQueueStatistics:
        """Return a snapshot of the queue (specification: QSTATUS).

        Raises:
            QueueDoesNotExistError: This object has created the queue, and it was deleted.
            ServerError: A key of the queue has a value that is not a queue's.
        """
        status = await self._status()
        return EventQueueStatistics(
            name=self.name,
            length=status.waiting,
            bound=status.bound,
            closed=status.closed,
            paused=status.paused,
            in_flight=status.claimed,
            consumers=status.consumers,
            dead_letters=status.dead,
            next_expiry=None if status.due is None else status.due / 1000,
            waiting_putters=sum(lane.waiting for lane in self._lanes.values()),
            waiting_receivers=self._pops.waiting,
            blocked=self._waits.blocked.seconds(),
            late_renewals=self.client.renewer.late[self.name],
            **self._steps.counts.fields(),
        )

    @with_deadline()
    async def close(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Close the *queue*: nothing more can be put, and consumers end when it is drained.

        An okq does not know that a queue is closed: what it pushes is delivered, too. (`aclose` releases this object's
        connections.)

        Args:
            timeout: As for `AsyncQueue.close`, which waits for the producer role. Here nothing waits.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            QueueClosedError: It was closed before.
            QueueDoesNotExistError: This object has created the queue, and it was deleted.

        Cancelled, the queue is closed or open.
        """
        validation.timeout(timeout)
        self.check()
        return await self._steps.close(self._expected)

    @with_deadline(reads=True)
    async def wait_closed(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Wait until the queue is closed; events may be left in it.

        Raises:
            QueueOpenError: It stayed open until the timeout (a TimeoutError).
            QueueDoesNotExistError: The queue was deleted meanwhile.

        Cancelled, nothing has changed.
        """
        validation.timeout(timeout)
        self.check()
        created = self._expected

        async def look() -> bool | Wait:
            nonlocal created
            status = await self._steps.status()
            if created and not status.created:
                raise self._gone()
            created = created or status.created
            return status.closed or Wait("open")

        await self._waits.until(look, timeout, self.name)

    @with_deadline()
    async def delete(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Delete the queue with all events, those in flight and dead letters included.

        Tasks that wait for it get QueueDoesNotExistError, if the queue was created.

        Args:
            timeout: As for `AsyncQueue.delete`, which waits for the queue's roles. Here nothing waits.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            QueueDoesNotExistError: There is no such queue.

        Cancelled, the queue is deleted or not.
        """
        validation.timeout(timeout)
        self.check()
        return await self._steps.delete()

    @with_deadline()
    async def purge(self, *, deadline: float | None = None) -> int:
        """Delete the events that wait when it begins; those in flight and dead letters stay.

        It works in steps of up to 2,000 events. okq's QFLUSH deletes what is in flight, too.

        Returns:
            How many were deleted.

        Cancelled, the oldest events are deleted, and the others stay.
        """
        left, deleted = (await self._status()).waiting, 0
        while left > 0:
            step = await self._steps.purge(min(left, MAX_EVENTS), self._expected)
            if not step:
                break
            deleted += step
            self._steps.counts.deleted_count += step
            left -= step
        return deleted

    @with_deadline()
    async def requeue(
        self,
        max_items: int | None = None,
        timeout: float | None = None,
        *,
        ids: Iterable[str] | None = None,
        deadline: float | None = None,
    ) -> Requeued:
        """Move dead letters back to the end of the queue, the oldest first; their attempts start anew.

        It moves those that are there when it begins. A dead letter whose id is in use again stays.

        Args:
            max_items: How many at most; None for all.
            timeout: Seconds to wait for room at most; None to wait for ever, 0 to move only what has room now.
            ids: Only the events with these ids, as `dead_letters` shows them; None for any. If several dead letters
                have the same id, the oldest is meant.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            How many were moved. Its attribute `not_found` has the ids that no dead letter has (any more).

        Raises:
            QueueFullError: The queue stayed full until the timeout. `accepted` says how many were moved before.
            QueueClosedError: The queue is closed.
            QueueDoesNotExistError: This object has created the queue, and it was deleted.
            TypeError, ValueError: An argument is invalid.

        Cancelled, each of them is in the queue or a dead letter.
        """
        if max_items is not None:
            validation.whole(max_items, "max_items")
        validation.timeout(timeout)
        if ids is None:
            oldest = Oldest((await self._status()).dead, max_items)
            return Requeued(await requeue(self._steps, self._waits, oldest, timeout, self._expected))
        if max_items is not None:
            raise ValueError("give either max_items= or ids=: the ids say how many")
        chosen = await choose(self._steps, checked_ids(ids), (await self._status()).dead)
        moved = await requeue(self._steps, self._waits, chosen, timeout, self._expected)
        return Requeued(moved, chosen.not_found)

    @with_deadline()
    async def pause(self, *, deadline: float | None = None) -> bool:
        """Pause the queue: its consumers take no further event until `resume`, in all processes.

        This stops `get`, `receive`, consumers, `serve`, `pipe`, and QRPOP of our servers. They wait as if the queue
        were empty, also when it is closed. Events in hand can be settled, and leases are renewed. A consumer gives back
        what it has prefetched when it next renews its leases, that is after a third of the lease at most. Puts go on up
        to the bound. The pause lasts until `resume`, `delete` or `create`.

        An okq beside us does not know of the pause: it hands out events to its own clients.

        Args:
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            Whether it was not paused before.

        Raises:
            QueueDoesNotExistError: There is no such queue: it was not created, and has no events and no consumers.
            OutcomeUnknownError: The connection broke and could not be restored in time.

        Cancelled, the queue is paused or not; pausing it again is safe.
        """
        self.check()
        return await self._steps.pause(self._expected)

    @with_deadline()
    async def resume(self, *, deadline: float | None = None) -> bool:
        """End a pause: all consumers that wait for that wake at once.

        Args:
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            Whether the queue was paused.

        Raises:
            QueueDoesNotExistError, OutcomeUnknownError: As for `pause`.

        Cancelled, the queue is paused or not; resuming it again is safe.
        """
        self.check()
        return await self._steps.resume(self._expected)

    async def _status(self) -> Status:
        self.check()
        status = await self._steps.status()
        if self._expected and not status.created:
            raise self._gone()
        return status

    def _gone(self) -> QueueDoesNotExistError:
        return QueueDoesNotExistError(f"the queue {self.name!r} was deleted", name=self.name)
