"""The iteration over kinds of queue that have `get`: at-most-once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from apressure.exceptions import QueueClosedError
from apressure.sync.queue import Queue

T = TypeVar("T")


class GettingQueue(Queue[T]):
    """A queue with `get`."""

    def __iter__(self) -> Iterator[T]:
        """Get items until the queue is closed and drained: at-most-once. `consumer` is at-least-once."""
        return self

    def __next__(self) -> T:
        try:
            item: T = self._loop.call(self._behind.get)
        except QueueClosedError:
            raise StopIteration from None
        return item
