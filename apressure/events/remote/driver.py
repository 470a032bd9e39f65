"""What is behind the verbs of `EventQueue` on an okq server: the commands and the waits of one queue.

It has the methods of `RedisDriver`, which says what they do.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from apressure import logs
from apressure.concurrency.handover import note_taken
from apressure.core.counts import Counts
from apressure.core.dedup import knows_no_repeats
from apressure.core.delivery import Hand
from apressure.core.due import Due
from apressure.core.taking import Take, Taken
from apressure.core.waiting import Wait
from apressure.events.delivery import EventDelivery
from apressure.events.driver import EventDriver
from apressure.events.engine.answers import Event, Status
from apressure.events.engine.batching import Change, Pair
from apressure.events.engine.steps import MAX_EVENTS, Want
from apressure.events.remote.commands import MOST, Commands, Popped
from apressure.events.remote.connection import OkqClient
from apressure.events.remote.delivery import RemoteEventDelivery
from apressure.events.remote.lanes import Claimed, PopLane
from apressure.events.remote.notices import Notices
from apressure.events.remote.registry import RemoteRegistry
from apressure.exceptions import PressureError, ServerTooOldError
from apressure.items import Items, Progress

T = TypeVar("T")

_FULL: Final = 0.05
"""Seconds after which events go back to a full queue again, of a server of ours that does not know `BACK`."""

_REMEMBERED: Final = 10_000


class OkqDriver(EventDriver[OkqClient, T]):
    """The driver of a queue on an okq server.

    Args:
        client, owns_client, name, items, max_attempts: As for `EventDriver`.
        keep_errors: Have a server of ours keep the errors of events that go back.

    Attributes:
        steps: The commands.
        waits: Operations wait here.
        counts: What the queue object has done so far.
        settler: Settles deliveries, and knows how often each event was delivered.
    """

    default_lease = 30.0  # okq's own default; the released okq cannot extend it

    def __init__(
        self, client: OkqClient, owns_client: bool, name: str, items: Items[T], max_attempts: int | None,
        keep_errors: bool,
    ) -> None:  # fmt: skip
        super().__init__(client, owns_client, name, items, max_attempts)
        self.steps = Commands(client, name)
        self.waits = Notices(client.connection.node, [self.steps.queue])
        self.registry = self.waits.backpressure.registry = RemoteRegistry(client, self.steps)
        self.counts = Counts()
        self.settler = OkqSettler(self, keep_errors and max_attempts is not None)
        self.connection = client.connection
        self.settle_timeout = client.settings.settle_timeout
        self._pops = PopLane(self)
        self._putting = 0

    @staticmethod
    def wait_together(queues: Sequence[OkqDriver[Any]]) -> None:
        """Have queues wait over one connection, which is registered for all of them; their waits end together."""
        waits = Notices(queues[0].client.connection.node, [queue.steps.queue for queue in queues])
        for queue in queues:
            queue.waits = waits
            queue._pops = PopLane(queue)  # noqa: SLF001 (of this class)

    @property
    def waiting(self) -> tuple[int, int]:
        return self._putting, self._pops.waiting

    def series(self) -> None:
        """Lanes number their steps, for those whose replies are lost. okq's commands have no numbers."""

    def _end(self, error: PressureError) -> int:
        return self._pops.end(error) + self.waits.end(error)

    def _release(self, error: PressureError) -> None:
        if (ending := self.waits.close(error)) is not None and self.client.on_its_loop:
            self.client.finish_before_close(ending)

    # The queue as a whole.

    async def count(self) -> Status:
        try:
            return await self.steps.status()
        except ServerTooOldError:
            return await self.steps.counts()

    async def purge(self, most: int) -> int:
        try:
            purged = await self.steps.purge(min(most, MAX_EVENTS))
        except ServerTooOldError:
            purged = len((await self.client.step(self.steps.pop(most, 0))).events)
        self.counts.deleted_count += purged
        return purged

    # Events.

    async def put(self, event: Pair, timeout: float | None, due: Due | None, front: bool, given: bool) -> None:
        if due is not None and due.dedup is not None:
            raise knows_no_repeats(self.name, "okq's commands have no dedup_id")
        await self.put_many([event], timeout, Progress(), due, front, given)

    async def put_many(
        self, events: list[Pair], timeout: float | None, progress: Progress, due: Due | None, front: bool = False,
        given: bool = False,
    ) -> None:  # fmt: skip
        """Push events, waiting while the queue is full.

        Cancelled, a step under way ends first; `progress` has counted what is in the queue.
        """
        done, expected = Progress(), self.expected

        async def step() -> Wait | None:
            nonlocal expected
            before = done.accepted
            await self.client.step(self.steps.push(events, front, given, expected, done, due))
            expected = True  # if anything is left, it has a bound
            return None if done.accepted == len(events) else Wait("full", 5 if done.accepted > before else None)

        self._putting += 1
        try:
            await self.waits.until(step, timeout, self.name)
        finally:
            self._putting -= 1
            self.counts.put_count += done.accepted
            progress.accepted += done.accepted

    async def receive(self, most: int, timeout: float | None, lease: float | None) -> list[EventDelivery[T]]:
        taken = await self._take(most, timeout, self.lease_of(lease))
        return self.deliveries(Popped([event for event, _ in taken], taken[0][1]))

    async def get(self, most: int, timeout: float | None) -> list[T]:
        while True:
            events = [event for event, _ in await self._take(most, timeout, self.default_lease)]
            items, broken = self.items.decode_first([event.contents for event in events])
            taken = max(1, len(items))  # a first item that cannot be decoded is in the error
            ours = await self.client.step(self._confirm(events, taken), self._return)
            if ours:
                note_taken(functools.partial(self._return, ours))
            if ours and broken is not None:
                raise broken
            if ours:  # otherwise the leases have ended already, and others get the events
                return [item for item, event in zip(items, events, strict=False) if event in ours]

    async def _confirm(self, events: list[Event], taken: int) -> list[Event]:
        """Acknowledge the first events, and give back the others. Return those that were acknowledged."""
        await self.put_back(events[taken:])
        confirmed = await self.steps.confirm([event.id for event in events[:taken]])
        ours = [event for event, done in zip(events, confirmed, strict=False) if done]
        self.counts.deleted_count += len(ours)
        return ours

    async def _return(self, events: list[Event]) -> None:
        """Put events that were acknowledged into the queue again, first in line and in order."""
        self.counts.deleted_count -= len(events)
        pairs, done = [event[:2] for event in reversed(events)], Progress()
        with contextlib.suppress(PressureError):
            await self.steps.push(pairs, True, False, False, done, back=True)
            while done.accepted < len(pairs):  # an older server of ours, whose queue is full
                await asyncio.sleep(_FULL)
                await self.steps.push(pairs, True, False, False, done)

    async def put_back(self, events: Sequence[Event]) -> None:
        """Give back events that nobody has seen."""
        with contextlib.suppress(PressureError):  # they come again when their leases end
            await self.steps.put_back([event.id for event in events])

    def deliveries(self, popped: Popped, hand: Hand | None = None) -> list[EventDelivery[T]]:
        """Return the deliveries of events that were popped."""
        deliveries: list[EventDelivery[T]] = []
        for event in popped.events:
            attempts = self.settler.delivered(event)
            counted = event._replace(attempts=attempts)
            made: Any = self.settler, self.items.decode, counted, popped.until, hand
            deliveries.append(RemoteEventDelivery(*made))
            if attempts > 1:
                logs.redelivered("RemoteEventQueue", self.name, deliveries[-1].id, attempts, event.contents)
        return deliveries

    async def pop(self, most: int, lease: float, expected: bool) -> Popped:
        """Pop up to so many events for so many seconds, without waiting; `expected`: the queue must have been created.

        Cancelled, nothing was taken, or it comes again when its lease ends.
        """
        popped = await self.steps.pop(most, lease, expected, self.max_attempts or 0)
        self.counts.received_count += len(popped.events)
        self.counts.dead_lettered_count += popped.dead
        return popped

    def _take(self, most: int, timeout: float | None, lease: float) -> Awaitable[Taken[Claimed]]:
        """Pop one event at least, waiting while there is none. Cancelled, nothing was taken, or it goes back."""
        want = Want(int(lease * 1000), self.max_attempts or 0, self.expected)
        return self._pops.run(Take(min(most, MOST), want), timeout, False)


class OkqSettler:
    """Settles deliveries, and says how often each event was delivered, as our server tells.

    A released okq does not count: there it is how often this object got the event, of the latest 10,000.

    Args:
        queue: The driver of the queue.
        keep_errors: Have the server keep the errors of events that go back.

    Attributes:
        keep_errors: As given.
        max_attempts: How often an event is delivered at most; None for no limit.
        steps: The queue's commands.
        acks: Acknowledgements under way that nobody waits for.
    """

    def __init__(self, queue: OkqDriver[Any], keep_errors: bool) -> None:
        self.keep_errors = keep_errors
        self.max_attempts = queue.max_attempts
        self.acks: set[asyncio.Task[bool | Exception]] = set()
        self.steps = queue.steps
        self._queue = queue
        self._counts: OrderedDict[bytes, int] = OrderedDict()

    async def settle(self, change: Change) -> bool:
        """Make a change, and return whether the event was in the queue. Cancelled, it ends all the same."""
        return await self._queue.client.step(self._settle(change))

    def soon(self, change: Change, on_failed: Callable[[bool | Exception], None]) -> None:
        """Make a change in the background; `on_failed` gets the outcome or the error, unless it was made."""

        def settled(task: asyncio.Task[bool | Exception]) -> None:
            self.acks.discard(task)
            if (outcome := task.result()) is not True:
                on_failed(outcome)

        task = self._queue.client.soon(self._settle(change))
        self.acks.add(task)
        task.add_done_callback(settled)

    async def _settle(self, change: Change) -> bool:
        how, claim = change
        done = await self._queue.steps.settle(change)
        if done and how == "ack":
            self._queue.counts.deleted_count += 1
            self._counts.pop(claim[0], None)
        elif done and how != "later":
            self._queue.waits.wake()
        return done

    def delivered(self, event: Event) -> int:
        """An event was delivered; return how often, this time included. If the server tells that, it counts."""
        before = self._counts.pop(event.id, 0)
        self._counts[event.id] = count = event.attempts or before + 1
        if len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)
        return count

    def unseen(self, event: bytes) -> None:
        """An event went back that the program has not seen."""
        if (count := self._counts.pop(event, 0)) > 1:
            self._counts[event] = count - 1
