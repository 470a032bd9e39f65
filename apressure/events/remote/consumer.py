"""The consumer of a queue on an okq server, as an `async with` block: what the specification asks of every consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from apressure.core.consumer import ConsumerOptions
from apressure.core.prefetch import Chunk
from apressure.core.waiting import Wait
from apressure.events.consumer import AnyEventConsumer, EventHand
from apressure.events.delivery import EventDelivery
from apressure.events.remote.connection import lacks
from apressure.events.remote.delivery import RemoteEventDelivery
from apressure.events.remote.driver import OkqDriver
from apressure.exceptions import QueueClosedError, ServerTooOldError

T = TypeVar("T")

Deliveries = Sequence[EventDelivery[Any]]

MAX_PREFETCH: Final = 100
_DRAINING: Final = Wait("draining", 500)
"""A queue is closed, and others have events in flight: nobody tells when those are settled, or given back for later."""


class RemoteHand(EventHand):
    """The events that a consumer has in hand. okq knows claims by the events' ids.

    Args:
        queue: The driver of the queue.
        options: As for `EventHand`.
    """

    kind = "RemoteEventQueue"

    def __init__(self, queue: OkqDriver[Any], options: ConsumerOptions) -> None:
        super().__init__(queue.client.renewer, queue.steps, options)
        self._queue = queue

    def surrender(self) -> tuple[list[EventDelivery[Any]], list[EventDelivery[Any]]]:
        unseen, seen = super().surrender()
        for one in (*unseen, *seen):
            one.settled = True  # an event could be acknowledged by its id until it is back
        for one in unseen:
            self._queue.settler.unseen(one.claim[0])
        return unseen, seen

    def send_back(self, unseen: Deliveries, seen: Deliveries) -> list[asyncio.Future[Any]]:
        return [self._queue.client.soon(self._put_back(unseen, seen))] if unseen or seen else []

    async def _put_back(self, unseen: Deliveries, seen: Deliveries) -> None:
        for deliveries in (unseen, seen):
            certain = list(filter(self.certain, deliveries))  # others may have what has gone back by itself
            errors = [one.failure for one in certain] if deliveries is seen else None
            await self._queue.steps.put_back([one.claim[0] for one in certain], errors)


class RemoteEventConsumer(AnyEventConsumer[T, RemoteEventDelivery[Any]]):
    """The consuming end of an `EventQueue` on an okq server, at-least-once. Any number of them compete.

    The client is registered as a consumer during the block. An item is acknowledged when the loop asks for the next
    one, and at the end of the block. If the body raises or is cancelled, the item goes back, first in line. If the
    process dies, that happens when the lease ends.

    With a server of ours, a thread renews the leases of everything in hand, also while the body blocks the event loop,
    and the loop ends when the queue is closed, empty, and nobody else has an event of it in flight. The released okq
    can do neither: a body that takes longer than the lease gets its event again, and the loop never ends.

    `T` is what the iteration hands out: an item, or with `ack="manual"` its `RemoteEventDelivery`.

    Attributes:
        name: The queue's name.
    """

    hand: RemoteHand
    queue: OkqDriver[Any]

    def __init__(self, queue: OkqDriver[Any], options: ConsumerOptions) -> None:
        chunk, patience = Chunk(options.prefetch, MAX_PREFETCH), queue.client.settings.settle_timeout
        super().__init__(queue, RemoteHand(queue, options), chunk, options, patience)
        self.queue = queue
        self.name = queue.name
        self._expected = queue.expected
        self._held = self._extends = False

    async def _enter(self) -> None:
        queue = self.queue
        queue.check()
        self._extends = extends = await queue.steps.extends()
        if queue.max_attempts is not None and not extends:
            raise lacks("limit", queue.name)
        if self._delete and not extends:
            raise ServerTooOldError(
                f"a consumer of the queue {queue.name!r} cannot delete it: the released okq knows no end of a queue. "
                "Leave out delete=, or use apressure's server (apressure events serve)"
            )
        await queue.waits.hold()
        self._held = True
        if not extends:
            self.hand.renewal.end()  # nothing can renew leases
            self._chunk.fixed = self._chunk.size  # those of what is in the buffer would run out
        self._open()

    async def _flush(self) -> None:
        if acks := self.queue.settler.acks:
            await asyncio.wait(acks)

    async def _step(self) -> Wait | None:
        self._chunk.adapt()
        try:
            wait = await self.queue.client.step(self._pop())
        except QueueClosedError:
            self._expected = True
            await self._flush()
            status = await self.queue.steps.status()
            if not (status.waiting or status.delayed) and status.claimed <= len(self.hand.claims):
                raise  # nobody else has an event, which may come back
            wait = _DRAINING
        if wait is not None:
            self.queue.check()
            self._chunk.waited()
        return wait

    async def _pop(self) -> Wait | None:
        """Pop events into the buffer; those that come when the block has ended go back."""
        popped = await self.queue.pop(self._chunk.size, self.hand.term.seconds, self._expected)
        self._expected = self._expected or popped.wait.created
        if self._state == "left":
            await self.queue.put_back(popped.events)
        else:
            self.hand.took(self.queue.deliveries(popped, self.hand))
        return None if popped.events else popped.wait

    async def _leave(self) -> None:
        if self._held:  # not if the block was cancelled at its beginning
            self.queue.waits.release()

    async def _assure(self, delivery: RemoteEventDelivery[Any]) -> None:
        """Extend the leases in hand; where that cannot be done, the event is in hand no more."""
        if self._extends:
            await self.hand.assure()
        else:
            self.hand.claims.pop(delivery, None)
            self.hand.log_lost(delivery.lost("handed out"), [delivery])
