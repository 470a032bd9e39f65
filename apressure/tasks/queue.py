"""TaskQueue: a queue of tasks in the format of Blueque, as a program sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any, Final, Literal, TypeVar, Unpack, get_args, overload

from apressure import validation
from apressure.codecs import Codec, UntypedCodec, codec_for
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.settle import note_sent
from apressure.connection.client import Client, client_of
from apressure.connection.settings import ClientOptions
from apressure.core.consumer import ConsumerOptions
from apressure.core.leases.arguments import lease_of
from apressure.core.waiting import FULL, Wait
from apressure.exceptions import ServerError, TaskDoesNotExistError, TaskStatusError
from apressure.tasks.codec import TaskCodec
from apressure.tasks.core import Core
from apressure.tasks.engine.answers import Status, raw
from apressure.tasks.engine.keys import parked
from apressure.tasks.engine.steps import MAX_DELETED, ids_in
from apressure.tasks.nodes.consumer import TaskConsumer
from apressure.tasks.options import DEFAULT_RESULT_TTL, OnOrphan, Purgeable, one_of, refuse_unfit, time_of, ttl_of
from apressure.tasks.task import Task, load_many

T = TypeVar("T")

STATUSES: Final = ("pending", "scheduled", "reserved", "started", "complete", "failed")
"""The statuses that Blueque knows."""


class TaskQueue(Core[T]):
    """A queue of tasks for any number of nodes, on a Redis or Valkey server, in the format of Blueque.

    A task has parameters, runs for as long as it takes, and ends with a result or an error, which stay on the server.
    Tasks start in the order in which they were enqueued. The queue needs no `create`: the first task makes it. `create`
    gives it a bound. Nodes of the released blueque 1.0.1 work on the same queue. Constructing it does no I/O.

    Args:
        name: The queue's name.
        client: A `Client` or `TaskClient` to share with other queues. Without one, the queue makes its own.
        codec: What parameters are. None for strings as they are, and JSON for everything else; otherwise as for
            `AsyncQueue`. Blueque reads UTF-8: other bytes are refused.
        max_attempts: How often a task is tried at most. After that it has failed; see `requeue`. None for no limit.
        lease: Seconds after which a task of a node that gives no sign of life goes to another node; None for 15.
        on_orphan: What happens to a task whose node died: `"retry"` tries it again, if `max_attempts` allows that;
            `"fail"` marks it as failed.
        result_ttl: Seconds for which results and errors are kept, also those of nodes of the release; None keeps them.
        **options: The server and the client's options, see `ClientOptions`; not together with `client`. The prefix does
            not matter: Blueque's keys have none.

    Attributes:
        name: The queue's name.
        client: The client that it uses.
        max_attempts: How often a task is tried at most; None for no limit.
        lease: How long leases last, in seconds.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is invalid, or the server is a cluster: Blueque's keys share no slot.

    Example:
        >>> async with TaskQueue("video.encode", url="redis://127.0.0.1:6379/0") as queue:
        ...     task_id = await queue.enqueue({"file": "a.mov"})
        ...     delivery = await queue.receive(timeout=5.0)
        ...     await delivery.complete("done")
    """

    @overload
    def __init__(
        self: TaskQueue[Any], name: str, *, client: Client | None = ..., codec: UntypedCodec | None = ...,
        max_attempts: int | None = ..., lease: float | None = ..., on_orphan: OnOrphan = ...,
        result_ttl: float | None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: TaskQueue[bytes], name: str, *, client: Client | None = ..., codec: Literal["raw"],
        max_attempts: int | None = ..., lease: float | None = ..., on_orphan: OnOrphan = ...,
        result_ttl: float | None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: TaskQueue[str], name: str, *, client: Client | None = ..., codec: Literal["text"],
        max_attempts: int | None = ..., lease: float | None = ..., on_orphan: OnOrphan = ...,
        result_ttl: float | None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: TaskQueue[T], name: str, *, client: Client | None = ..., codec: Codec[T] | type[T],
        max_attempts: int | None = ..., lease: float | None = ..., on_orphan: OnOrphan = ...,
        result_ttl: float | None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    def __init__(
        self,
        name: str,
        *,
        client: Client | None = None,
        codec: Codec[Any] | type[Any] | str | None = None,
        max_attempts: int | None = None,
        lease: float | None = None,
        on_orphan: OnOrphan = "retry",
        result_ttl: float | None = DEFAULT_RESULT_TTL,
        **options: Unpack[ClientOptions],
    ) -> None:
        used = client_of(TaskQueue, client, options)
        validation.optional(validation.whole, max_attempts, "max_attempts")
        one_of(get_args(OnOrphan), on_orphan, "on_orphan")
        self.max_attempts, self.on_orphan = max_attempts, on_orphan
        self.lease, self.result_ttl = lease_of(lease), ttl_of(result_ttl)
        refuse_unfit(used)
        super().__init__(used, client is None, name, TaskCodec() if codec is None else codec_for(codec))

    enqueue = Core.put
    """`put`, by the name that Blueque has for it."""

    @with_deadline()
    async def schedule(
        self, parameters: T, eta: datetime | float, timeout: float | None = None, *, deadline: float | None = None
    ) -> str:
        """Have a task enqueued at a time (specification: Schedule Task), waiting while the queue is full.

        It is `put` with `at=`, which also takes seconds since 1970. The queue's consumers enqueue it when it is due, by
        the server's clock. A `Scheduler` must run then where the queue has only nodes of the released blueque.

        Args:
            parameters: As for `enqueue`.
            eta: When: a datetime with a time zone, or seconds since 1970. A time that has passed, by the server's
                clock, enqueues it at once.
            timeout: Seconds to wait for room at most, as for `enqueue`.
            deadline: Seconds for the whole operation, with connecting and repeating; see `enqueue`.

        Returns:
            The task's id.

        Raises:
            PressureError: As for `enqueue`: a scheduled task counts towards the bound.
            TypeError, ValueError: An argument is invalid. Nothing was scheduled.

        Cancelled, the task is scheduled, or not.
        """
        time = repr(time_of(eta)).encode()
        return await self._put_task(self._items.encode(parameters), timeout, time)

    @with_deadline()
    async def purge(
        self,
        status: Purgeable | None = None,
        *,
        older_than: float | None = None,
        on_progress: Callable[[int], object] | None = None,
        deadline: float | None = None,
    ) -> int:
        """Delete the tasks that wait when it begins, the scheduled ones included, in steps of up to 250.

        A scheduled task that becomes due meanwhile may stay.

        Args:
            status: Only tasks with this status: `"pending"`, `"scheduled"`, `"complete"` or `"failed"`; None for the
                first two. Tasks in hand stay.
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
        if status is not None:
            one_of(get_args(Purgeable), status, "status")
        validation.optional(validation.seconds, older_than, "older_than", most=float("inf"), none=True)
        found: Status = await self._existing()
        deleted = 0
        for one in ("pending", "scheduled") if status is None else (status,):
            left = found.waiting if one == "pending" else getattr(found, one)
            while left > 0:
                purged, looked = await self.steps.purge(one, min(left, MAX_DELETED), older_than, self._expected)
                deleted += purged
                note_sent()
                if one in ("pending", "scheduled"):
                    self.steps.counts.deleted_count += purged
                left -= looked
                if not looked:
                    break
                if on_progress is not None:
                    on_progress(deleted)
        return deleted

    _purge = purge

    # Single tasks.

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
        advice = ". To call it off, cancel it: cancel(id)"
        self._outcome(task_id, await self.steps.remove(self._checked(task_id)), advice)

    # How that is done.

    def _consumer(self, options: ConsumerOptions) -> TaskConsumer[Any]:
        return TaskConsumer(self, options)

    async def _ids(self, status: str | None) -> AsyncIterator[list[bytes]]:
        keys = self.steps.keys
        for listed, key, command in (
            (("pending",), keys.pending, b"LRANGE"),
            (("pending",), keys.lines, b"ZRANGE"),
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
                    yield [parked(one) for one in ids] if key == keys.lines else ids
                continue
            for listener in sorted(await self.client.connection.ask(command, key, reads=True)):
                try:
                    async for ids in ids_in(self.client, keys.reserved(listener), b"LRANGE"):
                        yield ids
                except ServerError as error:
                    if error.code != "WRONGTYPE":
                        raise  # otherwise another program has damaged it: the others are listed

    def _checked(self, task_id: Any) -> bytes:
        self.check()
        return raw(validation.text(task_id, "task_id"))

    def _outcome(self, task_id: str, outcome: str, advice: str = "") -> str:
        """Return what a step on a task has done, or raise; `advice` says what to do where its status is another one."""
        what, _, detail = outcome.partition(" ")
        if what == "unknown":
            raise TaskDoesNotExistError(f"the queue {self.name!r} has no task {task_id}", id=task_id)
        if what == "other":
            raise TaskDoesNotExistError(
                f"the task {task_id} is not in the queue {self.name!r}: it is in {detail!r}. Use that queue", id=task_id
            )
        if what == "unfit":
            raise TaskStatusError(
                f"the task {task_id} is {detail}: that does not allow this. Nothing was changed{advice}", id=task_id,
                status=detail,
            )  # fmt: skip
        return what
