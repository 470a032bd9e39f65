"""The producer of a queue of events, as an `async with` block."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import Generic, Protocol, Self, TypeVar

from apressure.concurrency.lifetime import ClosingProducer

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class _Puts(Protocol[T_contra]):
    """An `EventQueue` or a `RemoteEventQueue`."""

    def check(self) -> None: ...

    async def close(self) -> None: ...

    async def put(
        self, item: T_contra, timeout: float | None = None, *, id: str | None = None, front: bool = False,
        deadline: float | None = None,
    ) -> str: ...  # fmt: skip

    async def put_nowait(
        self, item: T_contra, *, id: str | None = None, front: bool = False, deadline: float | None = None
    ) -> str: ...

    async def put_many(
        self, items: Iterable[T_contra] | AsyncIterable[T_contra], timeout: float | None = None,
        *, deadline: float | None = None,
    ) -> int: ...  # fmt: skip


class EventProducer(ClosingProducer[_Puts[T]], Generic[T]):
    """The producing end of a queue; made by `EventQueue.producer`.

    The end of the block closes the queue (unless `close=False`), and consumers end when it is drained. If the block
    raises or is cancelled, the queue stays open, so that another producer can go on.
    """

    async def __aenter__(self) -> Self:
        self._queue.check()
        self._entered = True
        return self

    async def put(
        self, item: T, timeout: float | None = None, *, id: str | None = None, front: bool = False,
        deadline: float | None = None,
    ) -> str:  # fmt: skip
        """Put an item, as `EventQueue.put` does."""
        return await self._entered_queue().put(item, timeout, id=id, front=front, deadline=deadline)

    async def put_nowait(
        self, item: T, *, id: str | None = None, front: bool = False, deadline: float | None = None
    ) -> str:
        """Put an item, as `EventQueue.put_nowait` does."""
        return await self._entered_queue().put_nowait(item, id=id, front=front, deadline=deadline)

    async def put_many(
        self, items: Iterable[T] | AsyncIterable[T], timeout: float | None = None, *, deadline: float | None = None
    ) -> int:
        """Put items in order, as `EventQueue.put_many` does."""
        return await self._entered_queue().put_many(items, timeout, deadline=deadline)
