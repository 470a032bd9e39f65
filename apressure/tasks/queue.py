"""TaskQueue: a queue of tasks in the format of Blueque, as a program sees it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, TypeVar, Unpack, get_args, overload

from apressure import validation
from apressure.codecs import Codec, UntypedCodec, codec_for
from apressure.concurrency.deadline import with_deadline
from apressure.connection.client import Client, client_of
from apressure.connection.settings import ClientOptions
from apressure.core.consumer import ConsumerOptions
from apressure.core.leases.arguments import lease_of, max_hold_of
from apressure.tasks.codec import TaskCodec
from apressure.tasks.contents import Contents
from apressure.tasks.nodes.consumer import TaskConsumer
from apressure.tasks.options import DEFAULT_RESULT_TTL, OnOrphan, Purgeable, one_of, policy_of, refuse_unfit, time_of

T = TypeVar("T")


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
        policy = policy_of(max_attempts, lease, on_orphan, result_ttl)
        refuse_unfit(used)
        super().__init__(used, client is None, name, TaskCodec() if codec is None else codec_for(codec), policy)

    enqueue = Contents.put
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
        if older_than is not None:
            validation.seconds(older_than, "older_than", most=float("inf"), none=True)
        return await self._purge(status, older_than, on_progress)

    def _consumer(
        self, manual: bool, delete: bool, prefetch: int | None, lease: float | None, max_hold: float | None
    ) -> TaskConsumer[Any]:
        seconds = self.lease if lease is None else lease_of(lease)
        options = ConsumerOptions(manual, delete, prefetch, seconds, max_hold_of(max_hold))
        return TaskConsumer(self, options, limited=max_hold is not None)
