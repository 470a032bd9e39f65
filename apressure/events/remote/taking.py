"""The part of `RemoteEventQueue` that takes events, or looks at them."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Generic, TypeVar

from apressure import logs, validation
from apressure.codecs import codec_for
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.getting import Iterating
from apressure.concurrency.handover import note_taken
from apressure.dead_letters import DeadLetter
from apressure.events.engine.letters import letters, read
from apressure.events.remote.administration import RemoteAdministration
from apressure.events.remote.client import OkqClient
from apressure.events.remote.commands import Pair
from apressure.events.remote.delivery import DEFAULT_LEASE, Hand, RemoteEventDelivery, lease_of
from apressure.events.remote.notices import Notices
from apressure.exceptions import PressureError
from apressure.items import Items

T = TypeVar("T")


class RemoteTaking(RemoteAdministration, Iterating[T], Generic[T]):
    """The part of `RemoteEventQueue` that takes events, or looks at them."""

    _items: Items[T]

    def _set_up(self, client: OkqClient, owns_client: bool, name: str, codec: Any) -> None:
        super().__init__(client, owns_client, name)
        self._items = Items(name, codec_for(codec), client.settings.max_message_size)

    async def receive(
        self, timeout: float | None = None, lease: float | None = None, *, deadline: float | None = None
    ) -> RemoteEventDelivery[T]:
        """Receive the event that is next, waiting while there is none (specification: QREGISTER, QNOTIFY, QRPOP).

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            lease: Seconds for which no other consumer gets it; None for 30. The released okq rounds them up to whole
                seconds, and cannot extend them. `consumer` extends them where the server can.
            deadline: Seconds for the whole operation; see `put`.

        Raises:
            QueueEmptyError: There was none until the timeout.
            QueueClosedError: A server of ours says that the queue is closed, and none waits. An event in flight may
                still come back: then the next `receive` gets it.
            ServerError, ServerUnavailableError: The server refused, or cannot be reached. Events that were claimed come
                again when their lease ends.
            TypeError, ValueError: An argument is invalid.

        Cancelled, nothing was taken, or it has been given back.
        """
        return (await self.receive_many(1, timeout, lease, deadline=deadline))[0]

    @with_deadline()
    async def receive_many(
        self, max_items: int, timeout: float | None = None, lease: float | None = None, *, deadline: float | None = None
    ) -> list[RemoteEventDelivery[T]]:
        """Receive one to max_items events, as many as there are, waiting while there is none.

        Very many come in chunks: the list may be shorter than the queue.

        Raises:
            TypeError, ValueError: max_items is not a positive whole number.
            PressureError: As for `receive`.

        Cancelled, nothing was taken, or it has been given back, in order.
        """
        validation.whole(max_items, "max_items")
        events, until = await self._take(max_items, timeout, lease_of(lease))
        return [self._delivery(event, until, self._notices) for event in events]

    async def get(self, timeout: float | None = None, *, deadline: float | None = None) -> T:
        """Get an item, waiting while the queue is empty: at-most-once.

        The event is received and acknowledged before its item is returned.

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            deadline: Seconds for the whole operation; see `put`.

        Raises:
            QueueEmptyError: The queue stayed empty until the timeout.
            QueueClosedError: A server of ours says that it is closed, and none waits.
            OutcomeUnknownError: The connection broke during the acknowledgement: an item may be lost. `receive` and
                `consumer` lose none.
            DecodeError: The codec cannot decode the item, which is in the error.
            PressureError, TypeError, ValueError: As for `receive`.

        Cancelled while it waits, nothing was taken. Cancelled while the steps are on their way, it waits for the
        answer, puts the item back, first in line, then raises. A closed queue takes nothing back: then it is lost.
        """
        return (await self.get_many(1, timeout, deadline=deadline))[0]

    async def get_nowait(self, *, deadline: float | None = None) -> T:
        """Get an item without waiting.

        Raises:
            QueueEmptyError: The queue is empty.
            PressureError: As for `get`.

        Cancelled, an item is lost only as with `get`.
        """
        return await self.get(0, deadline=deadline)

    @with_deadline()
    async def get_many(self, max_items: int, timeout: float | None = None, *, deadline: float | None = None) -> list[T]:
        """Get one to max_items items, as many as there are, waiting while there is none: at-most-once.

        Raises:
            DecodeError: The first item cannot be decoded. The items behind it have been given back.
            TypeError, ValueError: max_items is not a positive whole number.
            PressureError: As for `get`.

        Cancelled, items are lost only as with `get`.
        """
        validation.whole(max_items, "max_items")
        while True:
            events, _ = await self._take(max_items, timeout, DEFAULT_LEASE)
            items, broken = self._items.decode_first([contents for _, contents in events])
            taken = max(1, len(items))  # a first item that cannot be decoded is in the error
            ours = await self._client.step(self._confirm(events, taken), self._return)
            self._done.deleted_count += len(ours)
            if ours:
                note_taken(functools.partial(self._return, ours))
            if ours and broken is not None:
                raise broken
            if ours:  # otherwise the leases have ended already, and others get the events
                return [item for item, event in zip(items, events, strict=False) if event in ours]

    async def _confirm(self, events: list[Pair], taken: int) -> list[Pair]:
        """Acknowledge the first events, and give back the others. Return those that were acknowledged."""
        if events[taken:]:
            await self._put_back(events[taken:])
        confirmed = await self._client.commands.confirm(self.name, [event for event, _ in events[:taken]])
        return [event for event, done in zip(events, confirmed, strict=False) if done]

    async def _return(self, events: list[Pair]) -> None:
        """Put events that were acknowledged into the queue again, first in line and in order."""
        with contextlib.suppress(PressureError):
            await self._client.commands.push(self.name, events[::-1], front=True, given=False)

    @with_deadline(reads=True)
    async def peek(self, *, deadline: float | None = None) -> T:
        """Return the item that is next, without taking it (specification: QRPEEK).

        Raises:
            QueueEmptyError: None waits.
            DecodeError: The codec cannot decode it.
            PressureError: As for `statistics`.
        """
        return self._items.decode((await self._peek(newest=False))[1])

    @with_deadline(reads=True)
    async def peek_newest(self, *, deadline: float | None = None) -> T:
        """Return the item that was put last, without taking it (specification: QLPEEK).

        Raises:
            QueueEmptyError, DecodeError, PressureError: As for `peek`.
        """
        return self._items.decode((await self._peek(newest=True))[1])

    @with_deadline(reads=True)
    async def dead_letters(self, limit: int | None = 100, *, deadline: float | None = None) -> list[DeadLetter[T]]:
        """Return dead letters, the oldest first, with the reason of each.

        Args:
            limit: How many at most; None for all.
            deadline: Seconds for the whole operation; see `put`.

        Raises:
            ServerTooOldError: It is a released okq, which has none.
            TypeError, ValueError: An argument is invalid.
            PressureError: As for `statistics`.

        Cancelled, nothing has changed.
        """
        if limit is not None:
            validation.whole(limit, "limit")
        self.check()
        return [read(letter, self._items.decode) async for letter in letters(self._ours, limit)]

    async def _peek(self, newest: bool) -> Pair:
        self.check()
        event = await self._client.commands.peek(self.name, newest)
        if event is None:
            raise self._empty()
        return event

    def _delivery(
        self, event: Pair, until: float, notices: Notices, hand: Hand | None = None
    ) -> RemoteEventDelivery[T]:
        decode, seen = self._items.decode, self._seen
        delivery = RemoteEventDelivery(self._client, self.name, event, decode, seen, until, notices, hand)
        if delivery.redelivered:
            logs.redelivered("RemoteEventQueue", self.name, delivery.id, delivery.attempts, delivery.raw)
        return delivery
