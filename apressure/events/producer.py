"""The producing end of a queue of events: its puts may have ids, and may be put first in line."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, Unpack

from apressure.core.due import PutTerms
from apressure.core.producer import QueueProducer

T = TypeVar("T")


class EventProducer(QueueProducer[T], Generic[T]):
    """The producing end of a queue; made by `EventQueue.producer`.

    The end of the block closes the queue (unless `close=False`), and consumers end when it is drained. If the block
    raises or is cancelled, the queue stays open, so that another producer can go on. A released okq cannot close a
    queue: there, the end of the block raises ServerTooOldError.
    """

    async def put(
        self, item: T, timeout: float | None = None, *, id: str | None = None, front: bool = False,
        deadline: float | None = None, **terms: Unpack[PutTerms],
    ) -> str:  # fmt: skip
        """Put an item, as `EventQueue.put` does."""
        queue: Any = self._entered_queue()
        return await queue.put(  # type: ignore[no-any-return]
            item, timeout, id=id, front=front, deadline=deadline, **terms
        )

    async def put_nowait(
        self, item: T, *, id: str | None = None, front: bool = False, deadline: float | None = None,
        **terms: Unpack[PutTerms],
    ) -> str:  # fmt: skip
        """Put an item, as `EventQueue.put_nowait` does."""
        return await self.put(item, 0, id=id, front=front, deadline=deadline, **terms)
