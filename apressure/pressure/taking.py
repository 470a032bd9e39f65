"""The part of `AsyncQueue` that takes items from the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from apressure import validation
from apressure.concurrency.deadline import with_deadline, within
from apressure.core.leases.arguments import lease_of, max_hold_of
from apressure.core.queue import Iterating
from apressure.pressure.administration import Administration

if TYPE_CHECKING:
    from apressure.pressure.delivery import Delivery

T = TypeVar("T")


class Taking(Administration[T], Iterating[T]):
    """The part of `AsyncQueue` that takes items."""

    async def get(self, timeout: float | None = None, *, deadline: float | None = None) -> T:
        """Get an item, waiting while the queue is empty (specification: Get): at-most-once.

        An item that arrives while clients wait is sent once more to each of them: consider that for large items.

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            QueueEmptyError, QueueInUseError: The queue stayed empty, or in use, until the timeout.
            QueueClosedError: It is closed, and nothing is left in it.
            QueueDoesNotExistError: It was never created, or was deleted meanwhile.
            OutcomeUnknownError: The connection broke after the step was sent: an item may be lost. `consumer` and
                `receive` lose none.
            DecodeError: The codec cannot decode the item, which is in the error.

        Cancelled while it waits, nothing was taken. Cancelled while the step is on its way, it waits for the answer,
        gives the item back, first in line, then raises.
        """
        if deadline is not None:
            return await within(deadline, self.name, self.get(timeout))
        return (await self._engine.get_items(self._items, 1, timeout))[0]

    @with_deadline()
    async def get_nowait(self, *, deadline: float | None = None) -> T:
        """Get an item without waiting (specification: Get, Non-Blocking).

        Raises:
            QueueEmptyError, QueueInUseError: The queue is empty, or in use.
            QueueClosedError, QueueDoesNotExistError, OutcomeUnknownError, DecodeError: As for `get`.

        Cancelled, nothing is lost, as with `get`.
        """
        return (await self._engine.get_items(self._items, 1, None, now=True))[0]

    @with_deadline()
    async def get_many(self, max_items: int, timeout: float | None = None, *, deadline: float | None = None) -> list[T]:
        """Get one to max_items items, as many as there are, waiting while there is none: at-most-once.

        Very many or large items come in chunks: the list may be shorter than the queue.

        Raises:
            DecodeError: The first item cannot be decoded. The items behind it have been given back.
            TypeError, ValueError: max_items is not a positive whole number.
            PressureError: As for `get`.

        Cancelled, nothing is lost, as with `get`.
        """
        validation.whole(max_items, "max_items")
        return await self._engine.get_items(self._items, max_items, timeout)

    @with_deadline()
    async def receive(
        self, timeout: float | None = None, lease: float | None = None, max_hold: float | None = None,
        *, deadline: float | None = None,
    ) -> Delivery[T]:  # fmt: skip
        """Receive an item to be acknowledged: at-least-once by hand.

        The consumer role stays with this client until everything that it received is settled. When the client dies,
        or stands still for longer than the lease, the items come again, first in line. A blocked event loop does not
        matter.

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            lease: Seconds that the role stays taken when the client dies; a thread renews it while the client lives.
                None for 15.
            max_hold: Seconds after which the lease ends when nothing was received or settled meanwhile; see `consumer`.
                None for an hour.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            QueueEmptyError, QueueInUseError, QueueClosedError, QueueDoesNotExistError: As for `get`.
            LeaseLostError: The lease of earlier deliveries expired; they have been given back. Receive again.

        Cancelled, nothing was taken, or it has been given back.
        """
        from apressure.pressure.delivery import Delivery  # here, since many programs only get or put

        scripted = self._engine.scripted("receive")
        received_under, (received,) = await scripted.receive(1, timeout, lease_of(lease), max_hold_of(max_hold))
        return Delivery(received_under, received, self._items.decode)

    @with_deadline()
    async def receive_many(
        self, max_items: int, timeout: float | None = None, lease: float | None = None, max_hold: float | None = None,
        *, deadline: float | None = None,
    ) -> list[Delivery[T]]:  # fmt: skip
        """Receive one to max_items items to be acknowledged, as many as there are, waiting while there is none.

        Very many or large items come in chunks: the list may be shorter than the queue. Each delivery is settled by
        itself. All deliveries that this object has in flight share one lease.

        Args:
            max_items: How many to receive at most.
            timeout: As for `receive`.
            lease: As for `receive`.
            max_hold: As for `receive`.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            TypeError, ValueError: max_items is not a positive whole number.
            PressureError: As for `receive`.

        Cancelled, nothing was taken, or all of it has been given back, in order.
        """
        validation.whole(max_items, "max_items")
        from apressure.pressure.delivery import Delivery

        scripted = self._engine.scripted("receive_many")
        received_under, some = await scripted.receive(max_items, timeout, lease_of(lease), max_hold_of(max_hold))
        return [Delivery(received_under, received, self._items.decode) for received in some]
