"""What is behind the verbs of `EventQueue` on an okq server: the commands and the waits of one queue.

It has the methods of `RedisDriver`, which says what they do.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from apressure import logs, validation
from apressure.concurrency.handover import note_taken
from apressure.connection.moves import impossible
from apressure.connection.settings import MAX_NAME
from apressure.core.counts import Counts
from apressure.core.leases.arguments import max_hold_of
from apressure.core.leases.clock import since_boot
from apressure.core.waiting import Wait
from apressure.events.engine.answers import Status
from apressure.events.remote.client import OkqClient
from apressure.events.remote.commands import Pair, Popped, encoded
from apressure.events.remote.consumer import RemoteEventConsumer
from apressure.events.remote.delivery import DEFAULT_LEASE, Hand, RemoteEventDelivery, Seen, lease_of
from apressure.events.remote.notices import Misses, Notices
from apressure.events.remote.ours import Ours
from apressure.exceptions import PressureError, QueueClosedError, Role, ServerTooOldError
from apressure.items import Items, Progress

if TYPE_CHECKING:
    from apressure.events.queue import EventQueue

T = TypeVar("T")


class OkqDriver(Generic[T]):
    """The driver of a queue on an okq server.

    Args:
        client: The client whose connections it uses.
        name: The queue's name.
        items: Decodes items.
        max_attempts: How often an event is delivered at most; None for no limit.
        keep_errors: Keep the errors of events that go back.

    Attributes:
        steps: The commands of our servers for the queue as a whole.
        waits: Operations wait here.
        counts: What the queue object has done so far.
        seen: How often each event was delivered.
    """

    def __init__(
        self, client: OkqClient, name: str, items: Items[T], max_attempts: int | None, keep_errors: bool
    ) -> None:
        validation.text(name, "name")
        if not 1 <= len(encoded(name)) <= MAX_NAME:
            raise ValueError(f"the queue's name must have between 1 and {MAX_NAME} bytes, not {len(encoded(name))}")
        self.steps = Ours(client, name)
        self.waits = Notices(client.node, [name])
        self.counts = Counts()
        self.seen = Seen(self.counts, keep_errors and max_attempts is not None)
        self._name = name
        self._client = client
        self._items = items
        self._limit = max_attempts or 0
        self._busy: Counter[Role] = Counter()  # operations under way

    @property
    def waiting(self) -> tuple[int, int]:
        return self._busy["producer"], self._busy["consumer"]

    def end(self, error: PressureError) -> int:
        return self.waits.end(error)

    def close(self, error: PressureError) -> Callable[[], Awaitable[None]] | None:
        return self.waits.close(error)

    # The queue as a whole.

    async def look(self, lenient: bool) -> Status:
        try:
            return await self.steps.status()
        except ServerTooOldError:
            if not lenient:
                raise
        counts = await self._client.commands.counts(self._name)
        waiting, claimed = counts.total - counts.processing, counts.processing
        return Status(0, False, waiting, claimed, True, counts.consumers, False, 0, None, False)

    async def purge(self, most: int, expected: bool) -> int:  # noqa: ARG002
        try:
            return await self.steps.purge(most)
        except ServerTooOldError:
            with contextlib.suppress(QueueClosedError):
                return len(await self._client.step(self._client.commands.pop(self._name, most, 0)))
        return 0

    # Events.

    async def put(self, event: Pair, timeout: float | None, front: bool, given: bool, expected: bool) -> None:
        await self._push([event], timeout, front, given, expected, Progress())

    async def put_many(self, events: list[Pair], timeout: float | None, expected: bool, progress: Progress) -> None:
        await self._push(events, timeout, False, False, expected, progress)

    async def _push(
        self, events: list[Pair], timeout: float | None, front: bool, given: bool, expected: bool, progress: Progress
    ) -> None:
        """Push events, waiting while the queue is full.

        Cancelled, a step under way ends first; `progress` has counted what is in the queue.
        """
        done = 0

        async def push() -> int:
            count = 0
            try:
                count = await self._client.commands.push(self._name, events[done:], front, given, expected)
            except PressureError as error:
                count = error.accepted
                raise
            finally:
                self.counts.put_count += count
                progress.accepted += count
            return count

        async def step() -> Wait | None:
            nonlocal done, expected
            count = await self._client.step(push())
            done += count
            expected = True  # if anything is left, it has a bound
            return None if done == len(events) else Wait("full", 5 if count else None)

        with self._counted("producer"):
            await self.waits.until(step, timeout, self._name)

    async def receive(
        self, most: int, timeout: float | None, lease: float | None, expected: bool
    ) -> list[Any]:  # of RemoteEventDelivery, which has what an EventDelivery has
        events, until = await self._take(most, timeout, lease_of(lease), expected)
        return [self.delivery(event, until, self.waits) for event in events]

    async def get(self, most: int, timeout: float | None, expected: bool) -> list[T]:
        while True:
            events, _ = await self._take(most, timeout, DEFAULT_LEASE, expected)
            items, broken = self._items.decode_first([contents for _, contents in events])
            taken = max(1, len(items))  # a first item that cannot be decoded is in the error
            ours = await self._client.step(self._confirm(events, taken), self._return)
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
        confirmed = await self._client.commands.confirm(self._name, [event for event, _ in events[:taken]])
        return [event for event, done in zip(events, confirmed, strict=False) if done]

    async def _return(self, events: list[Pair]) -> None:
        """Put events that were acknowledged into the queue again, first in line and in order."""
        with contextlib.suppress(PressureError):
            await self._client.commands.push(self._name, events[::-1], front=True, given=False)

    async def put_back(self, events: Sequence[Pair]) -> None:
        """Give back events that nobody has seen."""
        with contextlib.suppress(PressureError):  # they come again when their leases end
            await self._client.commands.put_back(self._name, [event for event, _ in events])

    def delivery(self, event: Pair, until: float, notices: Notices, hand: Hand | None = None) -> RemoteEventDelivery[T]:
        """Return the delivery of an event.

        Args:
            event: The event.
            until: When its lease may end.
            notices: Wakes those that wait for events, when it is given back.
            hand: The consumer's deliveries.
        """
        decode, seen = self._items.decode, self.seen
        delivery = RemoteEventDelivery(self._client, self._name, event, decode, seen, until, notices, hand)
        if delivery.redelivered:
            logs.redelivered("RemoteEventQueue", self._name, delivery.id, delivery.attempts, delivery.raw)
        return delivery

    async def _take(
        self, most: int, timeout: float | None, lease: float, expected: bool
    ) -> tuple[list[Pair], float]:  # fmt: skip
        """Pop one event at least, waiting while there is none. Cancelled, nothing was taken, or it goes back.

        Returns:
            The events, and until when their leases have certainly not ended.
        """
        loop = asyncio.get_running_loop()
        misses, until = Misses(), 0.0
        parked_at: float | None = None

        async def step() -> Popped | Wait:
            nonlocal expected, parked_at, until
            if parked_at is not None:
                await misses.note(loop.time() - parked_at)
            until = since_boot() + lease
            popping = self._client.commands.pop(self._name, most, lease, expected, self._limit)
            events = await self._client.step(popping, self.put_back)
            self.seen.popped(events)
            expected, parked_at = expected or events.wait.created, loop.time()
            return events or events.wait

        with self._counted("consumer"):
            return await self.waits.until(step, timeout, self._name), until

    @contextlib.contextmanager
    def _counted(self, role: Role) -> Iterator[None]:
        """Count an operation that is under way."""
        self._busy[role] += 1
        try:
            yield
        finally:
            self._busy[role] -= 1

    # Consumers. Moves need the keys of both queues.

    def consumer(
        self, queue: EventQueue[T], manual: bool, delete: bool, prefetch: int | None, lease: float | None,
        max_hold: float | None,
    ) -> RemoteEventConsumer[Any]:  # fmt: skip
        seconds, hold = lease_of(lease), max_hold_of(max_hold)
        return RemoteEventConsumer([queue], self.waits, None, manual, delete, prefetch, seconds, hold)

    @staticmethod
    def consumers(queues: list[EventQueue[Any]], client: Any, lease: float | None) -> Any:
        notices = Notices(client.node, [queue.name for queue in queues])
        for queue in queues:
            queue._driver.waits = notices  # noqa: SLF001 (they end together)
        return RemoteEventConsumer(queues, notices, client, True, False, 1, lease_of(lease), max_hold_of(None))

    async def mover(self, queue: EventQueue[T], destination: Any) -> NoReturn:
        raise impossible(queue, destination, "the source is on an okq server, which has no such command")
