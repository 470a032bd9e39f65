"""What is behind the verbs of `EventQueue` on a Redis or Valkey server: steps, waits and lanes of one queue.

`remote/driver.py` is the same on an okq server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from apressure.connection.client import Client
from apressure.connection.requests import ServerRequests
from apressure.connection.workers import ServerRegistry
from apressure.core.delivery import Hand
from apressure.core.due import Due
from apressure.core.leases.arguments import lease_of
from apressure.core.objects import Block, QueueObject, SharedClient
from apressure.core.registration import Registry
from apressure.core.requests import Pressing
from apressure.core.taking import Take, Taken, got
from apressure.events.delivery import EventDelivery
from apressure.events.engine.answers import Event, Status
from apressure.events.engine.batching import AskLane, EventSettler, OnceLane, Pair, PopLane, Push, PushLane
from apressure.events.engine.steps import MAX_EVENTS, EventSteps, Want
from apressure.events.engine.waits import EventWaits
from apressure.exceptions import PressureError
from apressure.items import Items, Progress
from apressure.protocols import DEFAULT_LEASE

T = TypeVar("T")
C = TypeVar("C", bound=SharedClient)


class EventDriver(QueueObject[C, Block], Generic[C, T]):
    """What the drivers of both kinds of server have in common.

    Args:
        client: The client whose connections it uses.
        owns_client: Close it together with the driver.
        name: The queue's name.
        items: Encodes and decodes items.
        max_attempts: How often an event is delivered at most; None for no limit.

    Attributes:
        client, items, max_attempts: As given.
        expected: This object has created the queue: if it is gone, it was deleted.
        registry: Where those that work on the queue register; None where they cannot.
        default_lease: Seconds.
    """

    expected = False
    registry: Registry | None = None
    default_lease: ClassVar[float] = DEFAULT_LEASE

    def __init__(self, client: C, owns_client: bool, name: str, items: Items[T], max_attempts: int | None) -> None:
        super().__init__(client, owns_client, name)
        self.client = client
        self.items = items
        self.max_attempts = max_attempts

    def lease_of(self, lease: float | None) -> float:
        """Return a lease in seconds, checked; of None the default."""
        return lease_of(lease, default=self.default_lease)

    async def _give_back(self) -> None:
        assert self._closed_by is not None
        self._end(self._closed_by)  # first, or what waits would get what is given back
        await super()._give_back()


class RedisDriver(EventDriver[Client, T]):
    """The driver of a queue on a Redis or Valkey server.

    Args:
        client, owns_client, name, items, max_attempts: As for `EventDriver`.
        keep_errors: Keep the errors of events that go back.

    Attributes:
        steps: The steps.
        waits: Operations wait here.
        counts: What the queue object has done so far.
        settler: Settles deliveries.
        requests: What the queue object asks.
    """

    def __init__(
        self, client: Client, owns_client: bool, name: str, items: Items[T], max_attempts: int | None, keep_errors: bool
    ) -> None:
        super().__init__(client, owns_client, name, items, max_attempts)
        self.steps = EventSteps(client, name)
        self.waits = EventWaits(self.steps)
        self.counts = self.steps.counts
        self.settler = EventSettler(self.steps, keep_errors, max_attempts)
        to, push, delay = (self.steps, self.waits), self.steps.send_push, self.steps.send_delay
        self._pushes = {False: PushLane(*to, push), True: PushLane(*to, partial(push, front=True))}
        self._delays, self._once, self._asks = PushLane(*to, delay), OnceLane(*to, delay), AskLane(*to, delay)
        self._put_lanes = (*self._pushes.values(), self._delays, self._once, self._asks)
        self._pops = PopLane(*to)
        self.requests = ServerRequests(self.steps)
        self.registry = self.waits.backpressure.registry = ServerRegistry(self.steps)

    @property
    def waiting(self) -> tuple[int, int]:
        """How many tasks are putting, and how many are getting or receiving."""
        return sum(lane.waiting for lane in self._put_lanes), self._pops.waiting

    def _end(self, error: PressureError) -> int:
        pushes = sum(lane.end(error) for lane in self._put_lanes)
        return pushes + self._pops.end(error) + self.waits.end(error) + self.requests.end(error)

    def _release(self, error: PressureError) -> None:
        self.requests.close()
        if self.waits.close(error) and self.client.on_its_loop:
            self._finish(self.waits.hand_over(), "leaving the line of clients that wait")

    # The queue as a whole.

    def count(self) -> Awaitable[Status]:
        """Look at the queue. A released okq tells only how many events wait and are in flight."""
        return self.steps.status()

    def purge(self, most: int) -> Awaitable[int]:
        """Delete up to so many events that wait; returns how many."""
        return self.steps.purge(most, self.expected)

    # Events.

    def put(
        self, event: Pair, timeout: float | None, due: Due | None, front: bool, given: bool
    ) -> Awaitable[bytes | None]:  # fmt: skip
        """Put an event, waiting for room; returns the id of the one that it has replaced.

        `given`: the program has chosen its id.
        """
        item: tuple[Any, ...] = event
        lane = self._pushes[front]
        if due is not None and due.dedup is None:
            item, lane = (*event, due.encoded), self._delays
        elif due is not None:
            item, lane = (*event, due.encoded, due.dedup), self._once
        push = Push([item], self.expected)
        if given:
            push.named = True
        return lane.run(push, timeout, False)

    async def put_many(self, events: list[Pair], timeout: float | None, progress: Progress, due: Due | None) -> None:
        """Put events in order, waiting for room; the progress counts what is in the queue, also at a failure."""
        lane = self._pushes[False] if due is None else self._delays
        push = Push(events if due is None else [(*event, due.encoded) for event in events], self.expected)
        try:
            await lane.run(push, timeout, False)
        finally:
            progress.accepted += push.done

    async def ask(self, message: bytes, timeout: float, terms: Pressing) -> Any:
        """Put an event on these terms, and return its reply."""
        self.check()

        async def put(request_id: str) -> None:
            await self._asks.run(Push([(request_id.encode(), message, terms)], self.expected), timeout, False)

        return await self.requests.ask(put, timeout)

    async def receive(self, most: int, timeout: float | None, lease: float | None) -> list[EventDelivery[T]]:
        """Take one to `most` events, waiting while there is none."""
        return self.deliveries(await self._pop(most, timeout, self.lease_of(lease)))

    def deliveries(
        self, events: Iterable[Event], until: float = 0.0, hand: Hand | None = None
    ) -> list[EventDelivery[T]]:
        """Return the deliveries of events whose leases last until then, by the clock of the consumer."""
        settler, decode = self.settler, self.items.decode
        return [EventDelivery(settler, decode, event, until, hand) for event in events]

    async def get(self, most: int, timeout: float | None) -> list[T]:
        """Take one to `most` items for good, waiting while there is none."""
        taken = await self._pop(most, timeout, 0)

        def give_back(first: int, end: int | None) -> asyncio.Future[None]:
            return self._pops.give_back(taken[first:end], taken.order)

        return await got(self.items, [event.contents for event in taken], give_back, self.steps.settle_timeout)

    def _pop(self, most: int, timeout: float | None, seconds: float) -> Awaitable[Taken[Event]]:
        want = Want(int(seconds * 1000), self.max_attempts or 0, self.expected)
        return self._pops.run(Take(min(most, MAX_EVENTS), want), timeout, False)
