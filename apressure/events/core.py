"""What is behind the verbs of `EventQueue`: its client, its lanes, its steps, and how everything ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, ClassVar, Generic, TypeVar

from apressure import validation
from apressure.codecs import Codec, codec_for
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.handover import note_taken
from apressure.concurrency.settle import wait_for_answer, wait_shielded
from apressure.connection.client import Client
from apressure.core.delivery import Hand
from apressure.core.leases.arguments import lease_of
from apressure.core.objects import Block, QueueObject
from apressure.core.taking import Take, Taken
from apressure.core.waiting import Wait
from apressure.dead_letters import DeadLetter
from apressure.events.delivery import EventDelivery
from apressure.events.engine.answers import Event, Status
from apressure.events.engine.batching import EventSettler, Pair, PopLane, Push, PushLane
from apressure.events.engine.letters import Revived, letters, read, revived
from apressure.events.engine.steps import MAX_EVENTS, EventSteps, Want
from apressure.events.engine.waits import EventWaits
from apressure.events.identified import Identified
from apressure.events.ids import new_id
from apressure.events.statistics import EventQueueStatistics
from apressure.exceptions import DecodeError, PressureError
from apressure.items import Items, Progress

T = TypeVar("T")
A = TypeVar("A")


class Core(QueueObject[Client, Block], Identified[T, EventDelivery[T]], Generic[T]):
    """The part of `EventQueue` that no program calls.

    Args:
        client: The client whose connections it uses.
        owns_client: Close it together with the queue object.
        name: The queue's name.
        max_attempts: How often an event is delivered at most; None for no limit.
        keep_errors: Keep the errors of events that go back.
        codec: What items are.

    Attributes:
        client: As given.
        max_attempts: As given.
    """

    _put_most: ClassVar[int] = MAX_EVENTS

    def __init__(
        self,
        client: Client,
        owns_client: bool,
        name: str,
        max_attempts: int | None,
        keep_errors: bool,
        codec: Codec[Any] | type[Any] | str | None,
    ) -> None:
        super().__init__(client, owns_client, name)
        self.client = client
        self.max_attempts = max_attempts
        self._items: Items[T] = Items(name, codec_for(codec), client.settings.max_message_size)
        self._steps = EventSteps(client, name)
        self._waits = EventWaits(self._steps)
        self._lanes = {front: PushLane(self._steps, self._waits, front) for front in (False, True)}
        self._pops = PopLane(self._steps, self._waits)
        self._settler = EventSettler(self._steps, keep_errors and max_attempts is not None)

    def __repr__(self) -> str:
        return f"<EventQueue {self.name!r} at {self.client.server.address}>"

    @with_deadline(reads=True)
    async def statistics(self, *, deadline: float | None = None) -> EventQueueStatistics:
        """Return a snapshot of the queue (specification: QSTATUS).

        Raises:
            QueueDoesNotExistError: This object has created the queue, and it was deleted.
            ServerError: A key of the queue has a value that is not a queue's.
        """
        status: Status = await self._existing()
        return EventQueueStatistics(
            name=self.name,
            length=status.waiting,
            bound=status.bound,
            closed=status.closed,
            paused=status.paused,
            in_flight=status.claimed,
            consumers=status.consumers,
            dead_letters=status.dead,
            next_expiry=None if status.due is None else status.due / 1000,
            waiting_putters=sum(lane.waiting for lane in self._lanes.values()),
            waiting_receivers=self._pops.waiting,
            blocked=self._waits.blocked.seconds(),
            late_renewals=self.client.renewer.late[self.name],
            **self._steps.counts.fields(),
        )

    # What its consumers need.

    @property
    def steps(self) -> EventSteps:
        """Its steps."""
        return self._steps

    @property
    def waits(self) -> EventWaits:
        """Where its operations wait."""
        return self._waits

    @property
    def settler(self) -> EventSettler:
        """Settles its deliveries."""
        return self._settler

    @property
    def expected(self) -> bool:
        """Whether this object has created the queue."""
        return self._expected

    def deliveries(
        self, events: Iterable[Event], until: float = 0.0, hand: Hand | None = None
    ) -> list[EventDelivery[T]]:
        """Return the deliveries of events whose leases last until then, by the clock of the consumer."""
        made = self._steps, self._settler, self._items.decode
        return [EventDelivery(*made, event, until, hand) for event in events]

    # How its operations end.

    def _end(self, error: PressureError) -> int:
        pushes = sum(lane.end(error) for lane in self._lanes.values())
        return pushes + self._pops.end(error) + self._waits.end(error)

    def _release(self, error: PressureError) -> None:
        if self._waits.close(error) and self.client.on_its_loop:
            self._finish(self._waits.hand_over(), "leaving the line of clients that wait")

    # What is behind the operations on the queue as a whole.

    @property
    def _administration(self) -> EventSteps:
        return self._steps

    async def _look(self) -> Status:
        return await self._steps.status()

    async def _purge(self) -> int:
        return await self._purge_by_steps((await self._existing()).waiting, self._purge_step)

    async def _purge_step(self, most: int) -> int:
        purged = await self._steps.purge(min(most, MAX_EVENTS), self._expected)
        self._steps.counts.deleted_count += purged
        return purged

    async def _until(self, step: Callable[[], Awaitable[A | Wait]], timeout: float | None) -> A:
        return await self._waits.until(step, timeout, self.name)

    @contextlib.asynccontextmanager
    async def _revival(
        self, max_items: int | None, ids: Iterable[str] | None, source: str | None
    ) -> AsyncIterator[Revived]:
        dead = (await self._existing()).dead
        yield await revived(self._steps, self._waits.take_room, self._expected, dead, max_items, ids)

    async def _letters(self, limit: int | None, source: str | None) -> list[DeadLetter[T]]:
        return [read(letter, self._items.decode) async for letter in letters(self._steps, limit)]

    # What is behind puts.

    async def _put_event(
        self,
        event_id: bytes,
        message: bytes,
        timeout: float | None,
        front: bool,
        given: bool,
    ) -> None:
        await self._push(Push([(event_id, message)], self._expected), timeout, front)

    async def _put_chunk(self, chunk: list[bytes], timeout: float | None, progress: Progress) -> None:
        pairs: list[Pair] = [(new_id(), message) for message in chunk]
        push = Push(pairs, self._expected)
        try:
            await self._push(push, timeout)
        finally:
            progress.accepted += push.done

    async def _push(self, push: Push, timeout: float | None, front: bool = False) -> None:
        validation.timeout(timeout)
        self.check()
        await self._lanes[front].run(push, timeout, False)

    # What is behind receiving and getting.

    async def _receive(self, most: int, timeout: float | None, lease: float | None) -> list[EventDelivery[T]]:
        return self.deliveries(await self._pop(most, timeout, lease_of(lease)))

    async def _get(self, most: int, timeout: float | None) -> list[T]:
        taken = await self._pop(most, timeout, 0)
        items: list[T] = []
        kept = len(taken)
        try:
            self._items.decode_into(items, [event.contents for event in taken])
        except DecodeError:
            kept, patience = max(1, len(items)), self._steps.settle_timeout
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

    async def _peek(self, newest: bool) -> bytes | None:
        event = await self._steps.peek(newest)
        return None if event is None else event.contents

    async def _pop(self, most: int, timeout: float | None, seconds: float) -> Taken[Event]:
        validation.timeout(timeout)
        self.check()
        want = Want(int(seconds * 1000), self.max_attempts or 0, self._expected)
        return await self._pops.run(Take(min(most, MAX_EVENTS), want), timeout, False)  # type: ignore[no-any-return]
