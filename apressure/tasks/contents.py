"""Operations on single tasks of a queue, by their ids."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final, Generic, TypeVar

from apressure import validation
from apressure.concurrency.deadline import with_deadline
from apressure.core.waiting import FULL, Wait
from apressure.exceptions import ServerError, TaskDoesNotExistError, TaskStatusError
from apressure.tasks.core import Core
from apressure.tasks.engine.answers import raw
from apressure.tasks.engine.steps import ids_in
from apressure.tasks.options import one_of
from apressure.tasks.task import Task, load_many

T = TypeVar("T")

STATUSES: Final = ("pending", "scheduled", "reserved", "started", "complete", "failed")
"""The statuses that Blueque knows."""


class Contents(Core[T], Generic[T]):
    """The part of `TaskQueue` that works on tasks by their ids."""

    async def tasks(self, status: str | None = None) -> AsyncIterator[Task]:
        """Yield the queue's tasks.

        Those that wait come first, in their order, then scheduled ones, those in hand, and those that have ended, the
        latest first. Tasks that change meanwhile may be missing. A task whose hash is missing is left out; one with a
        status that Blueque does not know is yielded where it is listed.

        Args:
            status: Only tasks with this status; None for all.

        Raises:
            ValueError: There is no such status.
            PressureError: The server cannot be asked.

        Cancelled, nothing has changed.
        """
        if status is not None:
            one_of(STATUSES, status, "status")
        self.check()
        seen: set[bytes] = set()
        async for ids in self._ids(status):
            new = [task_id for task_id in ids if task_id not in seen]
            seen.update(new)
            for task in await load_many(self.client, new):
                if status is None or task.status == status or task.status not in STATUSES:
                    yield task

    async def _ids(self, status: str | None) -> AsyncIterator[list[bytes]]:
        keys = self.steps.keys
        for listed, key, command in (
            (("pending",), keys.pending, b"LRANGE"),
            (("scheduled",), keys.scheduled, b"ZRANGE"),
            (("reserved", "started"), keys.leases, b"ZRANGE"),
            (("reserved", "started"), keys.listeners, b"SMEMBERS"),
            (("complete",), keys.complete, b"LRANGE"),
            (("failed",), keys.failed, b"LRANGE"),
        ):
            if status is not None and status not in listed:
                continue
            if key != keys.listeners:
                async for ids in ids_in(self.client, key, command, backwards=key == keys.pending):
                    yield ids
                continue
            for listener in sorted(await self.client.connection.ask(command, key, reads=True)):
                try:
                    async for ids in ids_in(self.client, keys.reserved(listener), b"LRANGE"):
                        yield ids
                except ServerError as error:
                    if error.code != "WRONGTYPE":
                        raise  # otherwise another program has damaged it: the others are listed

    @with_deadline()
    async def cancel(self, task_id: str, *, deadline: float | None = None) -> bool:
        """Cancel a task. One that waits fails, with the error `cancelled`. The node that has it is asked to end it.

        A `Runner` ends its process. Other processors see it by `TaskDelivery.cancel_requested`, and nodes of the
        released blueque go on. If the task goes back, since its node gives it back or dies, it fails then.

        Returns:
            Whether it has failed now; otherwise a node was asked.

        Raises:
            TaskDoesNotExistError: This queue has no such task.
            TaskStatusError: It has ended before.
            OutcomeUnknownError: The connection broke and could not be restored in time.

        Cancelled, the task is cancelled or not; cancelling it again is safe.
        """
        return self._outcome(task_id, await self.steps.cancel(self._checked(task_id))) == "cancelled"

    @with_deadline()
    async def retry(self, task_id: str, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Enqueue a task again that has failed: last in line, with new attempts.

        Args:
            task_id: The task's id.
            timeout: Seconds to wait for room at most.
            deadline: Seconds for the whole operation, with connecting and repeating; see `enqueue`.

        Raises:
            TaskDoesNotExistError: This queue has no such task.
            TaskStatusError: It has not failed.
            QueueFullError: The queue stayed full until the timeout.
            QueueClosedError, QueueDoesNotExistError, OutcomeUnknownError: As for `enqueue`.

        Cancelled, the task is enqueued or not.
        """
        validation.timeout(timeout)
        encoded = self._checked(task_id)

        async def attempt() -> str | Wait:
            outcome = await self.steps.retry(encoded, self._expected)
            return FULL if outcome == "full" else outcome

        self._outcome(task_id, await self.until(attempt, timeout))

    @with_deadline()
    async def delete_task(self, task_id: str, *, deadline: float | None = None) -> None:
        """Delete a task that has ended, with its result (specification: Delete Finished Task).

        Raises:
            TaskDoesNotExistError: This queue has no such task.
            TaskStatusError: It has not ended.
            OutcomeUnknownError: The connection broke and could not be restored in time.

        Cancelled, the task is deleted or not.
        """
        self._outcome(task_id, await self.steps.remove(self._checked(task_id)))

    def _checked(self, task_id: Any) -> bytes:
        self.check()
        return raw(validation.text(task_id, "task_id"))

    def _outcome(self, task_id: str, outcome: str) -> str:
        """Return what a step on a task has done, or raise."""
        what, _, detail = outcome.partition(" ")
        if what == "unknown":
            raise TaskDoesNotExistError(f"the queue {self.name!r} has no task {task_id}", id=task_id)
        if what == "other":
            raise TaskDoesNotExistError(
                f"the task {task_id} is not in the queue {self.name!r}: it is in {detail!r}. Use that queue", id=task_id
            )
        if what == "unfit":
            raise TaskStatusError(
                f"the task {task_id} is {detail}: that does not allow this. Nothing was changed", id=task_id,
                status=detail,
            )  # fmt: skip
        return what
