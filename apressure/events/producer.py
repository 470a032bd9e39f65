"""The producer of a queue of events, as an `async with` block."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from apressure.exceptions import QueueClosedError

if TYPE_CHECKING:
    from apressure.events.queue import EventQueue

T = TypeVar("T")


class EventProducer(Generic[T]):
    """The producing end of a queue; made by `EventQueue.producer`.

    The end of the block closes the queue (unless `close=False`), and consumers end when it is drained. If the block
    raises or is cancelled, the queue stays open, so that another producer can go on.
    """

    def __init__(self, queue: EventQueue[T], close: bool) -> None:
        self._queue = queue
        self._close = close
        self._entered = False

    async def __aenter__(self) -> Self:
        self._queue._check()  # noqa: SLF001
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered = False
        if self._close and kind is None:
            with contextlib.suppress(QueueClosedError):  # another producer was first
                await self._queue.close()

    async def put(self, item: T, timeout: float | None = None, *, id: str | None = None, front: bool = False) -> str:
        """Put an item, as `EventQueue.put` does."""
        return await self._open().put(item, timeout, id=id, front=front)

    async def put_nowait(self, item: T, *, id: str | None = None, front: bool = False) -> str:
        """Put an item, as `EventQueue.put_nowait` does."""
        return await self._open().put_nowait(item, id=id, front=front)

    async def put_many(self, items: Iterable[T] | AsyncIterable[T], timeout: float | None = None) -> int:
        """Put items in order, as `EventQueue.put_many` does."""
        return await self._open().put_many(items, timeout)

    def _open(self) -> EventQueue[T]:
        if not self._entered:
            raise RuntimeError("put inside the producer's block: async with queue.producer() as producer")
        return self._queue
