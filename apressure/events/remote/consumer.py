"""Consumers of queues on an okq server, as `async with` blocks: what the specification asks every consumer to write."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from apressure.core.consumer import ConsumerOptions, QueueConsumer
from apressure.core.leases.clock import since_boot
from apressure.core.prefetch import Chunk
from apressure.core.waiting import EMPTY, Wait
from apressure.events.remote.client import OkqClient
from apressure.events.remote.delivery import RemoteEventDelivery
from apressure.events.remote.driver import OkqDriver
from apressure.events.remote.errors import no_limit
from apressure.events.remote.hand import RemoteHand
from apressure.events.remote.notices import Misses, Notices
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

    hand: RemoteHand

    def __init__(
        self,
        queues: Sequence[OkqDriver[Any]],
        client: OkqClient,
        notices: Notices,
        options: ConsumerOptions,
        *,
        owned: bool = False,
    ) -> None:
        hand = RemoteHand(client, ", ".join(queue.name for queue in queues), options)
        super().__init__(queues, hand, Chunk(options.prefetch, MAX_PREFETCH), options, client.settings.settle_timeout)
        self.name = ""
        self._queues = queues
        self._not_drained = list(queues)
        self._created = {queue for queue in queues if queue.expected}
        self._client = client
        self._owned = owned
        self._notices = notices
        self._held = False
        self._misses = Misses()

    async def _enter(self) -> None:
        async with contextlib.AsyncExitStack() as stack:  # if this fails, the client is closed
            if self._owned:
                await stack.enter_async_context(self._client)
            self._check_queues()
            self.hand.extends = extends = await self._client.commands.extends()
            limited = next((queue for queue in self._queues if queue.max_attempts is not None), None)
            if limited is not None and not extends:
                raise no_limit(limited.name)
            if self._delete and not extends:
                raise ServerTooOldError(
                    f"a consumer of the queue {self._queues[0].name!r} cannot delete it: the released okq knows no end "
                    "of a queue. Leave out delete=, or use apressure's server (apressure events serve)"
                )
            await self._notices.hold()
            self._held = True
            stack.pop_all()
        if not extends:
            self._chunk.fixed = self._chunk.size  # the leases of those in the buffer would run out
        self._open()

    async def end(self) -> None:
        """Give back everything in hand, and deregister.

        Cancelled, that goes on, for up to `settle_timeout` seconds; then the cancellation is raised.
        """
        was_open = self._state == "open"
        try:
            await super().end()
        finally:
            if was_open and self._owned:
                await self._client.aclose()

    async def _flush(self) -> None:
        if acks := set().union(*(queue.seen.acks for queue in self._queues)):
            await asyncio.wait(acks)

    def _begin(self) -> None:
        super()._begin()
        self._not_drained = self._not_drained or list(self._queues)  # what was in hand at the end may have gone back

    def _hand_out(self, delivery: RemoteEventDelivery[Any], now: float) -> T:
        self.name = delivery.queue
        return super()._hand_out(delivery, now)

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
            if self.hand.buffer:
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
        lease = self.hand.term.seconds
        until, expected, limit = since_boot() + lease, queue in self._created, queue.max_attempts or 0
        events = await self._client.commands.pop(queue.name, self._chunk.size, lease, expected, limit)
        if events.wait.created:
            self._created.add(queue)
        queue.seen.popped(events)
        if self._state == "left":
            await queue.put_back(events)
        else:
            self.hand.took([queue.delivery(event, until, self._notices, self.hand) for event in events])

    async def _leave(self) -> None:
        if self._held:  # not if the block was cancelled at its beginning
            self._notices.release()

    async def _delete_drained(self) -> None:
        for queue in self._queues:
            look = await queue.look(lenient=False)
            if look.closed and not (look.waiting or look.claimed):
                await self._client.step(queue.steps.delete())

    async def _is_drained(self, queue: OkqDriver[Any]) -> bool:
        """Whether nobody else has an event of a closed queue, which may come back."""
        await self._flush()
        counts = await self._client.commands.counts(queue.name)
        mine = sum(one.queue == queue.name for one in self.hand.claims)
        return counts.total == counts.processing <= mine

    async def _assure(self, delivery: RemoteEventDelivery[Any]) -> None:
        """Extend the leases in hand; where that cannot be done, the event is in hand no more."""
        if self.hand.extends:
            await self.hand.assure()
        else:
            self.hand.claims.pop(delivery, None)
            self.hand.log_lost(delivery.lost("handed out"), [delivery])


def consumer_of(
    queues: Sequence[OkqDriver[Any]], options: ConsumerOptions, *, owned: bool = False
) -> RemoteEventConsumer[Any]:
    """Return a consumer of queues on one okq server: one connection is registered for all of them."""
    client, notices = queues[0].client, queues[0].waits
    if len(queues) > 1:
        notices = Notices(client.node, [queue.name for queue in queues])
        for queue in queues:
            queue.waits = notices  # they end together
    return RemoteEventConsumer(queues, client, notices, options, owned=owned)
