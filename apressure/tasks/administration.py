"""Operations on a queue of tasks as a whole: creating and closing it, looking at it, cleaning it up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from apressure import logs, validation
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.settle import note_sent
from apressure.core.waiting import Wait
from apressure.exceptions import QueueDoesNotExistError
from apressure.tasks.core import Core
from apressure.tasks.engine.answers import Status
from apressure.tasks.engine.steps import MAX_DELETED
from apressure.tasks.statistics import TaskStatistics

MAX_BOUND: Final = 10**12

Purgeable = Literal["pending", "scheduled", "complete", "failed"]
"""The statuses of tasks that `purge` can delete."""

PURGEABLE: Final = ("pending", "scheduled", "complete", "failed")


class Administration(Core):
    """The part of `TaskQueue` that moves no task from or to the program."""

    def __repr__(self) -> str:
        return f"<TaskQueue {self.name!r} at {self.client.server.address}>"

    @with_deadline()
    async def create(self, bound: int = 0, exist_ok: bool = False, *, deadline: float | None = None) -> bool:
        """Create the queue with a bound. A queue without a bound needs no `create`: the first task makes it.

        Tasks that are in the queue already stay. From then on, this object's operations raise QueueDoesNotExistError
        once the queue was deleted.

        Args:
            bound: The most tasks that may wait; 0 for no bound. It holds for every client of apressure, for `enqueue`
                and `put`. Scheduled tasks and nodes of the released blueque do not know it.
            exist_ok: Leave a queue that was created before as it is, with its bound, and return False.
            deadline: Seconds for the whole operation, with connecting and repeating; see `enqueue`.

        Returns:
            Whether the queue is new.

        Raises:
            QueueAlreadyExistsError: It was created before.
            TypeError, ValueError: The bound is not a whole number of tasks.

        Cancelled, the queue is created or not; creating it again with `exist_ok=True` is safe.
        """
        validation.whole(bound, "bound", 0, MAX_BOUND, "tasks")
        self.check()
        new = await self.steps.create(bound, exist_ok)
        self._expected = True
        if not new:
            await logs.kept_bound(self, bound)
        return new

    @with_deadline(reads=True)
    async def exists(self, *, deadline: float | None = None) -> bool:
        """Return whether the queue exists: it was created, or has tasks or listeners, or had some."""
        self.check()
        return (await self.steps.status()).exists

    @with_deadline(reads=True)
    async def bound(self, *, deadline: float | None = None) -> int:
        """Return the most tasks that may wait; 0 for no bound.

        It raises as `statistics` does, and so do `qsize`, `closed` and `paused`.
        """
        return (await self._status()).bound

    @with_deadline(reads=True)
    async def qsize(self, *, deadline: float | None = None) -> int:
        """Return how many tasks wait; scheduled ones and those in hand do not count."""
        return (await self._status()).pending

    @with_deadline(reads=True)
    async def closed(self, *, deadline: float | None = None) -> bool:
        """Return whether the queue is closed; it stays so."""
        return (await self._status()).closed

    @with_deadline(reads=True)
    async def paused(self, *, deadline: float | None = None) -> bool:
        """Return whether the queue is paused."""
        return (await self._status()).paused

    @with_deadline(reads=True)
    async def statistics(self, *, deadline: float | None = None) -> TaskStatistics:
        """Return a snapshot of the queue.

        Raises:
            QueueDoesNotExistError: This object has created the queue, and it was deleted.
            ServerError: A key of the queue has a value that is not a queue's.
        """
        status = await self._status()
        return TaskStatistics(
            name=self.name,
            length=status.pending,
            bound=status.bound,
            closed=status.closed,
            paused=status.paused,
            scheduled=status.scheduled,
            in_flight=max(status.leased, status.reserved),
            started=status.started,
            complete=status.complete,
            dead_letters=status.failed,
            consumers=status.listeners,
            next_expiry=None if status.due is None else status.due / 1000,
            waiting_putters=self._puts.waiting,
            waiting_receivers=self._reservations.waiting,
            blocked=self._waits.blocked.seconds(),
            late_renewals=self.client.renewer.late[self.name],
            **self.steps.counts.fields(),
        )

    @with_deadline()
    async def close(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Close the *queue*: our clients can put nothing more, and consumers end when it is drained.

        Scheduled tasks still run at their time, and consumers wait for them. Nodes of the released blueque do not know
        that a queue is closed: what they enqueue is delivered, too. (`aclose` releases this object's connections.)

        Args:
            timeout: As for `AsyncQueue.close`, which waits for the producer role. Here nothing waits.
            deadline: Seconds for the whole operation, with connecting and repeating; see `enqueue`.

        Raises:
            QueueClosedError: It was closed before.
            QueueDoesNotExistError: This object has created the queue, and it was deleted.

        Cancelled, the queue is closed or open.
        """
        validation.timeout(timeout)
        self.check()
        await self.steps.close(self._expected)

    @with_deadline(reads=True)
    async def wait_closed(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Wait until the queue is closed; tasks may be left in it.

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
            status = await self.steps.status()
            if created and not status.created:
                raise self._gone()
            created = created or status.created
            return status.closed or Wait("open")

        await self._waits.until(look, timeout, self.name)

    @with_deadline()
    async def pause(self, *, deadline: float | None = None) -> bool:
        """Pause the queue: nodes of apressure reserve nothing more until `resume`. Nodes of the release do.

        Args:
            deadline: Seconds for the whole operation, with connecting and repeating; see `enqueue`.

        Returns:
            Whether it was not paused before.

        Raises:
            QueueDoesNotExistError: There is no such queue.

        Cancelled, the queue is paused or not; pausing it again is safe.
        """
        self.check()
        return await self.steps.pause(True, self._expected)

    @with_deadline()
    async def resume(self, *, deadline: float | None = None) -> bool:
        """End a pause. Returns whether there was one. It raises as `pause` does."""
        self.check()
        return await self.steps.pause(False, self._expected)

    @with_deadline()
    async def delete(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Delete the queue with all its tasks, those in hand and those that have ended included.

        Waiting clients get QueueDoesNotExistError, if the queue was created. It works in steps of up to 250
        tasks. Nodes of the released blueque that run a task meanwhile leave its end behind.

        Args:
            timeout: As for `AsyncQueue.delete`, which waits for the queue's roles. Here nothing waits.
            deadline: Seconds for the whole operation, with connecting and repeating; see `enqueue`.

        Raises:
            QueueDoesNotExistError: There is no such queue.

        Cancelled, the queue is there or deleted, or some of its tasks are left: delete it again.
        """
        validation.timeout(timeout)
        self.check()
        await self.steps.end_queue()
        note_sent()
        for what in ("pending", "scheduled", "held", "complete", "failed"):
            while True:
                _, looked = await self.steps.purge(what, MAX_DELETED)
                if not looked:
                    break
        await self.steps.forget_queue()

    @with_deadline()
    async def purge(
        self,
        status: Purgeable = "pending",
        *,
        older_than: float | None = None,
        on_progress: Callable[[int], object] | None = None,
        deadline: float | None = None,
    ) -> int:
        """Delete the tasks that have this status when it begins, in steps of up to 250.

        Args:
            status: `"pending"`, `"scheduled"`, `"complete"` or `"failed"`. Tasks in hand stay.
            older_than: Only tasks that have not changed for so many seconds, by the server's clock; None for all. A
                task without a valid time of its latest change counts as old.
            on_progress: Called after each step with how many were deleted so far.
            deadline: Seconds for the whole operation, with connecting and repeating; see `enqueue`.

        Returns:
            How many were deleted.

        Raises:
            QueueDoesNotExistError: This object has created the queue, and it was deleted.
            TypeError, ValueError: An argument is invalid.

        Cancelled, the oldest tasks are deleted, and the others stay.
        """
        if status not in PURGEABLE:
            raise ValueError(f"status must be one of {', '.join(map(repr, PURGEABLE))}, not {status!r}")
        if older_than is not None:
            validation.seconds(older_than, "older_than", most=float("inf"), none=True)
        found = await self._status()
        left, deleted = getattr(found, status), 0
        while left > 0:
            step, looked = await self.steps.purge(status, min(left, MAX_DELETED), older_than, self._expected)
            deleted += step
            note_sent()
            if status in ("pending", "scheduled"):
                self.steps.counts.deleted_count += step
            left -= looked
            if not looked:
                break
            if on_progress is not None:
                on_progress(deleted)
        return deleted

    async def _status(self) -> Status:
        self.check()
        status = await self.steps.status()
        if self._expected and not status.created:
            raise self._gone()
        return status

    def _gone(self) -> QueueDoesNotExistError:
        return QueueDoesNotExistError(f"the queue {self.name!r} was deleted", name=self.name)
