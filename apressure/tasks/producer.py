"""The producer of a queue of tasks, as an `async with` block."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from apressure.concurrency.lifetime import ClosingProducer

if TYPE_CHECKING:
    from apressure.tasks.queue import TaskQueue  # noqa: F401 (named in a string)

T = TypeVar("T")


class TaskProducer(ClosingProducer["TaskQueue[T]"], Generic[T]):
    """The producing end of a queue; made by `TaskQueue.producer`.

    The end of the block closes the queue (unless `close=False`), and consumers end when it is drained. If the block
    raises or is cancelled, the queue stays open, so that another producer can go on.
    """

    async def __aenter__(self) -> Self:
        self._queue.check()
        self._entered = True
        return self

    async def put(self, item: T, timeout: float | None = None, *, deadline: float | None = None) -> str:
        """Enqueue a task, as `TaskQueue.enqueue` does."""
        return await self._entered_queue().enqueue(item, timeout, deadline=deadline)

    async def put_nowait(self, item: T, *, deadline: float | None = None) -> str:
        """Enqueue a task, as `TaskQueue.put_nowait` does."""
        return await self._entered_queue().put_nowait(item, deadline=deadline)

    async def put_many(
        self, items: Iterable[T] | AsyncIterable[T], timeout: float | None = None, *, deadline: float | None = None
    ) -> int:
        """Enqueue tasks in order, as `TaskQueue.put_many` does."""
        return await self._entered_queue().put_many(items, timeout, deadline=deadline)
