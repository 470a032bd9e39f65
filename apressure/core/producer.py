"""The producing end of a queue, for every kind, as an `async with` block."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from apressure.core.due import ManyTerms, PutTerms
from apressure.exceptions import QueueClosedError

if TYPE_CHECKING:
    from apressure.core.queue import AnyQueue

T = TypeVar("T")
Put = TypeVar("Put")


class AnyProducer(Generic[T, Put]):
    """The producing end of a queue.

    The end of the block closes the queue (unless `close=False`), and consumers end when it is drained. If the block
    raises or is cancelled, the queue stays open, so that another producer can go on.

    `T` is what items are, and `Put` what `put` returns: an id, or None.
    """

    def __init__(self, queue: AnyQueue[T, Any, Put], close: bool) -> None:
        self._queue = queue
        self._close = close
        self._entered = False

    async def __aenter__(self) -> Self:
        await self._begin()
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered = False
        await self._end(self._close and kind is None, hurry=kind is not None)

    async def _begin(self) -> None:
        await self._queue.prepare()

    async def _end(self, close: bool, hurry: bool) -> None:  # noqa: ARG002 (an exclusive producer gives its role back)
        if close:
            with contextlib.suppress(QueueClosedError):  # another producer was first
                await self._queue.close()

    async def put(
        self, item: T, timeout: float | None = None, *, deadline: float | None = None, **terms: Unpack[PutTerms]
    ) -> Put:
        """Put an item, as the queue's `put` does."""
        return await self._entered_queue().put(item, timeout, deadline=deadline, **terms)

    async def put_nowait(self, item: T, *, deadline: float | None = None, **terms: Unpack[PutTerms]) -> Put:
        """Put an item, as the queue's `put_nowait` does."""
        return await self.put(item, 0, deadline=deadline, **terms)

    async def put_many(
        self,
        items: Iterable[T] | AsyncIterable[T],
        timeout: float | None = None,
        *,
        deadline: float | None = None,
        **terms: Unpack[ManyTerms],
    ) -> int:
        """Put items in order, as the queue's `put_many` does."""
        return await self._entered_queue().put_many(items, timeout, deadline=deadline, **terms)

    def _entered_queue(self) -> AnyQueue[T, Any, Put]:
        if not self._entered:
            raise RuntimeError("put inside the producer's block: async with queue.producer() as producer")
        return self._queue


class QueueProducer(AnyProducer[T, str], Generic[T]):
    """The producing end of a queue; made by `producer` of the queue.

    The end of the block closes the queue (unless `close=False`), and consumers end when it is drained. If the block
    raises or is cancelled, the queue stays open, so that another producer can go on.
    """
