"""Consumers of queues on an okq server, as `async with` blocks: what the specification asks every consumer to write."""

# ruff: noqa: SLF001 (a block is a part of the queue objects that it reads)

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from apressure import logs
from apressure.concurrency.lifetime import IteratingTask
from apressure.core.leases.clock import since_boot
from apressure.events.remote.client import OkqClient
from apressure.events.remote.delivery import Hand, RemoteEventDelivery
from apressure.events.remote.notices import Misses, Notices
from apressure.events.remote.renewing import Renewing
from apressure.exceptions import LeaseLostError, PressureError, QueueClosedError

if TYPE_CHECKING:
    from apressure.events.remote.queue import RemoteEventQueue

T = TypeVar("T")

MAX_PREFETCH: Final = 100
_QUICK: Final = 0.05
"""Seconds: a chunk that the body handles in less may be followed by one of twice its size."""
_DRAINING: Final = 0.5
"""Seconds between two looks at a closed queue of which others have events in flight."""


class RemoteEventConsumer(Generic[T]):
    """A consuming end of one or several queues, at-least-once. Any number of them compete.

    Made by `RemoteEventQueue.consumer` and `consume`. The client is registered as a consumer during the block. An item
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

    acknowledges_the_one_before: Final = True
    """`put_many` reads ahead, so it refuses a consumer; see `validation.batch`."""

    def __init__(
        self,
        queues: Sequence[RemoteEventQueue[Any]],
        notices: Notices,
        owned: OkqClient | None,
        manual: bool,
        prefetch: int | None,
        lease: float,
        max_hold: float,
    ) -> None:
        self.name = ""
        self._queues = queues
        self._open = list(queues)
        self._client = queues[0]._client
        self._owned = owned
        self._notices = notices
        self._manual = manual
        self._fixed = prefetch
        self._chunk = prefetch or 1
        self._lease = lease
        self._hand = Hand(self._failed)
        names = ", ".join(queue.name for queue in queues)
        self._renewing = Renewing(self._client, self._hand, names, lease, max_hold, self._lost)
        self._extended = False
        self._buffer: deque[RemoteEventDelivery[Any]] = deque()
        self._current: RemoteEventDelivery[Any] | None = None
        self._iterating = IteratingTask()
        self._error: Exception | None = None
        self._on_lost: Callable[[Exception], None] | None = None
        self._began = self._left = False
        self._asked = 0.0

    async def __aenter__(self) -> Self:
        if self._began:
            raise RuntimeError("this consumer's block has begun already: make one for each block")
        self._began = True
        async with contextlib.AsyncExitStack() as stack:  # if this fails, the client is closed
            if self._owned is not None:
                await stack.enter_async_context(self._owned)
            for queue in self._queues:
                queue.check()
            self._extended = await self._client.commands.extends()
            await self._notices.hold()
            stack.pop_all()
        for queue in self._queues:
            queue.blocks.add(self)
        logs.role("role_taken", self._renewing.name, "consumer", shared=True, kind=self._renewing.kind)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._left:
            return  # closing the queue object gave everything back
        try:
            if kind is None:
                self._acknowledge()
                await self._flush()
                self._raise_failure()
        finally:
            if kind is None:
                await self.end()
            else:
                with contextlib.suppress(PressureError):  # the caller has to see the body's own exception
                    await self.end()

    async def end(self) -> None:
        """Give back everything in hand, and deregister.

        Cancelled, that goes on, for up to `settle_timeout` seconds; then the cancellation is raised.
        """
        if self._left:
            return
        self._left = True
        logs.role("role_released", self._renewing.name, "consumer", shared=True, kind=self._renewing.kind)
        self._renewing.end()
        for queue in self._queues:
            queue.blocks.discard(self)
        self._notices.release()
        try:
            await self._client.step(self._give_back())
        finally:
            if self._owned is not None:
                await self._owned.aclose()

    async def _give_back(self) -> None:
        back, unseen = [one for one in self._hand if not one.settled], set(self._buffer)
        self._buffer.clear()
        self._hand.clear()
        self._current = None
        for one in back:
            one.settled = True
        await self._flush()
        for queue in self._queues:
            mine = [one for one in back if one.queue == queue.name]
            for one in mine:
                if one in unseen:
                    queue._seen.unseen(one.event)
            # What has gone back by itself may be in the hands of others.
            if events := [one.event for one in mine if one.certain]:
                await self._client.commands.put_back(queue.name, events)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Return the next item; with `ack="manual"` the next `RemoteEventDelivery`.

        Cancelled while it waits, nothing is lost: the end of the block gives back what was received.

        Raises:
            StopAsyncIteration: All queues are closed and drained, on a server of ours.
            DecodeError: The event cannot be decoded. It is given back unless the loop goes on.
            LeaseLostError: The lease of an earlier item ended before it was acknowledged, and others get it. Or it was
                given up after `max_hold`.
            RuntimeError: Another task iterates already, or the block has ended.
            PressureError: The server cannot be reached, or refuses.
        """
        self._begin()
        self._open = self._open or list(self._queues)  # after the end, what was in hand may have gone back
        misses = Misses()
        while True:
            while self._buffer:
                delivery = self._buffer[0]
                if delivery in self._hand and not delivery.certain:
                    await self._assure(delivery)  # if this is cancelled, it stays prefetched
                if self._buffer and self._buffer[0] is delivery:
                    self._buffer.popleft()
                    if delivery in self._hand:
                        return self._hand_out(delivery)
            await self._receive(misses)
            if not self._open:
                await self._flush()
                self._raise_failure()
                raise StopAsyncIteration

    def take_ready(self, most: int) -> list[T]:
        """Return up to `most` deliveries that have come already, without waiting; none without `ack="manual"`.

        Call it right after the iteration has returned one, in the same turn of the event loop.
        """
        ready: list[Any] = []
        while self._manual and self._buffer and len(ready) < most and self._buffer[0].certain:
            delivery = self._buffer.popleft()
            if delivery in self._hand:
                ready.append(self._hand_out(delivery))
        return ready

    def on_lost(self, callback: Callable[[Exception], None]) -> None:
        """Have `callback(error)` called, once, when an event in hand is lost: its lease ended, and others get it."""
        self._on_lost = callback

    @property
    def attempts(self) -> int:
        """How often this object has received the current item, this time included; 0 if there is none."""
        return self._current.attempts if self._current is not None else 0

    @property
    def redelivered(self) -> bool:
        """Whether this object received the current item before."""
        return self.attempts > 1

    def _begin(self) -> None:
        """An iteration begins: acknowledge the item before."""
        for queue in self._queues:
            queue.check()
        if not self._began or self._left:
            raise RuntimeError("iterate inside the consumer's block: async with queue.consumer() as consumer")
        self._iterating.check()
        self._renewing.note_task()
        self._acknowledge()
        self._raise_failure()

    def _acknowledge(self) -> None:
        current, self._current = self._current, None
        if current is not None and not current.settled:
            current.ack_soon()

    async def _flush(self) -> None:
        """Wait until acknowledgements have been answered."""
        if self._hand.acks:
            await asyncio.wait(self._hand.acks)

    def _raise_failure(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _hand_out(self, delivery: RemoteEventDelivery[Any]) -> T:
        self._renewing.progress += 1
        self.name = delivery.queue
        if self._manual:
            return delivery  # type: ignore[return-value]
        self._current = delivery
        return delivery.item  # type: ignore[no-any-return]

    async def _receive(self, misses: Misses) -> None:
        """Fill the buffer, or take drained queues from those that are open. Once; it waits if there is nothing."""
        loop = asyncio.get_running_loop()
        generation, draining = self._notices.generation, False
        for queue in random.sample(self._open, len(self._open)):  # a busy queue must not starve the others
            self._adapt()
            try:
                await self._client.step(self._pop(queue))
            except QueueClosedError:
                queue._is_closed = True
                if await self._is_drained(queue):
                    self._open.remove(queue)
                draining = True
                continue
            if self._buffer:
                return
            queue.check()
        if self._open:
            self._asked = 0.0  # the next chunk says nothing about how quick the body is
            began = loop.time()
            await self._queues[0]._wait(self._notices.park(generation), _DRAINING if draining else None)
            await misses.note(loop.time() - began)

    async def _pop(self, queue: RemoteEventQueue[Any]) -> None:
        """Pop events into the buffer; those that come when the block has ended go back."""
        sent = since_boot()
        events = await self._client.commands.pop(queue.name, self._chunk, self._lease)
        queue._done.received_count += len(events)
        if self._left:
            await queue._put_back(events)
            return
        for event in events:
            delivery = queue._delivery(event, sent + self._lease, self._notices, self._hand)
            self._buffer.append(delivery)
            self._hand[delivery] = delivery
            if self._extended:
                self._renewing.arrived(delivery, sent)

    async def _is_drained(self, queue: RemoteEventQueue[Any]) -> bool:
        """Whether nobody else has an event of a closed queue, which may come back."""
        await self._flush()
        counts = await self._client.commands.counts(queue.name)
        mine = sum(one.queue == queue.name for one in self._hand)
        return counts.total == counts.processing <= mine

    def _adapt(self) -> None:
        """Before a chunk is asked for: decide how large it is, by how quickly the body handled the one before.

        On a released okq it is one event: the leases of those in the buffer would run out.
        """
        loop = asyncio.get_running_loop()
        if self._fixed is None and self._extended and self._asked:
            quick = loop.time() - self._asked < _QUICK
            self._chunk = min(MAX_PREFETCH, 2 * self._chunk) if quick else max(1, self._chunk // 2)
        self._asked = loop.time()

    async def _assure(self, delivery: RemoteEventDelivery[Any]) -> None:
        """Extend a lease that may have ended; where that fails, the event is in hand no more."""
        extended, sent = False, since_boot()
        if self._extended:
            commands = self._client.commands
            (extended,) = await self._client.step(commands.extend(delivery.queue, [delivery.event], self._lease))
        if extended:
            delivery.certain_until = sent + self._lease
        else:
            self._hand.pop(delivery, None)
            self._renewing.log_lost(delivery.lost("handed out"), [delivery])

    def _failed(self, error: Exception) -> None:
        """An acknowledgement that nobody waited for has failed: the next iteration says so."""
        self._error = self._error or error
        self._tell(error)

    def _lost(self, error: LeaseLostError, lost: list[RemoteEventDelivery[Any]]) -> None:
        """Claims were lost to others, or given up: the program has some of them in hand."""
        seen = [one for one in lost if one not in self._buffer]
        if seen and not self._manual:
            self._error = self._error or error
            self._current = None
        if seen:
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        callback, self._on_lost = self._on_lost, None
        if callback is not None:
            asyncio.get_running_loop().call_soon(callback, error)  # it may raise
