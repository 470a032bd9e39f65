"""Operations on a queue of events as a whole: creating and closing it, looking at it, cleaning it up."""

from __future__ import annotations

import asyncio
from typing import Final

from apressure import validation
from apressure.events.answers import FULL, Status, Wait
from apressure.events.core import Core
from apressure.events.statistics import EventQueueStatistics
from apressure.events.steps import MAX_EVENTS
from apressure.exceptions import PressureError, QueueDoesNotExistError
from apressure.settle import note_accepted

MAX_BOUND: Final = 10**12


class Administration(Core):
    """The part of `EventQueue` that moves no item from or to the program."""

    def __repr__(self) -> str:
        return f"<EventQueue {self.name!r} at {self.client.server.address}>"

    async def create(self, bound: int = 0, exist_ok: bool = False) -> bool:
        """Create the queue with a bound. A queue without a bound needs no `create`: the first put makes it.

        Events that are in the queue already stay. From then on, this object's operations raise QueueDoesNotExistError
        once the queue was deleted.

        Args:
            bound: The most events that may wait; 0 for no bound. It holds for every client of apressure. An okq beside
                them does not know it.
            exist_ok: Leave a queue that was created before as it is, with its bound, and return False.

        Returns:
            Whether the queue is new.

        Raises:
            QueueAlreadyExistsError: It was created before.
            TypeError, ValueError: The bound is not a whole number of events.

        Cancelled, the queue is created or not; creating it again with `exist_ok=True` is safe.
        """
        validation.whole(bound, "bound", 0, MAX_BOUND, "events")
        self._check()
        new = await self._steps.create(bound, exist_ok)
        self._expected = True
        return new

    async def exists(self) -> bool:
        """Return whether the queue exists: it was created, or has events or registered consumers."""
        self._check()
        return (await self._steps.status()).exists

    async def bound(self) -> int:
        """Return the most events that may wait; 0 for no bound.

        It raises as `statistics` does, and so do `qsize` and `closed`.
        """
        return (await self._status()).bound

    async def qsize(self) -> int:
        """Return how many events wait; those in flight do not count."""
        return (await self._status()).waiting

    async def closed(self) -> bool:
        """Return whether the queue is closed; it stays so."""
        return (await self._status()).closed

    async def statistics(self) -> EventQueueStatistics:
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
            in_flight=status.claimed,
            consumers=status.consumers,
            dead_letters=status.dead,
            next_expiry=None if status.due is None else status.due / 1000,
            waiting_putters=sum(lane.waiting for lane in self._lanes.values()),
            waiting_receivers=self._pops.waiting,
        )

    async def close(self) -> None:
        """Close the *queue*: nothing more can be put, and consumers end when it is drained.

        An okq does not know that a queue is closed: what it pushes is delivered, too. (`aclose` releases this object's
        connections.)

        Raises:
            QueueClosedError: It was closed before.
            QueueDoesNotExistError: This object has created the queue, and it was deleted.

        Cancelled, the queue is closed or open.
        """
        self._check()
        await self._steps.close(self._expected)

    async def wait_closed(self, timeout: float | None = None) -> None:
        """Wait until the queue is closed; events may be left in it.

        Raises:
            QueueOpenError: It stayed open until the timeout (a TimeoutError).
            QueueDoesNotExistError: The queue was deleted meanwhile.

        Cancelled, nothing has changed.
        """
        validation.timeout(timeout)
        self._check()
        created = self._expected

        async def look() -> bool | Wait:
            nonlocal created
            status = await self._steps.status()
            if created and not status.created:
                raise self._gone()
            created = created or status.created
            return status.closed or Wait("open")

        await self._waits.until(look, timeout, self.name)

    async def delete(self, timeout: float | None = None) -> None:
        """Delete the queue with all events, those in flight and dead letters included.

        Tasks that wait for it get QueueDoesNotExistError, if the queue was created.

        Args:
            timeout: As for `AsyncQueue.delete`, which waits for the queue's roles. Here nothing waits.

        Raises:
            QueueDoesNotExistError: There is no such queue.

        Cancelled, the queue is deleted or not.
        """
        validation.timeout(timeout)
        self._check()
        await self._steps.delete()

    async def purge(self) -> int:
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
            left -= step
        return deleted

    async def requeue(self, max_items: int | None = None, timeout: float | None = None) -> int:
        """Move dead letters back to the end of the queue, the oldest first, those that are there when it begins.

        A dead letter whose id is in use again stays.

        Args:
            max_items: How many at most; None for all.
            timeout: Seconds to wait for room at most.

        Returns:
            How many were moved.

        Raises:
            QueueFullError: The queue stayed full until the timeout. `accepted` says how many were moved before.
            QueueClosedError: The queue is closed.
            QueueDoesNotExistError: This object has created the queue, and it was deleted.

        Cancelled, each of them is in the queue or a dead letter.
        """
        if max_items is not None:
            validation.whole(max_items, "max_items")
        validation.timeout(timeout)
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        left = (await self._status()).dead
        moved = 0

        async def attempt() -> int | Wait:
            nonlocal moved, left
            self._waits.take_room()
            most = left if max_items is None else min(left, max_items - moved)
            step, looked = await self._steps.requeue(min(most, MAX_EVENTS), self._expected)
            moved += step
            left -= looked
            return looked or FULL

        try:
            while left > 0 and (max_items is None or moved < max_items):
                remaining = None if deadline is None else max(0.0, deadline - loop.time())
                await self._waits.until(attempt, remaining, self.name)
        except asyncio.CancelledError:
            note_accepted(moved)
            raise
        except PressureError as error:
            error.accepted = moved
            raise
        return moved

    async def _status(self) -> Status:
        self._check()
        status = await self._steps.status()
        if self._expected and not status.created:
            raise self._gone()
        return status

    def _gone(self) -> QueueDoesNotExistError:
        return QueueDoesNotExistError(f"the queue {self.name!r} was deleted", name=self.name)
