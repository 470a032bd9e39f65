"""`TaskQueue` for code without asyncio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from apressure.sync.calls import Behind, block, blocking, iterating, receiving, receiving_many
from apressure.sync.delivery import Delivery
from apressure.sync.verbs import BlockingQueueProducer, KindQueue
from apressure.tasks.delivery import TaskDelivery
from apressure.tasks.queue import TaskQueue
from apressure.tasks.task import Task

T = TypeVar("T")


class BlockingTaskDelivery(Delivery[T]):
    """A task in hand; see `TaskDelivery`."""

    complete = blocking(TaskDelivery[T].complete)
    fail = blocking(TaskDelivery[T].fail)
    progress = blocking(TaskDelivery[T].progress)
    start = blocking(TaskDelivery[T].start)
    wait_cancel_requested = blocking(TaskDelivery[T].wait_cancel_requested)

    def on_lost(self, callback: Callable[[], object]) -> None:
        """Have `callback()` called, once, when the task is found to be lost: in another thread, so briefly."""
        self._loop.run(lambda: self._behind.on_lost(callback))

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Have `callback()` called, once, when somebody asks to cancel the task: in another thread, so briefly."""
        self._loop.run(lambda: self._behind.on_cancel(callback))

    task = Behind[Task]("The task, as it was when it was reserved.")
    lease_left = Behind[float](
        "Seconds for which no other node certainly gets it; below 0 where another one may have it."
    )
    cancel_requested = Behind[bool]("Whether somebody has asked to cancel it; renewals and `extend` find out.")


class BlockingTaskQueue(KindQueue[T]):
    """A `TaskQueue` for code without asyncio. Its methods are those of `TaskQueue`, and wait for the result.

    Where their documentation says what a cancellation leaves behind, Ctrl-C leaves the same. `tasks()` gives snapshots.
    """

    cancel = blocking(TaskQueue[T].cancel)
    delete_task = blocking(TaskQueue[T].delete_task)
    enqueue = blocking(TaskQueue[T].enqueue)
    purge = blocking(TaskQueue[T].purge)
    producer = block(TaskQueue[T].producer, BlockingQueueProducer[T])
    receive = receiving(TaskQueue[T].receive, BlockingTaskDelivery[T])
    receive_many = receiving_many(TaskQueue[T].receive_many, BlockingTaskDelivery[T])
    retry = blocking(TaskQueue[T].retry)
    schedule = blocking(TaskQueue[T].schedule)
    statistics = blocking(TaskQueue[T].statistics)
    tasks = iterating(TaskQueue[T].tasks)

    _delivery: Any = BlockingTaskDelivery
