"""What is behind the verbs of `EventQueue` on a Redis or Valkey server: steps, waits and lanes of one queue.

`remote/driver.py` is the same on an okq server. Methods with `expected`: the queue must have been created.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from apressure.concurrency.handover import note_taken
from apressure.concurrency.settle import wait_for_answer, wait_shielded
from apressure.connection.client import Client
from apressure.core.leases.arguments import lease_of, max_hold_of
from apressure.core.taking import Take, Taken
from apressure.events.consumer import EventConsumer
from apressure.events.delivery import EventDelivery
from apressure.events.engine.answers import Event, Status
from apressure.events.engine.batching import EventSettler, Pair, PopLane, Push, PushLane
from apressure.events.engine.steps import MAX_EVENTS, EventSteps, Want
from apressure.events.engine.waits import EventWaits
from apressure.events.several import EventConsumers
from apressure.exceptions import DecodeError, PressureError
from apressure.items import Items, Progress
from apressure.protocols import Mover

if TYPE_CHECKING:
    from apressure.events.queue import EventQueue

T = TypeVar("T")


class RedisDriver(Generic[T]):
    """The driver of a queue on a Redis or Valkey server.

    Args:
        client: The client whose connections it uses.
        name: The queue's name.
        items: Decodes items.
        max_attempts: How often an event is delivered at most; None for no limit.
        keep_errors: Keep the errors of events that go back.

    Attributes:
        steps: The steps.
        waits: Operations wait here.
        counts: What the queue object has done so far.
        settler: Settles deliveries.
    """

    def __init__(self, client: Client, name: str, items: Items[T], max_attempts: int | None, keep_errors: bool) -> None:
        self.steps = EventSteps(client, name)
        self.waits = EventWaits(self.steps)
        self.counts = self.steps.counts
        self.settler = EventSettler(self.steps, keep_errors and max_attempts is not None)
        self._items = items
        self._limit = max_attempts or 0
        self._pushes = {front: PushLane(self.steps, self.waits, front) for front in (False, True)}
        self._pops = PopLane(self.steps, self.waits)

    @property
    def waiting(self) -> tuple[int, int]:
        """How many tasks are putting, and how many are getting or receiving."""
        return sum(lane.waiting for lane in self._pushes.values()), self._pops.waiting

    def end(self, error: PressureError) -> int:
        """Fail every operation that waits; returns how many."""
        pushes = sum(lane.end(error) for lane in self._pushes.values())
        return pushes + self._pops.end(error) + self.waits.end(error)

    def close(self, error: PressureError) -> Callable[[], Awaitable[None]] | None:
        """Release the connections of waits. Returns what is to be done before the client closes, if anything is."""
        return self.waits.hand_over if self.waits.close(error) else None

    # The queue as a whole.

    def look(self, lenient: bool) -> Awaitable[Status]:  # noqa: ARG002
        """Look at the queue. `lenient`: it is enough to know how many events wait and are in flight."""
        return self.steps.status()

    def purge(self, most: int, expected: bool) -> Awaitable[int]:
        """Delete up to so many events that wait; returns how many."""
        return self.steps.purge(most, expected)

    # Events.

    def put(self, event: Pair, timeout: float | None, front: bool, given: bool, expected: bool) -> Awaitable[None]:  # noqa: ARG002
        """Put an event, waiting for room. `given`: the program has chosen its id."""
        return self._pushes[front].run(Push([event], expected), timeout, False)

    async def put_many(self, events: list[Pair], timeout: float | None, expected: bool, progress: Progress) -> None:
        """Put events in order, waiting for room; the progress counts what is in the queue, also at a failure."""
        push = Push(events, expected)
        try:
            await self._pushes[False].run(push, timeout, False)
        finally:
            progress.accepted += push.done

    async def receive(
        self, most: int, timeout: float | None, lease: float | None, expected: bool
    ) -> list[EventDelivery[T]]:
        """Take one to `most` events, waiting while there is none."""
        events = await self._pop(most, timeout, lease_of(lease), expected)
        return [EventDelivery(self.steps, self.settler, self._items.decode, event) for event in events]

    async def get(self, most: int, timeout: float | None, expected: bool) -> list[T]:
        """Take one to `most` items for good, waiting while there is none."""
        taken = await self._pop(most, timeout, 0, expected)
        items: list[T] = []
        kept = len(taken)
        try:
            self._items.decode_into(items, [event.contents for event in taken])
        except DecodeError:
            kept, patience = max(1, len(items)), self.steps.settle_timeout
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

    def _pop(self, most: int, timeout: float | None, seconds: float, expected: bool) -> Awaitable[Taken[Event]]:
        want = Want(int(seconds * 1000), self._limit, expected)
        return self._pops.run(Take(min(most, MAX_EVENTS), want), timeout, False)

    # Consumers, and moves to another queue.

    def consumer(
        self, queue: EventQueue[T], manual: bool, delete: bool, prefetch: int | None, lease: float | None,
        max_hold: float | None,
    ) -> EventConsumer[Any]:  # fmt: skip
        """Return a consuming end of the queue."""
        return EventConsumer(queue, self, manual, delete, prefetch, lease_of(lease), max_hold_of(max_hold))

    @staticmethod
    def consumers(queues: list[EventQueue[Any]], client: Client | None, lease: float | None) -> EventConsumers:
        """Return a consumer of several queues of one server, which opens and closes the client."""
        return EventConsumers(queues, client, lease)

    def mover(self, queue: EventQueue[T], destination: Any) -> Awaitable[Mover]:
        """Return what moves events from this queue to another one."""
        from apressure.events.mover import mover_between  # here, since few programs have stages

        return mover_between(queue, self, destination)
