"""What is behind the verbs of `EventQueue` on an okq server: the commands and the waits of one queue.

It has the methods of `RedisDriver`, which says what they do.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from apressure import logs, validation
from apressure.concurrency.handover import note_taken
from apressure.connection.settings import MAX_NAME
from apressure.core.counts import Counts
from apressure.core.delivery import Hand
from apressure.core.due import Due
from apressure.core.leases.clock import since_boot
from apressure.core.waiting import Wait
from apressure.events.driver import EventDriver
from apressure.events.engine.answers import Status
from apressure.events.remote.client import OkqClient
from apressure.events.remote.commands import Pair, Popped, encoded
from apressure.events.remote.delivery import DEFAULT_LEASE, RemoteEventDelivery, Seen, lease_of
from apressure.events.remote.errors import no_delays
from apressure.events.remote.notices import Misses, Notices
from apressure.events.remote.ours import Ours
from apressure.exceptions import PressureError, QueueClosedError, Role, ServerTooOldError
from apressure.items import Items, Progress

T = TypeVar("T")


class OkqDriver(EventDriver[OkqClient, T]):
    """The driver of a queue on an okq server.

    Args:
        client, owns_client, name, items, max_attempts: As for `EventDriver`.
        keep_errors: Have a server of ours keep the errors of events that go back.

    Attributes:
        steps: The commands of our servers for the queue as a whole.
        waits: Operations wait here.
        counts: What the queue object has done so far.
        seen: How often each event was delivered.
        lease_of: As for `RedisDriver`.
    """

    lease_of = staticmethod(lease_of)

    def __init__(
        self, client: OkqClient, owns_client: bool, name: str, items: Items[T], max_attempts: int | None,
        keep_errors: bool,
    ) -> None:  # fmt: skip
        validation.text(name, "name")
        if not 1 <= len(encoded(name)) <= MAX_NAME:
            raise ValueError(f"the queue's name must have between 1 and {MAX_NAME} bytes, not {len(encoded(name))}")
        super().__init__(client, owns_client, name, items, max_attempts)
        self.steps = Ours(client, name)
        self.waits = Notices(client.node, [name])
        self.counts = Counts()
        self.seen = Seen(self.counts, keep_errors and max_attempts is not None)
        self._busy: Counter[Role] = Counter()  # operations under way

    @property
    def waiting(self) -> tuple[int, int]:
        return self._busy["producer"], self._busy["consumer"]

    def _end(self, error: PressureError) -> int:
        return self.waits.end(error)

    def _release(self, error: PressureError) -> None:
        if (ending := self.waits.close(error)) is not None and self.client.on_its_loop:
            self.client.finish_before_close(ending)

    # The queue as a whole.

    async def look(self, lenient: bool) -> Status:
        try:
            return await self.steps.status()
        except ServerTooOldError:
            if not lenient:
                raise
        counts = await self.client.commands.counts(self.name)
        waiting, claimed = counts.total - counts.processing, counts.processing
        return Status(0, False, waiting, claimed, True, counts.consumers, False, 0, None, False)

    async def purge(self, most: int) -> int:
        try:
            return await self.steps.purge(most)
        except ServerTooOldError:
            with contextlib.suppress(QueueClosedError):
                return len(await self.client.step(self.client.commands.pop(self.name, most, 0)))
        return 0

    # Events.

    async def put(self, event: Pair, timeout: float | None, due: Due | None, front: bool, given: bool) -> None:
        if due is not None:
            raise no_delays(self.name)
        await self._push([event], timeout, front, given, Progress())

    async def put_many(self, events: list[Pair], timeout: float | None, progress: Progress, due: Due | None) -> None:
        if due is not None:
            raise no_delays(self.name)
        await self._push(events, timeout, False, False, progress)

    async def _push(
        self, events: list[Pair], timeout: float | None, front: bool, given: bool, progress: Progress
    ) -> None:
        """Push events, waiting while the queue is full.

        Cancelled, a step under way ends first; `progress` has counted what is in the queue.
        """
        done, expected = 0, self.expected

        async def push() -> int:
            count = 0
            try:
                count = await self.client.commands.push(self.name, events[done:], front, given, expected)
            except PressureError as error:
                count = error.accepted
                raise
            finally:
                self.counts.put_count += count
                progress.accepted += count
            return count

        async def step() -> Wait | None:
            nonlocal done, expected
            count = await self.client.step(push())
            done += count
            expected = True  # if anything is left, it has a bound
            return None if done == len(events) else Wait("full", 5 if count else None)

        with self._counted("producer"):
            await self.waits.until(step, timeout, self.name)

    async def receive(
        self, most: int, timeout: float | None, lease: float | None
    ) -> list[Any]:  # of RemoteEventDelivery, which has what an EventDelivery has
        events, until = await self._take(most, timeout, self.lease_of(lease))
        return [self.delivery(event, until, self.waits) for event in events]

    async def get(self, most: int, timeout: float | None) -> list[T]:
        while True:
            events, _ = await self._take(most, timeout, DEFAULT_LEASE)
            items, broken = self.items.decode_first([contents for _, contents in events])
            taken = max(1, len(items))  # a first item that cannot be decoded is in the error
            ours = await self.client.step(self._confirm(events, taken), self._return)
            self.counts.deleted_count += len(ours)
            if ours:
                note_taken(functools.partial(self._return, ours))
            if ours and broken is not None:
                raise broken
            if ours:  # otherwise the leases have ended already, and others get the events
                return [item for item, event in zip(items, events, strict=False) if event in ours]

    async def _confirm(self, events: list[Pair], taken: int) -> list[Pair]:
        """Acknowledge the first events, and give back the others. Return those that were acknowledged."""
        if events[taken:]:
            await self.put_back(events[taken:])
        confirmed = await self.client.commands.confirm(self.name, [event for event, _ in events[:taken]])
        return [event for event, done in zip(events, confirmed, strict=False) if done]

    async def _return(self, events: list[Pair]) -> None:
        """Put events that were acknowledged into the queue again, first in line and in order."""
        with contextlib.suppress(PressureError):
            await self.client.commands.push(self.name, events[::-1], front=True, given=False)

    async def put_back(self, events: Sequence[Pair]) -> None:
        """Give back events that nobody has seen."""
        with contextlib.suppress(PressureError):  # they come again when their leases end
            await self.client.commands.put_back(self.name, [event for event, _ in events])

    def delivery(self, event: Pair, until: float, notices: Notices, hand: Hand | None = None) -> RemoteEventDelivery[T]:
        """Return the delivery of an event.

        Args:
            event: The event.
            until: When its lease may end.
            notices: Wakes those that wait for events, when it is given back.
            hand: The consumer's deliveries.
        """
        decode, seen = self.items.decode, self.seen
        delivery = RemoteEventDelivery(self.client, self.name, event, decode, seen, until, notices, hand)
        if delivery.redelivered:
            logs.redelivered("RemoteEventQueue", self.name, delivery.id, delivery.attempts, delivery.raw)
        return delivery

    async def _take(self, most: int, timeout: float | None, lease: float) -> tuple[list[Pair], float]:
        """Pop one event at least, waiting while there is none. Cancelled, nothing was taken, or it goes back.

        Returns:
            The events, and until when their leases have certainly not ended.
        """
        loop = asyncio.get_running_loop()
        misses, until, expected = Misses(), 0.0, self.expected
        parked_at: float | None = None

        async def step() -> Popped | Wait:
            nonlocal expected, parked_at, until
            if parked_at is not None:
                await misses.note(loop.time() - parked_at)
            until = since_boot() + lease
            popping = self.client.commands.pop(self.name, most, lease, expected, self.max_attempts or 0)
            events = await self.client.step(popping, self.put_back)
            self.seen.popped(events)
            expected, parked_at = expected or events.wait.created, loop.time()
            return events or events.wait

        with self._counted("consumer"):
            return await self.waits.until(step, timeout, self.name), until

    @contextlib.contextmanager
    def _counted(self, role: Role) -> Iterator[None]:
        """Count an operation that is under way."""
        self._busy[role] += 1
        try:
            yield
        finally:
            self._busy[role] -= 1
