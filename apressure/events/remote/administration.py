"""Operations on a queue on an okq server as a whole: creating and closing it, looking at it, cleaning it up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from apressure import logs, validation
from apressure.concurrency.backoff import Backoff
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.settle import note_sent
from apressure.core.waiting import Wait
from apressure.dead_letters import Requeued, checked_ids
from apressure.events.administration import MAX_BOUND
from apressure.events.engine.letters import Oldest, choose, requeue
from apressure.events.engine.steps import MAX_EVENTS
from apressure.events.remote.core import RemoteCore
from apressure.exceptions import QueueClosedError, ServerTooOldError

A = TypeVar("A")

_LOOKS = Backoff(first=0.005, most=0.25)
"""The pauses between two looks of an operation that waits: the server tells nobody of room, or of the end."""


class RemoteAdministration(RemoteCore):
    """The part of `RemoteEventQueue` that moves no item from or to the program.

    A released okq knows no bounds, no end, no pauses and no dead letters: there, methods about them raise
    ServerTooOldError, which says what to use.
    """

    @with_deadline()
    async def create(self, bound: int = 0, exist_ok: bool = False, *, deadline: float | None = None) -> bool:
        """Create the queue with a bound. A queue without a bound needs no `create`: the first put makes it.

        From then on, this object's operations raise QueueDoesNotExistError once the queue was deleted.

        Args:
            bound: The most events that may wait; 0 for no bound.
            exist_ok: Leave a queue that was created before as it is, with its bound, and return False.
            deadline: Seconds for the whole operation; see `put`.

        Returns:
            Whether the queue is new.

        Raises:
            QueueAlreadyExistsError: It was created before.
            ServerTooOldError: It is a released okq.
            OutcomeUnknownError: The connection broke, and now the queue exists.
            TypeError, ValueError: The bound is not a whole number of events.

        Cancelled, the queue is created or not; creating it again with `exist_ok=True` is safe.
        """
        validation.whole(bound, "bound", 0, MAX_BOUND, "events")
        self.check()
        new = await self._client.step(self._ours.create(bound, exist_ok))
        self._expected = True
        if not new:
            await logs.kept_bound(self, bound)
        return new

    @with_deadline(reads=True)
    async def exists(self, *, deadline: float | None = None) -> bool:
        """Return whether the queue exists: it was created, or has events or registered consumers.

        On a released okq, True if the server answers: there, a queue exists as soon as it is named.

        Raises:
            PressureError: The server cannot be reached, or refuses.
        """
        try:
            return bool((await self._look()).exists)
        except ServerTooOldError:
            await self._counts()
            return True

    @with_deadline(reads=True)
    async def closed(self, *, deadline: float | None = None) -> bool:
        """Return whether the queue is closed; it stays so. A queue of a released okq never is.

        Raises:
            PressureError: The server cannot be reached, or refuses.
        """
        try:
            return bool((await self._look()).closed)
        except ServerTooOldError:
            return False

    @with_deadline(reads=True)
    async def bound(self, *, deadline: float | None = None) -> int:
        """Return the most events that may wait; 0 for no bound.

        Raises:
            ServerTooOldError: It is a released okq.
            PressureError: The server cannot be reached, or refuses.
        """
        return (await self._look()).bound

    @with_deadline(reads=True)
    async def paused(self, *, deadline: float | None = None) -> bool:
        """Return whether the queue is paused. It raises as `bound` does."""
        return bool((await self._look()).paused)

    @with_deadline()
    async def close(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Close the *queue*: nothing more can be put, and consumers end when it is drained.

        Args:
            timeout: As for `AsyncQueue.close`, which waits for the producer role. Here nothing waits.
            deadline: Seconds for the whole operation; see `put`.

        Raises:
            QueueClosedError: It was closed before.
            QueueDoesNotExistError: This object has created the queue, and it was deleted.
            ServerTooOldError: It is a released okq.

        Cancelled, the queue is closed or open.
        """
        validation.timeout(timeout)
        self.check()
        await self._client.step(self._ours.close(self._expected))

    @with_deadline(reads=True)
    async def wait_closed(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Wait until the queue is closed; events may be left in it. It looks again after up to 0.25 s.

        Raises:
            QueueOpenError: It stayed open until the timeout (a TimeoutError).
            QueueDoesNotExistError: The queue was deleted meanwhile.
            ServerTooOldError: It is a released okq.

        Cancelled, nothing has changed.
        """
        validation.timeout(timeout)
        created = self._expected

        async def look() -> bool | Wait:
            nonlocal created
            seen = await self._look()
            if created and not seen.created:
                raise self._gone()
            created = created or bool(seen.created)
            return bool(seen.closed) or Wait("open")

        await self._until(look, timeout)

    @with_deadline()
    async def delete(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Delete the queue with all events, those in flight and dead letters included.

        Tasks that wait for it get QueueDoesNotExistError, if the queue was created.

        Args:
            timeout: As for `AsyncQueue.delete`, which waits for the queue's roles. Here nothing waits.
            deadline: Seconds for the whole operation; see `put`.

        Raises:
            QueueDoesNotExistError: There is no such queue.
            ServerTooOldError: It is a released okq.
            OutcomeUnknownError: The connection broke meanwhile.

        Cancelled, the queue is deleted or not.
        """
        validation.timeout(timeout)
        self.check()
        await self._client.step(self._ours.delete())

    @with_deadline()
    async def pause(self, *, deadline: float | None = None) -> bool:
        """Pause the queue: its consumers take no further event until `resume`; see `EventQueue.pause`.

        Returns:
            Whether it was not paused before.

        Raises:
            QueueDoesNotExistError: There is no such queue.
            ServerTooOldError: It is a released okq.

        Cancelled, the queue is paused or not; pausing it again is safe.
        """
        self.check()
        return await self._client.step(self._ours.pause(True))

    @with_deadline()
    async def resume(self, *, deadline: float | None = None) -> bool:
        """End a pause: all consumers that wait for that wake at once.

        Returns:
            Whether the queue was paused.

        Raises:
            QueueDoesNotExistError, ServerTooOldError: As for `pause`.

        Cancelled, the queue is paused or not; resuming it again is safe.
        """
        self.check()
        return await self._client.step(self._ours.pause(False))

    @with_deadline()
    async def purge(self, *, deadline: float | None = None) -> int:
        """Delete the events that wait when it begins; those in flight and dead letters stay.

        okq's QFLUSH would delete those in flight, too. A released okq is asked for the events that wait, as by `get`.

        Args:
            deadline: Seconds for the whole operation; see `put`.

        Returns:
            How many were deleted.

        Raises:
            OutcomeUnknownError: The connection broke meanwhile: some of them are deleted.
            PressureError: The server cannot be reached, or refuses.

        Cancelled, the oldest events are deleted, and the others stay.
        """
        counts, deleted = await self._counts(), 0
        left = counts.total - counts.processing
        while left > 0 and (step := await self._client.step(self._purge(min(left, MAX_EVENTS)))):
            note_sent()
            deleted += step
            left -= step
        self._done.deleted_count += deleted
        return deleted

    @with_deadline()
    async def requeue(
        self,
        max_items: int | None = None,
        timeout: float | None = None,
        *,
        ids: Iterable[str] | None = None,
        deadline: float | None = None,
    ) -> Requeued:
        """Move dead letters back to the end of the queue, the oldest first.

        Args:
            max_items: How many at most; None for all that are there when it begins.
            timeout: Seconds to wait for room at most; None to wait for ever, 0 to move only what has room now.
            ids: Only the events with these ids, as `dead_letters` shows them; None for any.
            deadline: Seconds for the whole operation; see `put`.

        Returns:
            How many were moved. Its attribute `not_found` has the ids that no dead letter has (any more).

        Raises:
            QueueFullError: The queue stayed full until the timeout. `accepted` says how many were moved before.
            QueueClosedError: The queue is closed.
            ServerTooOldError: It is a released okq.
            OutcomeUnknownError: The connection broke meanwhile: some of them may have been moved.
            TypeError, ValueError: An argument is invalid.

        Cancelled, each of them is in the queue or a dead letter.
        """
        if max_items is not None:
            validation.whole(max_items, "max_items")
        validation.timeout(timeout)
        if ids is not None and max_items is not None:
            raise ValueError("give either max_items= or ids=: the ids say how many")
        chosen = None if ids is None else checked_ids(ids)
        dead = (await self._look()).dead
        choice = Oldest(dead, max_items) if chosen is None else await choose(self._ours, chosen, dead)
        moving = _Moving(self)
        moved = await requeue(moving, moving, choice, timeout, False)
        return Requeued(moved, () if isinstance(choice, Oldest) else choice.not_found)

    async def _until(self, attempt: Callable[[], Awaitable[A | Wait]], timeout: float | None) -> A:
        """Try a step, wait while it says so, try again."""
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + timeout
        failures = 0
        while isinstance(outcome := await attempt(), Wait):
            remaining = None if end is None else end - loop.time()
            if remaining is not None and remaining <= 0:
                raise outcome.error(self.name)
            failures += 1
            pause = _LOOKS.pause(failures)
            await self._wait(loop.create_future(), pause if remaining is None else min(pause, remaining))
        return outcome

    async def _purge(self, most: int) -> int:
        try:
            return await self._ours.purge(most)
        except ServerTooOldError:
            pass
        try:
            return len(await self._client.commands.pop(self.name, most, 0))
        except QueueClosedError:
            return 0


class _Moving:
    """What `letters.requeue` needs to move dead letters of a queue. A step ends although its caller is cancelled."""

    def __init__(self, queue: RemoteAdministration) -> None:
        self.name = queue.name
        self._step = queue._client.step  # noqa: SLF001 (a part of the queue object)
        self._ours = queue._ours  # noqa: SLF001
        self._until = queue._until  # noqa: SLF001

    async def requeue(self, most: int, chosen: Sequence[bytes], expected: bool) -> bytes:
        return await self._step(self._ours.requeue(most, chosen, expected))

    def take_room(self) -> None:
        """Nobody is told of room here."""

    async def until(self, attempt: Callable[[], Awaitable[A | Wait]], timeout: float | None, name: str) -> A:
        return await self._until(attempt, timeout)
