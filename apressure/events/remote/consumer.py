"""Consumers of queues on an okq server, as `async with` blocks: what the specification asks every consumer to write."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from apressure.core.consumer import QueueConsumer
from apressure.core.leases.clock import since_boot
from apressure.core.prefetch import Chunk
from apressure.core.waiting import EMPTY, Wait
from apressure.events.remote.client import OkqClient
from apressure.events.remote.delivery import Hand, RemoteEventDelivery, lease_of
from apressure.events.remote.driver import OkqDriver
from apressure.events.remote.errors import no_limit
from apressure.events.remote.notices import Misses, Notices
from apressure.events.remote.renewing import Renewing
from apressure.exceptions import QueueClosedError, ServerTooOldError

T = TypeVar("T")

MAX_PREFETCH: Final = 100
_DRAINING: Final = 0.5
"""Seconds between two looks at a closed queue of which others have events in flight."""


class RemoteEventConsumer(QueueConsumer[T, RemoteEventDelivery[Any]]):
    """A consuming end of one or several queues, at-least-once. Any number of them compete.

    Made by `EventQueue.consumer` and `consume`. The client is registered as a consumer during the block. An item
    is acknowledged when the loop asks for the next one, and at the end of the block. If the body raises or is
    cancelled, the item goes back, first in line. If the process dies, that happens when the lease ends.

    Several queues are looked at in random order, so a busy one does not starve the others.

    With a server of ours, a thread renews the leases of everything in hand, also while the body blocks the event loop,
    and the loop ends when all queues are closed, empty, and nobody else has an event of theirs in flight. The released
    okq can do neither: a body that takes longer than the lease gets its event again, and the loop never ends.

    `T` is what the iteration hands out: an item, or with `ack="manual"` its `RemoteEventDelivery`.

    Attributes:
        name: The name of the queue that the latest item is from; empty before the first one.
    """

    hand: Hand
    _renewing: Renewing

    def __init__(
        self,
        queues: Sequence[OkqDriver[Any]],
        notices: Notices,
        owned: OkqClient | None,
        manual: bool,
        delete: bool,
        prefetch: int | None,
        lease: float,
        max_hold: float,
    ) -> None:
        hand, client = Hand(self._failed), queues[0].client
        blocks, timeout = [queue.blocks for queue in queues], client.settings.settle_timeout
        super().__init__(self._check_queues, blocks, timeout, manual=manual, delete=delete, hand=hand)
        self.name = ""
        self._queues = queues
        self._not_drained = list(queues)
        self._created = {queue for queue in queues if queue.expected}
        self._client = client
        self._owned = owned
        self._notices = notices
        self._misses = Misses()
        self._chunk = Chunk(prefetch, MAX_PREFETCH)
        self._lease = lease
        names = ", ".join(queue.name for queue in queues)
        self._renewing = Renewing(client, hand, names, lease, max_hold, self._lost, self._return_paused)
        self._extended = False

    async def _enter(self) -> None:
        async with contextlib.AsyncExitStack() as stack:  # if this fails, the client is closed
            if self._owned is not None:
                await stack.enter_async_context(self._owned)
            self._check_queues()
            self._extended = await self._client.commands.extends()
            limited = next((queue for queue in self._queues if queue.max_attempts is not None), None)
            if limited is not None and not self._extended:
                raise no_limit(limited.name)
            if self._delete and not self._extended:
                raise ServerTooOldError(
                    f"a consumer of the queue {self._queues[0].name!r} cannot delete it: the released okq knows no end "
                    "of a queue. Leave out delete=, or use apressure's server (apressure events serve)"
                )
            await self._notices.hold()
            stack.pop_all()
        if not self._extended:
            self._chunk.fixed = self._chunk.size  # the leases of those in the buffer would run out
        self._open()

    async def end(self) -> None:
        """Give back everything in hand, and deregister.

        Cancelled, that goes on, for up to `settle_timeout` seconds; then the cancellation is raised.
        """
        inside = self._inside
        try:
            await super().end()
        finally:
            if inside and self._owned is not None:
                await self._owned.aclose()

    async def _return(self, unseen: list[RemoteEventDelivery[Any]], seen: list[RemoteEventDelivery[Any]]) -> None:
        self._notices.release()
        for one in (*seen, *unseen):
            one.settled = True
        for queue in self._queues:
            for one in unseen:
                if one.queue == queue.name:
                    queue.seen.unseen(one.event)
            # What the program has not seen goes back first: what goes back later comes before it.
            for some in (unseen, seen):
                # What has gone back by itself may be in the hands of others.
                mine = [one for one in some if one.queue == queue.name and one.certain]
                events, errors = [one.event for one in mine], [one.failure for one in mine] if some is seen else None
                if mine:
                    await self._client.step(self._client.commands.put_back(queue.name, events, errors))

    def _return_paused(self, name: str) -> None:
        """Give back what came from a queue that is paused now, and was not handed out: that was no attempt."""
        prefetched = list(self._buffer)
        unseen = [one for one in prefetched if one.queue == name]
        self._buffer.clear()
        self._buffer.extend(one for one in prefetched if one.queue != name)
        for one in unseen:
            self.hand.pop(one, None)
        mine = [one.event for one in unseen if one.certain]
        if mine:
            self._client.soon(self._client.commands.put_back(name, mine))

    def _check_queues(self) -> None:
        for queue in self._queues:
            queue.check()

    def _begin(self) -> None:
        super()._begin()
        self._not_drained = self._not_drained or list(self._queues)  # what was in hand at the end may have gone back

    async def _flush(self) -> None:
        """Wait until acknowledgements have been answered."""
        if self.hand.acks:
            await asyncio.wait(self.hand.acks)

    def _hand_out(self, delivery: RemoteEventDelivery[Any]) -> T:
        self._renewing.progress += 1
        self.name = delivery.queue
        if self._manual:
            return delivery  # type: ignore[return-value]
        self._current = delivery
        return delivery.item  # type: ignore[no-any-return]

    async def _receive(self) -> None:
        """Fill the buffer, or take drained queues from those that are left. Once; it waits if there is nothing.

        Raises:
            QueueClosedError: All queues are closed and drained.
        """
        loop = asyncio.get_running_loop()
        noted, draining = self._notices.note(), False
        for queue in random.sample(self._not_drained, len(self._not_drained)):  # a busy one must not starve the others
            self._chunk.adapt()
            try:
                await self._client.step(self._pop(queue))
            except QueueClosedError:
                self._created.add(queue)
                if await self._is_drained(queue):
                    self._not_drained.remove(queue)
                    if not self._not_drained:
                        raise
                draining = True
                continue
            if self._buffer:
                self._misses = Misses()
                return
            queue.check()
        self._chunk.waited()
        began = loop.time()
        wait = Wait("draining") if draining else EMPTY
        await self._notices.wait(wait, noted, _DRAINING if draining else None)
        await self._misses.note(loop.time() - began)

    async def _pop(self, queue: OkqDriver[Any]) -> None:
        """Pop events into the buffer; those that come when the block has ended go back."""
        sent = since_boot()
        expected, limit = queue in self._created, queue.max_attempts or 0
        events = await self._client.commands.pop(queue.name, self._chunk.size, self._lease, expected, limit)
        if events.wait.created:
            self._created.add(queue)
        queue.seen.popped(events)
        if self._left:
            await queue.put_back(events)
            return
        deliveries = [queue.delivery(one, sent + self._lease, self._notices, self.hand) for one in events]
        self._buffer.extend(deliveries)
        if self._extended:
            self._renewing.arrived([(one, one) for one in deliveries], sent)
        else:
            self.hand.update((one, one) for one in deliveries)

    async def _delete_drained(self) -> None:
        for queue in self._queues:
            look = await queue.look(lenient=False)
            if look.closed and not (look.waiting or look.claimed):
                await self._client.step(queue.steps.delete())

    async def _is_drained(self, queue: OkqDriver[Any]) -> bool:
        """Whether nobody else has an event of a closed queue, which may come back."""
        await self._flush()
        counts = await self._client.commands.counts(queue.name)
        mine = sum(one.queue == queue.name for one in self.hand)
        return counts.total == counts.processing <= mine

    async def _assure(self, delivery: RemoteEventDelivery[Any]) -> None:
        """Extend the leases in hand; where that cannot be done, the event is in hand no more."""
        if self._extended:
            await self._renewing.assure()
        else:
            self.hand.pop(delivery, None)
            self._renewing.log_lost(delivery.lost("handed out"), [delivery])


def consumer_of(
    queues: Sequence[OkqDriver[Any]],
    owned: OkqClient | None,
    manual: bool,
    delete: bool,
    prefetch: int | None,
    lease: float | None,
    max_hold: float,
) -> RemoteEventConsumer[Any]:
    """Return a consumer of queues on one okq server: one connection is registered for all of them."""
    notices = queues[0].waits
    if len(queues) > 1:
        notices = Notices(queues[0].client.node, [queue.name for queue in queues])
        for queue in queues:
            queue.waits = notices  # they end together
    return RemoteEventConsumer(queues, notices, owned, manual, delete, prefetch, lease_of(lease), max_hold)
