"""Taking items from a queue without acknowledging them: at-most-once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Generic, Protocol, Self, TypeVar

from apressure.exceptions import QueueClosedError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class _Gets(Protocol[T_co]):
    def get(self) -> Awaitable[T_co]: ...


class Iterating(Generic[T]):
    """A queue with `get`, whose items `async for` gets."""

    def __aiter__(self) -> Self:
        """Get items until the queue is closed and drained: at-most-once. `consumer` is at-least-once."""
        return self

    async def __anext__(self: _Gets[T]) -> T:
        try:
            return await self.get()
        except QueueClosedError:
            raise StopAsyncIteration from None


class Getting(ABC, Iterating[T]):
    """A queue with `get_many`, which gives the others that get."""

    @abstractmethod
    async def get_many(self, max_items: int, timeout: float | None = None, *, deadline: float | None = None) -> list[T]:
        """Get one to max_items items: each kind of queue does it in its own way."""

    async def get(self, timeout: float | None = None, *, deadline: float | None = None) -> T:
        """Get an item, waiting while the queue is empty: at-most-once.

        The item is acknowledged before it is returned. `receive` and `consumer` lose none.

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            deadline: Seconds for the whole operation; see `put`.

        Raises:
            QueueEmptyError: The queue stayed empty until the timeout.
            QueueClosedError: It is closed, and none waits.
            DecodeError: The codec cannot decode the item, which is in the error.
            PressureError, TypeError, ValueError: As for `get_many`.

        Cancelled while it waits, nothing was taken. Cancelled while it takes an item, it ends that step, puts the item
        back, first in line, then raises.
        """
        return (await self.get_many(1, timeout, deadline=deadline))[0]

    async def get_nowait(self, *, deadline: float | None = None) -> T:
        """Get an item without waiting.

        Raises:
            QueueEmptyError: The queue is empty.
            PressureError: As for `get`.

        Cancelled, nothing is lost, as with `get`.
        """
        return await self.get(0, deadline=deadline)
