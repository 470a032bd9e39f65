"""The life of a queue object: its client, what waits in it, and how everything ends."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections import Counter
from collections.abc import Iterator, Sequence

from apressure import validation
from apressure.concurrency.backoff import Backoff
from apressure.concurrency.blocked import Blocked
from apressure.concurrency.deadline import with_deadline
from apressure.connection.settings import MAX_NAME
from apressure.core import counts as done
from apressure.core.leases.clock import since_boot
from apressure.core.objects import Block, QueueObject
from apressure.events.remote.client import OkqClient
from apressure.events.remote.commands import Counts, Pair, Popped, encoded
from apressure.events.remote.delivery import Seen
from apressure.events.remote.notices import Misses, Notices
from apressure.events.remote.ours import Look, Ours
from apressure.events.remote.statistics import RemoteEventStatistics
from apressure.exceptions import (
    ClientClosedError,
    PressureError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
    Role,
    ServerTooOldError,
)
from apressure.items import Progress

_ROOM = Backoff(first=0.005, most=0.25)
"""The pauses between two tries to push into a full queue: a push that waits on the server cannot be taken back."""


class RemoteCore(QueueObject[OkqClient, Block]):
    """The part of `RemoteEventQueue` that knows no items.

    Args:
        client: The client whose connections it uses.
        owns_client: Close it together with the queue object.
        name: The queue's name.

    Attributes:
        max_attempts: How often an event is delivered at most; None for no limit.
    """

    max_attempts: int | None = None

    def __init__(self, client: OkqClient, owns_client: bool, name: str) -> None:
        validation.text(name, "name")
        if not 1 <= len(encoded(name)) <= MAX_NAME:
            raise ValueError(f"the queue's name must have between 1 and {MAX_NAME} bytes, not {len(encoded(name))}")
        super().__init__(client, owns_client, name)
        self._notices = Notices(client.node, [name])
        self._waiting: set[asyncio.Future[None]] = set()
        self._busy: Counter[Role] = Counter()  # operations under way
        self._blocked = Blocked()
        self._done = done.Counts()
        self._seen = Seen(self._done)
        self._ours = Ours(client.commands, name)
        self._expected = False  # this object has created the queue: if it is gone, it was deleted

    def __repr__(self) -> str:
        return f"<RemoteEventQueue {self.name!r} at {self._client.commands.server.address}>"

    @with_deadline(reads=True)
    async def qsize(self, *, deadline: float | None = None) -> int:
        """Return how many events wait; those in flight do not count. It raises as `statistics` does."""
        counts = await self._counts()
        return counts.total - counts.processing

    @with_deadline(reads=True)
    async def statistics(self, *, deadline: float | None = None) -> RemoteEventStatistics:
        """Return a snapshot of the queue (specification: QSTATUS).

        Raises:
            PressureError: The server cannot be reached, or refuses.
        """
        try:
            look = await self._look()
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

    async def _counts(self) -> Counts:
        self.check()
        return await self._client.commands.counts(self.name)

    async def _look(self) -> Look:
        self.check()
        return await self._ours.look()

    def _gone(self) -> QueueDoesNotExistError:
        return QueueDoesNotExistError(f"the queue {self.name!r} was deleted", name=self.name)

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
            pause = _ROOM.pause(failures)
            with self._blocked.by("full"):
                await self._wait(loop.create_future(), pause if remaining is None else min(pause, remaining))

    async def _pop(self, most: int, lease: float, expected: bool) -> Popped:
        """Pop events, without waiting. Cancelled, nothing was taken, or it goes back."""
        popping = self._client.commands.pop(self.name, most, lease, expected, self.max_attempts or 0)
        events = await self._client.step(popping, self._put_back)
        self._seen.popped(events)
        return events

    async def _put_back(self, events: Sequence[Pair]) -> None:
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
                woken = await self._wait(self._notices.park(generation), remaining)
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

    async def _wait(self, future: asyncio.Future[None], seconds: float | None) -> bool:
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

    def _empty(self) -> QueueEmptyError:
        return QueueEmptyError(f"the queue {self.name!r} is empty", name=self.name)
