"""Queues and producers whose messages have ids that the program may choose, and that may be put first in line."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Generic, TypeVar, cast

from apressure.concurrency.deadline import within
from apressure.core.delivery import LeasedDelivery
from apressure.core.producer import QueueProducer
from apressure.core.queue import Queue
from apressure.events.ids import checked, new_id

T = TypeVar("T")
D = TypeVar("D", bound=LeasedDelivery[Any])


class Identified(Queue[T, D], Generic[T, D]):
    """A queue of events, on Redis or on an okq server."""

    _a_kind: ClassVar[str] = "an EventQueue"

    async def put(
        self, item: T, timeout: float | None = None, *, id: str | None = None, front: bool = False,
        deadline: float | None = None,
    ) -> str:  # fmt: skip
        """Put an item, waiting while the queue is full (specification: QLPUSH, QRPUSH).

        Args:
            item: The item; bytes, or what the codec takes.
            timeout: Seconds to wait for room at most; None to wait for ever, 0 for a single try.
            id: The event's id, which must not be in the queue; None for a random one (a UUID).
            front: Put it first in line.
            deadline: Seconds for the whole operation, with connecting, repeating and settling; None for no limit. Use
                it in request handlers: it also holds when the server is down or frozen.

        Returns:
            The event's id.

        Raises:
            QueueFullError: The queue stayed full until the timeout. Nothing was put.
            DuplicateEventError: An event with this id waits or is in flight. Nothing was put.
            QueueClosedError: It is closed. Nothing was put.
            QueueDoesNotExistError: It was created and deleted. Nothing was put.
            OutcomeUnknownError: The connection broke and could not be restored in time. On an okq server also: it
                broke, and now there is an event with the id that was given, from this put or from one before.
            DeadlineError: The deadline passed. Nothing was put, unless it is a DeadlineOutcomeUnknownError: then the
                item was sent, and may still be put.
            TypeError, ValueError: The item cannot be encoded, or is too large, or the id is invalid. Nothing was put.

        Cancelled while it waits, nothing was put. Cancelled while the step is on its way, it waits for the answer,
        then raises: the item is in the queue, or not. `timeout=` gives a certain answer.

        On this kind:
            With an `okq://` address, waiting for room means to try again after up to 0.25 s. If the reply is lost, the
            item is put again. It may then be in the queue twice, one after the other: if it was put, received and
            acknowledged before the second try. Any item that is delivered at-least-once may come twice.
        """
        if deadline is not None:
            return await within(deadline, self.name, self.put(item, timeout, id=id, front=front))
        event_id = new_id() if id is None else checked(id)
        await self._put_event(event_id, self._items.encode(item), timeout, front, id is not None)
        return event_id.decode(errors="surrogateescape")

    async def put_nowait(
        self, item: T, *, id: str | None = None, front: bool = False, deadline: float | None = None
    ) -> str:
        """Put an item without waiting for room.

        Returns:
            The event's id.

        Raises:
            QueueFullError: The queue is full. Nothing was put.
            PressureError, TypeError, ValueError: As for `put`.

        Cancelled, the item is in the queue, or not.
        """
        return await self.put(item, 0, id=id, front=front, deadline=deadline)

    def producer(self, close: bool = True) -> EventProducer[T]:
        """Return the producing end of the queue, for `async with`.

        Args:
            close: Close the queue at the end of the block, unless it raises. Producers that share a queue pass False.
        """
        return EventProducer(self, close)

    @abstractmethod
    async def _put_event(
        self, event_id: bytes, message: bytes, timeout: float | None, front: bool, given: bool
    ) -> None:
        """Put an event, waiting for room. `given`: the program has chosen its id."""


class EventProducer(QueueProducer[T], Generic[T]):
    """The producing end of a queue; made by `EventQueue.producer`.

    The end of the block closes the queue (unless `close=False`), and consumers end when it is drained. If the block
    raises or is cancelled, the queue stays open, so that another producer can go on. A released okq cannot close a
    queue: there, the end of the block raises ServerTooOldError.
    """

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

    def _entered_queue(self) -> Identified[T, Any]:
        return cast("Identified[T, Any]", super()._entered_queue())
