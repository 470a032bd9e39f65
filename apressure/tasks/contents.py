"""Operations on single tasks of a queue, and on those that have failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, Generic, TypeVar, overload

from apressure import dead_letters, validation
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.settle import note_accepted
from apressure.core.waiting import FULL, Wait
from apressure.dead_letters import DeadLetter, Failure, Requeued
from apressure.exceptions import PressureError, ServerError, TaskDoesNotExistError, TaskStatusError
from apressure.items import Items
from apressure.tasks.administration import Administration
from apressure.tasks.engine.answers import raw, text
from apressure.tasks.engine.steps import MAX_DELETED, load_many
from apressure.tasks.task import Task, number

T = TypeVar("T")

STATUSES: Final = ("pending", "scheduled", "reserved", "started", "complete", "failed")
"""The statuses that Blueque knows."""

_CHUNK: Final = 100


class Contents(Administration, Generic[T]):
    """The part of `TaskQueue` that works on tasks by their ids."""

    _items: Items[T]

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
        if status is not None and status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(map(repr, STATUSES))}, not {status!r}")
        self.check()
        seen: set[bytes] = set()
        async for ids in self._ids(status):
            new = [task_id for task_id in ids if task_id not in seen]
            seen.update(new)
            for task_id, fields in await load_many(self.client, new):
                task = Task(self.client, text(task_id), fields)
                if status is None or task.status == status or task.status not in STATUSES:
                    yield task

    async def _ids(self, status: str | None) -> AsyncIterator[list[bytes]]:  # noqa: PLR0912 (one for each status)
        keys, chunks = self.steps.keys, self._chunks
        if status in (None, "pending"):
            async for ids in chunks(b"LRANGE", keys.pending, True):
                yield ids
        if status in (None, "scheduled"):
            async for ids in chunks(b"ZRANGE", keys.scheduled):
                yield ids
        if status in (None, "reserved", "started"):
            async for ids in chunks(b"ZRANGE", keys.leases):
                yield ids
            for listener in sorted(await self.steps.connection.ask(b"SMEMBERS", keys.listeners, reads=True)):
                try:
                    async for ids in chunks(b"LRANGE", keys.reserved(listener)):
                        yield ids
                except ServerError as error:
                    if error.code != "WRONGTYPE":
                        raise  # otherwise another program has damaged it: the others are listed
        for ended, key in (("complete", keys.complete), ("failed", keys.failed)):
            if status in (None, ended):
                async for ids in chunks(b"LRANGE", key):
                    yield ids

    async def _chunks(self, command: bytes, key: bytes, backwards: bool = False) -> AsyncIterator[list[bytes]]:
        begin = 0
        while True:
            span = (-begin - _CHUNK, -begin - 1) if backwards else (begin, begin + _CHUNK - 1)
            ids: list[bytes] = await self.steps.connection.ask(command, key, *span, reads=True)
            if ids:
                yield ids[::-1] if backwards else ids
            begin += len(ids)
            if len(ids) < _CHUNK:
                return

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

        self._outcome(task_id, await self._waits.until(attempt, timeout, self.name))

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

    @with_deadline(reads=True)
    async def dead_letters(self, limit: int | None = 100, *, deadline: float | None = None) -> list[DeadLetter[T]]:
        """Return the tasks that have failed, the oldest first, with the reason of each. It changes nothing.

        Args:
            limit: How many at most; None for all.
            deadline: Seconds for the whole operation, with connecting and repeating; see `enqueue`.

        Raises:
            TypeError, ValueError: The limit is no positive whole number.
            PressureError: As for `statistics`.

        Cancelled, nothing has changed.
        """
        if limit is not None:
            validation.whole(limit, "limit")
        await self._status()
        letters: list[DeadLetter[T]] = []
        begin = 0
        while limit is None or len(letters) < limit:
            span = (-begin - _CHUNK, -begin - 1)
            ids = await self.steps.connection.ask(b"LRANGE", self.steps.keys.failed, *span, reads=True)
            begin += len(ids)
            for task_id, fields in await load_many(self.client, reversed(ids)):
                task = Task(self.client, text(task_id), fields)
                if task.status == "failed":
                    letters.append(self._letter(task))
            if len(ids) < _CHUNK:
                break
        return letters[:limit]

    @overload
    async def requeue(
        self, max_items: int | None = ..., timeout: float | None = ..., *, deadline: float | None = ...
    ) -> Requeued: ...
    @overload
    async def requeue(
        self, *, timeout: float | None = ..., ids: Iterable[str], deadline: float | None = ...
    ) -> Requeued: ...
    @with_deadline()
    async def requeue(
        self, max_items: int | None = None, timeout: float | None = None, *, ids: Iterable[str] | None = None,
        deadline: float | None = None,
    ) -> Requeued:  # fmt: skip
        """Enqueue tasks again that have failed, the oldest first: last in line, with new attempts.

        Args:
            max_items: How many at most; None for all that have failed when it begins.
            timeout: Seconds to wait for room at most.
            ids: Only these.
            deadline: Seconds for the whole operation, with connecting and repeating; see `enqueue`.

        Returns:
            How many were enqueued. Its attribute `not_found` has the ids among `ids` that no failed task has.

        Raises:
            QueueFullError: The queue stayed full until the timeout. `accepted` says how many were enqueued before.
            QueueClosedError: The queue is closed.
            QueueDoesNotExistError: This object has created the queue, and it was deleted.
            TypeError, ValueError: An argument is invalid.

        Cancelled, each of them is enqueued or has failed.
        """
        if max_items is not None:
            validation.whole(max_items, "max_items")
        validation.timeout(timeout)
        if ids is not None and max_items is not None:
            raise ValueError("give either max_items= or ids=: the ids say how many")
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        moved = 0
        try:
            if ids is not None:
                missing = []
                for task_id in await self._oldest_first(dead_letters.checked_ids(ids)):
                    try:
                        await self.retry(task_id, None if until is None else max(0.0, until - loop.time()))
                        moved += 1
                    except (TaskDoesNotExistError, TaskStatusError):
                        missing.append(task_id)
                return Requeued(moved, missing)
            left = (await self._status()).failed

            async def attempt() -> int | Wait:
                nonlocal moved, left
                most = left if max_items is None else min(left, max_items - moved)
                step, looked = await self.steps.requeue(min(most, MAX_DELETED), self._expected)
                moved += step
                left -= looked
                return looked or FULL

            while left > 0 and (max_items is None or moved < max_items):
                remaining = None if until is None else max(0.0, until - loop.time())
                await self._waits.until(attempt, remaining, self.name)
        except asyncio.CancelledError:
            note_accepted(moved)
            raise
        except PressureError as error:
            error.accepted = moved
            raise
        return Requeued(moved)

    async def _oldest_first(self, task_ids: Iterable[str]) -> list[str]:
        """Return the ids of tasks by when they have ended."""
        self.check()
        found = await load_many(self.client, map(raw, task_ids))
        ended = {text(task_id): number(fields, "updated") or 0.0 for task_id, fields in found}
        return sorted(task_ids, key=lambda task_id: ended.get(task_id, 0.0))

    def _letter(self, task: Task) -> DeadLetter[T]:
        attempt = task.fields.get("failed_attempt", "")
        kept = task.fields.get("failure")
        if kept is not None and attempt.isascii() and attempt.isdigit():
            failure = dead_letters.decode(raw(kept), int(attempt[:9]))
        else:
            failure = dead_letters.decode(b"\t" + raw(task.error or ""), task.attempts)
        known: Failure | None = failure if failure.type or failure.message else None
        return DeadLetter(
            task.id, raw(task.fields.get("parameters", "")), task.attempts, known, task.updated, self._items.decode
        )

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
