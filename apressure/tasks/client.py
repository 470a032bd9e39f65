"""TaskClient: the entry to the tasks of a server."""

from __future__ import annotations

from typing import Any, Literal, Unpack

from apressure import validation
from apressure.codecs import Codec
from apressure.connection.client import Client
from apressure.connection.settings import OtherOptions
from apressure.core.consumer import ConsumerOptions
from apressure.core.leases.arguments import lease_of
from apressure.tasks.engine.steps import queue_names
from apressure.tasks.nodes.consumer import Listener
from apressure.tasks.options import DEFAULT_RESULT_TTL, OnOrphan, refuse_unfit, ttl_of
from apressure.tasks.processor import Processor
from apressure.tasks.queue import TaskQueue
from apressure.tasks.task import Task, fetch


class TaskClient(Client):
    """A client for queues of tasks in the format of Blueque, on a Redis or Valkey server.

    Constructing it does no I/O: it connects when the first operation needs it, or with `async with`. It belongs to the
    event loop that it was first used on, and to the process. Its end ends its queues and listeners.

    Args:
        url: As for `Client`, but for a cluster.
        result_ttl: Seconds for which the results that its processors note are kept; None keeps them.
        **options: See `OtherOptions`.

    Raises:
        TypeError: An option is unknown or of the wrong type.
        ValueError: An option is invalid, or the server is a cluster: Blueque's keys share no slot.

    Example:
        >>> async with TaskClient("redis://127.0.0.1:6379/0") as client:
        ...     task_id = await client.queue("video.encode").enqueue({"file": "a.mov"})
        ...     result = await (await client.task(task_id)).wait(timeout=3600)
    """

    def __init__(
        self, url: str | None = None, *, result_ttl: float | None = DEFAULT_RESULT_TTL, **options: Unpack[OtherOptions]
    ) -> None:
        ttl_of(result_ttl)
        validation.known(options, ("result_ttl", *OtherOptions.__annotations__))
        super().__init__(url, **options)
        refuse_unfit(self)
        self.result_ttl = result_ttl
        self._named: dict[str, TaskQueue[Any]] = {}

    def queue(
        self,
        name: str,
        *,
        codec: Codec[Any] | type[Any] | Literal["raw", "text", "json", "msgpack", "cloudevents"] | None = None,
        max_attempts: int | None = None,
        lease: float | None = None,
        on_orphan: OnOrphan = "retry",
    ) -> TaskQueue[Any]:
        """Return a queue that uses this client; see `TaskQueue`. It needs no closing."""
        chosen: Any = codec
        return TaskQueue(
            name, client=self, codec=chosen, max_attempts=max_attempts, lease=lease, on_orphan=on_orphan,
            result_ttl=self.result_ttl,
        )  # fmt: skip

    def listener(
        self,
        name: str,
        *,
        lease: float | None = None,
        max_hold: float | None = None,
        max_attempts: int | None = None,
        on_orphan: OnOrphan = "retry",
    ) -> Listener:
        """Return a listener on a queue: `async for task in client.listener(name)` hands out reserved tasks.

        Args:
            name: The queue's name.
            lease: Seconds after which tasks go to other nodes if this process dies; a thread renews it. None for 15.
            max_hold: As for `TaskQueue.consumer`.
            max_attempts: How often a task is tried at most; None for no limit.
            on_orphan: As for `TaskQueue`.
        """
        queue = self._queue_named(name)
        if max_attempts is not None or on_orphan != "retry":
            queue = self.queue(name, max_attempts=max_attempts, on_orphan=on_orphan)
        return Listener(queue, ConsumerOptions(True, False, None, lease_of(lease), max_hold))

    def processor(self, task: Task) -> Processor:
        """Return what updates a task while it is processed.

        Args:
            task: A task that was reserved: from a listener, or from `task` in another process.

        Raises:
            ValueError: The task names no queue.
        """
        if not task.queue:
            raise ValueError(f"the task {task.id} cannot be processed: its hash does not name its queue")
        return Processor(self._queue_named(task.queue), task)

    async def task(self, task_id: str) -> Task:
        """Return a task as it is now.

        Raises:
            TaskDoesNotExistError: There is no such task: it was deleted or has expired, or never was.
            TypeError: The id is not a string.
            PressureError: The server cannot be asked.

        Cancelled, nothing has changed.
        """
        return await fetch(self, task_id)

    async def queues(self) -> list[str]:
        """Return the names of all queues of tasks, sorted."""
        self.check()
        return await queue_names(self)

    def _queue_named(self, name: str) -> TaskQueue[Any]:
        """Return the queue that listeners and processors of this client share."""
        return self._named.get(name) or self._named.setdefault(name, self.queue(name))
