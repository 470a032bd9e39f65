"""TaskQueue: a queue of tasks in the format of Blueque, as a program sees it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Literal, TypeVar, Unpack, overload

from apressure import validation
from apressure.codecs import Codec, UntypedCodec, codec_for
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.settle import note_sent
from apressure.connection.client import Client, client_of
from apressure.connection.settings import ClientOptions
from apressure.core.consumer import ConsumerOptions
from apressure.core.leases.arguments import lease_of, max_hold_of
from apressure.tasks.codec import TaskCodec
from apressure.tasks.contents import Contents
from apressure.tasks.engine.lanes import Put
from apressure.tasks.engine.steps import MAX_DELETED
from apressure.tasks.nodes.consumer import TaskConsumer
from apressure.tasks.options import DEFAULT_RESULT_TTL, refuse_unfit, time_of, ttl_of
from apressure.tasks.task import new_id

T = TypeVar("T")

POLICIES: Final = ("retry", "fail")

Purgeable = Literal["pending", "scheduled", "complete", "failed"]
"""The statuses of tasks that `purge` can delete."""

PURGEABLE: Final = ("pending", "scheduled", "complete", "failed")


class TaskQueue(Contents[T]):
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
        max_attempts: int | None = ..., lease: float | None = ..., on_orphan: Literal["retry", "fail"] = ...,
        result_ttl: float | None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: TaskQueue[bytes], name: str, *, client: Client | None = ..., codec: Literal["raw"],
        max_attempts: int | None = ..., lease: float | None = ..., on_orphan: Literal["retry", "fail"] = ...,
        result_ttl: float | None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: TaskQueue[str], name: str, *, client: Client | None = ..., codec: Literal["text"],
        max_attempts: int | None = ..., lease: float | None = ..., on_orphan: Literal["retry", "fail"] = ...,
        result_ttl: float | None = ..., **options: Unpack[ClientOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: TaskQueue[T], name: str, *, client: Client | None = ..., codec: Codec[T] | type[T],
        max_attempts: int | None = ..., lease: float | None = ..., on_orphan: Literal["retry", "fail"] = ...,
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
        on_orphan: Literal["retry", "fail"] = "retry",
        result_ttl: float | None = DEFAULT_RESULT_TTL,
        **options: Unpack[ClientOptions],
    ) -> None:
        chosen = client_of(TaskQueue, client, options)
        if max_attempts is not None:
            validation.whole(max_attempts, "max_attempts")
        if on_orphan not in POLICIES:
            raise ValueError(f"on_orphan must be one of {', '.join(map(repr, POLICIES))}, not {on_orphan!r}")
        refuse_unfit(chosen)
        used: Codec[Any] = TaskCodec() if codec is None else codec_for(codec)
        super().__init__(
            chosen, client is None, name, used, max_attempts, lease_of(lease), on_orphan, ttl_of(result_ttl)
        )

    enqueue = Contents.put
    """`put`, by the name that Blueque has for it."""

    @with_deadline()
    async def schedule(self, parameters: T, eta: datetime | float, *, deadline: float | None = None) -> str:
        """Have a task enqueued at a time (specification: Schedule Task). A `Scheduler` must run then.

        Args:
            parameters: As for `enqueue`.
            eta: When: a datetime with a time zone, or seconds since 1970. A time that has passed, by the server's
                clock, enqueues it at once.
            deadline: Seconds for the whole operation, with connecting and repeating; see `enqueue`.

        Returns:
            The task's id.

        Raises:
            PressureError: As for `enqueue`; a scheduled task does not wait for room. If its time has passed, it does.
            TypeError, ValueError: An argument is invalid. Nothing was scheduled.

        Cancelled, the task is scheduled, or not.
        """
        task_id, time = new_id(), repr(time_of(eta)).encode()
        self.check()
        await self._schedules.run(Put([(task_id, self._items.encode(parameters), time)], self._expected), None, False)
        return task_id.decode()

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
        found = await self._existing()
        left, deleted = found.waiting if status == "pending" else getattr(found, status), 0
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

    def _consumer(
        self, manual: bool, delete: bool, prefetch: int | None, lease: float | None, max_hold: float | None
    ) -> TaskConsumer[Any]:
        seconds = self.lease if lease is None else lease_of(lease)
        options = ConsumerOptions(manual, delete, prefetch, seconds, max_hold_of(max_hold))
        return TaskConsumer(self, options, limited=max_hold is not None)
