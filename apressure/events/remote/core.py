"""What is behind the verbs of `RemoteEventQueue`: its client, its commands, its waits, and how everything ends."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from apressure import logs, validation
from apressure.codecs import Codec, codec_for
from apressure.concurrency.backoff import Backoff
from apressure.concurrency.blocked import Blocked
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.handover import note_taken
from apressure.connection.settings import MAX_NAME
from apressure.core import counts as done
from apressure.core.delivery import Hand
from apressure.core.leases.clock import since_boot
from apressure.core.objects import Block, QueueObject
from apressure.core.waiting import Wait
from apressure.dead_letters import DeadLetter
from apressure.events.engine.letters import Revived, letters, read, revived
from apressure.events.engine.steps import MAX_EVENTS
from apressure.events.identified import Identified
from apressure.events.ids import new_id
from apressure.events.remote.client import OkqClient
from apressure.events.remote.commands import Counts, Pair, Popped, encoded
from apressure.events.remote.delivery import DEFAULT_LEASE, RemoteEventDelivery, Seen, lease_of
from apressure.events.remote.notices import Misses, Notices
from apressure.events.remote.ours import Look, Ours
from apressure.events.remote.statistics import RemoteEventStatistics
from apressure.exceptions import (
    ClientClosedError,
    PressureError,
    QueueClosedError,
    QueueFullError,
    Role,
    ServerTooOldError,
)
from apressure.items import Items, Progress

T = TypeVar("T")
A = TypeVar("A")

_LOOKS = Backoff(first=0.005, most=0.25)
"""The pauses between two looks of an operation that waits: the server tells nobody of room, or of the end; and a push
that waits on the server cannot be taken back."""


class RemoteCore(QueueObject[OkqClient, Block], Identified[T, RemoteEventDelivery[T]], Generic[T]):
    """The part of `RemoteEventQueue` that no program calls.

    Args:
        client: The client whose connections it uses.
        owns_client: Close it together with the queue object.
        name: The queue's name.
        codec: What items are.
        max_attempts: How often an event is delivered at most; None for no limit.
        keep_errors: Keep the errors of events that go back.

    Attributes:
        max_attempts: As given.
    """

    _put_most: ClassVar[int] = MAX_EVENTS

    def __init__(
        self,
        client: OkqClient,
        owns_client: bool,
        name: str,
        codec: Codec[Any] | type[Any] | str | None,
        max_attempts: int | None,
        keep_errors: bool,
    ) -> None:
        if max_attempts is not None:
            validation.whole(max_attempts, "max_attempts")
        validation.text(name, "name")
        if not 1 <= len(encoded(name)) <= MAX_NAME:
            raise ValueError(f"the queue's name must have between 1 and {MAX_NAME} bytes, not {len(encoded(name))}")
        super().__init__(client, owns_client, name)
        self._items: Items[T] = Items(name, codec_for(codec), client.settings.max_message_size)
        self._notices = Notices(client.node, [name])
        self._waiting: set[asyncio.Future[None]] = set()
        self._busy: Counter[Role] = Counter()  # operations under way
        self._blocked = Blocked()
        self._done = done.Counts()
        self.max_attempts = max_attempts
        self._seen = Seen(self._done, keep_errors and max_attempts is not None)
        self._ours = Ours(client, name)

    def __repr__(self) -> str:
        return f"<RemoteEventQueue {self.name!r} at {self._client.commands.server.address}>"

    @with_deadline(reads=True)
    async def statistics(self, *, deadline: float | None = None) -> RemoteEventStatistics:
        """Return a snapshot of the queue (specification: QSTATUS).

        Raises:
            QueueDoesNotExistError: This object has created the queue, and it was deleted.
            PressureError: The server cannot be reached, or refuses.
        """
        try:
            look: Look = await self._existing()
        except ServerTooOldError:
            counts = await self._counts()
            look = Look(1, 0, 0, 0, 0, counts.total - counts.processing, counts.processing, counts.consumers, 0)
        return RemoteEventStatistics(
            name=self.name,
            length=look.waiting,
            in_flight=look.claimed,
            consumers=look.consumers,
            bound=look.bound,
            closed=bool(look.closed),
            paused=bool(look.paused),
            dead_letters=look.dead,
            waiting_putters=self._busy["producer"],
            waiting_receivers=self._busy["consumer"],
            blocked=self._blocked.seconds(),
            late_renewals=self._client.renewer.late[self.name],
            put_count=self._done.put_count,
            received_count=self._done.received_count,
            deleted_count=self._done.deleted_count,
        )

    async def aclose(self) -> None:
        """Release this object's connections; the queue itself stays as it is.

        Waiting operations get ClientClosedError, and consumers' blocks give back what they have in hand. Deliveries of
        `receive` stay in flight until their lease ends. Cancelled, the connections are released all the same.
        """
        self._end(ClientClosedError("the queue object was closed (aclose) while the operation waited"))
        await super().aclose()

    # What is behind the operations on the queue as a whole. A released okq knows none of them.

    @property
    def _administration(self) -> Ours:
        return self._ours

    async def _look(self) -> Look:
        self.check()
        return await self._ours.look()

    async def _exists(self) -> bool:
        try:
            return bool((await self._look()).exists)
        except ServerTooOldError:
            await self._counts()
            return True

    async def _purge(self) -> int:
        try:
            waiting, step = (await self._existing()).waiting, self._ours.purge
        except ServerTooOldError:
            counts = await self._counts()
            waiting, step = counts.total - counts.processing, self._get_away

        async def purge(most: int) -> int:
            purged = await step(min(most, MAX_EVENTS))
            self._done.deleted_count += purged
            return purged

        return await self._purge_by_steps(waiting, purge)

    async def _get_away(self, most: int) -> int:
        """Purge up to so many events on a released okq: by gets."""
        try:
            return len(await self._client.step(self._client.commands.pop(self.name, most, 0)))
        except QueueClosedError:
            return 0

    @contextlib.asynccontextmanager
    async def _revival(
        self, max_items: int | None, ids: Iterable[str] | None, source: str | None
    ) -> AsyncIterator[Revived]:
        dead = (await self._existing()).dead
        yield await revived(self._ours, lambda: None, False, dead, max_items, ids)

    async def _letters(self, limit: int | None, source: str | None) -> list[DeadLetter[T]]:
        return [read(letter, self._items.decode) async for letter in letters(self._ours, limit)]

    async def _until(self, step: Callable[[], Awaitable[A | Wait]], timeout: float | None) -> A:
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + timeout
        failures = 0
        while isinstance(outcome := await step(), Wait):
            remaining = None if end is None else end - loop.time()
            if remaining is not None and remaining <= 0:
                raise outcome.error(self.name)
            failures += 1
            pause = _LOOKS.pause(failures)
            await self.wait(loop.create_future(), pause if remaining is None else min(pause, remaining))
        return outcome

    # What its consumers need.

    @property
    def expected(self) -> bool:
        """Whether this object has created the queue."""
        return self._expected

    @property
    def acks(self) -> set[asyncio.Task[bool | Exception]]:
        """Acknowledgements under way that nobody waits for."""
        return self._seen.acks

    def popped(self, events: Popped) -> None:
        """Note that events were popped."""
        self._seen.popped(events)

    async def delete_drained(self) -> None:
        """Delete the queue if it is closed, and has nothing left."""
        look = await self._look()
        if look.closed and not (look.waiting or look.claimed):
            await self._client.step(self._ours.delete())

    async def _counts(self) -> Counts:
        self.check()
        return await self._client.commands.counts(self.name)

    # What is behind puts.

    async def _put_event(
        self, event_id: bytes, message: bytes, timeout: float | None, front: bool, given: bool
    ) -> None:
        await self._push([(event_id, message)], timeout, front, given)

    async def _put_chunk(self, chunk: list[bytes], timeout: float | None, progress: Progress) -> None:
        await self._push([(new_id(), message) for message in chunk], timeout, progress=progress)

    async def _push(
        self, pairs: list[Pair], timeout: float | None, front: bool = False, given: bool = False,
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        """Push events, waiting while the queue is full.

        Cancelled, a step under way ends first; `progress` has counted what is in the queue.
        """
        validation.timeout(timeout)
        self.check()
        with self._counted("producer"):
            await self._push_all(pairs, timeout, front, given, progress or Progress())

    async def _push_all(
        self, pairs: list[Pair], timeout: float | None, front: bool, given: bool, progress: Progress
    ) -> None:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        done = failures = 0
        expected = self._expected

        async def attempt() -> int:
            try:
                count = await self._client.commands.push(self.name, pairs[done:], front, given, expected)
            except PressureError as error:
                self._done.put_count += error.accepted
                progress.accepted += error.accepted
                raise
            self._done.put_count += count
            progress.accepted += count
            return count

        while True:
            count = await self._client.step(attempt())
            done, failures = done + count, 0 if count else failures + 1
            if done == len(pairs):
                return
            remaining = None if deadline is None else deadline - loop.time()
            if remaining is not None and remaining <= 0:
                raise QueueFullError(f"the queue {self.name!r} is full", name=self.name, accepted=done)
            expected = True  # it has a bound
            pause = _LOOKS.pause(failures)
            with self._blocked.by("full"):
                await self.wait(loop.create_future(), pause if remaining is None else min(pause, remaining))

    # What is behind receiving and getting.

    async def _receive(self, most: int, timeout: float | None, lease: float | None) -> list[RemoteEventDelivery[T]]:
        events, until = await self._take(most, timeout, lease_of(lease))
        return [self.delivery(event, until, self._notices) for event in events]

    async def _get(self, most: int, timeout: float | None) -> list[T]:
        while True:
            events, _ = await self._take(most, timeout, DEFAULT_LEASE)
            items, broken = self._items.decode_first([contents for _, contents in events])
            taken = max(1, len(items))  # a first item that cannot be decoded is in the error
            ours = await self._client.step(self._confirm(events, taken), self._return)
            self._done.deleted_count += len(ours)
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
        confirmed = await self._client.commands.confirm(self.name, [event for event, _ in events[:taken]])
        return [event for event, done in zip(events, confirmed, strict=False) if done]

    async def _return(self, events: list[Pair]) -> None:
        """Put events that were acknowledged into the queue again, first in line and in order."""
        with contextlib.suppress(PressureError):
            await self._client.commands.push(self.name, events[::-1], front=True, given=False)

    async def _peek(self, newest: bool) -> bytes | None:
        event = await self._client.commands.peek(self.name, newest)
        return None if event is None else event[1]

    def delivery(self, event: Pair, until: float, notices: Notices, hand: Hand | None = None) -> RemoteEventDelivery[T]:
        decode, seen = self._items.decode, self._seen
        delivery = RemoteEventDelivery(self._client, self.name, event, decode, seen, until, notices, hand)
        if delivery.redelivered:
            logs.redelivered("RemoteEventQueue", self.name, delivery.id, delivery.attempts, delivery.raw)
        return delivery

    async def _pop(self, most: int, lease: float, expected: bool) -> Popped:
        """Pop events, without waiting. Cancelled, nothing was taken, or it goes back."""
        popping = self._client.commands.pop(self.name, most, lease, expected, self.max_attempts or 0)
        events = await self._client.step(popping, self.put_back)
        self.popped(events)
        return events

    async def put_back(self, events: Sequence[Pair]) -> None:
        with contextlib.suppress(PressureError):  # they come again when their leases end
            await self._client.commands.put_back(self.name, [event for event, _ in events])

    async def _take(self, most: int, timeout: float | None, lease: float) -> tuple[list[Pair], float]:
        """Pop one event at least, waiting while there is none. Cancelled, nothing was taken, or it goes back.

        Returns:
            The events, and until when their leases have certainly not ended.
        """
        validation.timeout(timeout)
        self.check()
        with self._counted("consumer"):
            return await self._take_some(most, timeout, lease)

    async def _take_some(self, most: int, timeout: float | None, lease: float) -> tuple[list[Pair], float]:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        misses, expected = Misses(), self._expected
        while True:
            generation, until = self._notices.generation, since_boot() + lease
            if events := await self._pop(most, lease, expected):
                return events, until
            expected = expected or events.wait.created
            began = loop.time()
            remaining = None if deadline is None else deadline - began
            if remaining is not None and remaining <= 0:
                raise events.wait.error(self.name)
            with self._blocked.by("paused" if events.wait.reason == "paused" else "empty"):
                woken = await self.wait(self._notices.park(generation), remaining)
            if not woken:
                raise events.wait.error(self.name)
            await misses.note(loop.time() - began)

    @contextlib.contextmanager
    def _counted(self, role: Role) -> Iterator[None]:
        """Count an operation that is under way."""
        self._busy[role] += 1
        try:
            yield
        finally:
            self._busy[role] -= 1

    async def wait(self, future: asyncio.Future[None], seconds: float | None) -> bool:
        """Wait for a future, that `unblock` and `aclose` end, for so many seconds. Return whether it is done."""
        self._waiting.add(future)
        try:
            done, _ = await asyncio.wait((future,), timeout=seconds)
        finally:
            self._waiting.discard(future)
            if not future.done():
                future.cancel()
        if done:
            future.result()
        return bool(done)

    def _end(self, error: PressureError) -> int:
        waiting = [future for future in self._waiting if not future.done()]
        for future in waiting:
            future.set_exception(copy.copy(error))
            future.exception()  # the caller that waits may be cancelled in this very moment
        return len(waiting)

    def _release(self, error: PressureError) -> None:
        if (ending := self._notices.close(error)) is not None and self._client.on_its_loop:
            self._client.finish_before_close(ending)
