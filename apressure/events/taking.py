"""The part of `EventQueue` that takes events from the queue, or looks at them."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar

from apressure import validation
from apressure.codecs import Codec, codec_for
from apressure.concurrency.deadline import with_deadline, within
from apressure.concurrency.getting import Iterating
from apressure.concurrency.handover import note_taken
from apressure.concurrency.settle import wait_for_answer, wait_shielded
from apressure.connection.client import Client
from apressure.core.leases.arguments import lease_of
from apressure.dead_letters import DeadLetter
from apressure.events.administration import Administration
from apressure.events.delivery import EventDelivery
from apressure.events.engine.answers import Event
from apressure.events.engine.letters import letters, read
from apressure.exceptions import DecodeError, QueueEmptyError
from apressure.items import Items

T = TypeVar("T")


class Taking(Administration, Iterating[T], Generic[T]):
    """The part of `EventQueue` that takes events, or looks at them.

    Args:
        client, owns_client, name, max_attempts, keep_errors: As for `Core`.
        codec: What items are.
    """

    def __init__(
        self,
        client: Client,
        owns_client: bool,
        name: str,
        max_attempts: int | None,
        keep_errors: bool,
        codec: Codec[Any] | type[Any] | str | None,
    ) -> None:
        super().__init__(client, owns_client, name, max_attempts, keep_errors)
        self._items: Items[T] = Items(name, codec_for(codec), client.settings.max_message_size)

    @with_deadline()
    async def receive(
        self, timeout: float | None = None, lease: float | None = None, *, deadline: float | None = None
    ) -> EventDelivery[T]:
        """Receive the event that is next, waiting while there is none (specification: QRPOP).

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            lease: Seconds for which no other consumer gets it; None for 15. Only `EventDelivery.extend` renews it:
                `consumer` renews by itself.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            QueueEmptyError: There was none until the timeout.
            QueueClosedError: The queue is closed, and none waits. An event in flight may still come back: then the next
                `receive` gets it.
            QueueDoesNotExistError: It was created and deleted.
            ServerError, ServerUnavailableError: The server refused, or cannot be reached. Events that were claimed come
                again when their lease ends.
            TypeError, ValueError: An argument is invalid.

        Cancelled, nothing was taken, or it has been given back.
        """
        return (await self.receive_many(1, timeout, lease))[0]

    @with_deadline()
    async def receive_many(
        self, max_items: int, timeout: float | None = None, lease: float | None = None, *, deadline: float | None = None
    ) -> list[EventDelivery[T]]:
        """Receive one to max_items events, as many as there are, waiting while there is none.

        Very many or large events come in chunks: the list may be shorter than the queue.

        Raises:
            TypeError, ValueError: max_items is not a positive whole number.
            PressureError: As for `receive`.

        Cancelled, nothing was taken, or it has been given back, in order.
        """
        validation.whole(max_items, "max_items")
        events = await self._pop(max_items, timeout, lease_of(lease))
        return [EventDelivery(self._steps, self._settler, self._items.decode, event) for event in events]

    async def get(self, timeout: float | None = None, *, deadline: float | None = None) -> T:
        """Get an item, waiting while the queue is empty: at-most-once (specification: QRPOP with EX 0).

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            QueueEmptyError: The queue stayed empty until the timeout.
            QueueClosedError: It is closed, and none waits.
            OutcomeUnknownError: The connection broke after the step was sent: an item may be lost. `receive` and
                `consumer` lose none.
            DecodeError: The codec cannot decode the item, which is in the error.
            PressureError, TypeError, ValueError: As for `receive`.

        Cancelled while it waits, nothing was taken. Cancelled while the step is on its way, it waits for the answer,
        gives the item back, first in line, then raises.
        """
        if deadline is not None:
            return await within(deadline, self.name, self.get(timeout))
        return (await self.get_many(1, timeout))[0]

    @with_deadline()
    async def get_nowait(self, *, deadline: float | None = None) -> T:
        """Get an item without waiting.

        Raises:
            QueueEmptyError: The queue is empty.
            PressureError: As for `get`.

        Cancelled, nothing is lost, as with `get`.
        """
        return await self.get(0)

    @with_deadline()
    async def get_many(self, max_items: int, timeout: float | None = None, *, deadline: float | None = None) -> list[T]:
        """Get one to max_items items, as many as there are, waiting while there is none: at-most-once.

        Raises:
            DecodeError: The first item cannot be decoded. The items behind it have been given back.
            TypeError, ValueError: max_items is not a positive whole number.
            PressureError: As for `get`.

        Cancelled, nothing is lost, as with `get`.
        """
        validation.whole(max_items, "max_items")
        taken = await self._pop(max_items, timeout, 0)
        items: list[T] = []
        kept = len(taken)
        try:
            self._items.decode_into(items, [event.contents for event in taken])
        except DecodeError:
            kept, patience = max(1, len(items)), self._steps.settle_timeout
            try:
                if behind := taken[kept:]:
                    await wait_for_answer(self._pops.give_back(behind, taken.order), None, patience)
            except asyncio.CancelledError:  # then the caller gets none of them
                await wait_shielded(self._pops.give_back(taken[:kept], taken.order), patience)
                raise
            if not items:
                note_taken(lambda: asyncio.wait((self._pops.give_back(taken[:kept], taken.order),)))
                raise
        note_taken(lambda: asyncio.wait((self._pops.give_back(taken[:kept], taken.order),)))
        return items

    @with_deadline(reads=True)
    async def peek(self, *, deadline: float | None = None) -> T:
        """Return the item that is next, without taking it (specification: QRPEEK).

        Raises:
            QueueEmptyError: None waits.
            DecodeError: The codec cannot decode it.
            PressureError: As for `statistics`.
        """
        return self._items.decode((await self._peek(False)).contents)

    @with_deadline(reads=True)
    async def peek_newest(self, *, deadline: float | None = None) -> T:
        """Return the item that was put last, without taking it (specification: QLPEEK).

        Raises:
            QueueEmptyError, DecodeError, PressureError: As for `peek`.
        """
        return self._items.decode((await self._peek(True)).contents)

    @with_deadline(reads=True)
    async def dead_letters(self, limit: int | None = 100, *, deadline: float | None = None) -> list[DeadLetter[T]]:
        """Return dead letters, the oldest first, with the reason of each. It changes nothing.

        A reason is the last error of the event (what a handler of `serve` or `pipe` or the body of `consumer` raised,
        or what was given to `nack`), its attempts, and when it became a dead letter. Until then, the server keeps
        errors of 10,000 events of a queue at most.

        Args:
            limit: How many at most; None for all.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            A list. It is read in chunks of up to 1 MiB, so dead letters that are moved meanwhile may be missing.

        Raises:
            TypeError, ValueError: An argument is invalid.
            PressureError: As for `statistics`.

        Cancelled, nothing has changed.
        """
        if limit is not None:
            validation.whole(limit, "limit")
        self.check()
        return [read(letter, self._items.decode) async for letter in letters(self._steps, limit)]

    async def _peek(self, newest: bool) -> Event:
        self.check()
        event = await self._steps.peek(newest)
        if event is None:
            raise QueueEmptyError(f"the queue {self.name!r} is empty", name=self.name)
        return event
