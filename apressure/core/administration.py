"""The operations on a queue as a whole, for every kind: creating and closing it, looking at it, cleaning it up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final, Protocol, TypeVar

from apressure import logs, validation
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.settle import note_sent
from apressure.core.statistics import BoundedStatistics
from apressure.core.waiting import Wait
from apressure.exceptions import OutcomeUnknownError, QueueAlreadyExistsError, QueueDoesNotExistError

A = TypeVar("A")

MAX_BOUND: Final = 10**12


class Status(Protocol):
    """What a look at a queue tells."""

    @property
    def exists(self) -> bool | int:
        """Whether there is such a queue."""

    @property
    def created(self) -> bool | int:
        """Whether it was created. Some kinds have queues that were not, which exist while they contain something."""

    @property
    def closed(self) -> bool | int:
        """Whether it is closed."""

    @property
    def waiting(self) -> int:
        """How many messages wait."""


class AdministrationSteps(Protocol):
    """The steps of a driver that are about the queue as a whole. Each is one round trip, or one call of a thread.

    `expected`: the queue must have been created; otherwise they raise QueueDoesNotExistError.
    """

    async def create(self, bound: int) -> bool | None:
        """Create the queue, unless it exists. Returns whether it is new; None if a lost reply may have said so."""

    async def close(self, expected: bool) -> None:
        """Close the queue. Raises QueueClosedError where it is closed already."""

    async def pause(self, pausing: bool, expected: bool) -> bool:
        """Pause the queue, or resume it. Returns whether that is new."""

    async def delete(self) -> None:
        """Delete the queue. Raises QueueDoesNotExistError where there is none."""


class Administration(ABC):
    """The operations on a queue as a whole. A kind of queue has the steps, and says how its operations wait.

    Attributes:
        name: The queue's name.
    """

    name: str

    _max_bound: ClassVar[int] = MAX_BOUND

    _where = ""
    """Where it is, for errors, if the name does not say that."""

    _expected = False
    """This object has created the queue: if it is gone, it was deleted."""

    # What a kind of queue says.

    @abstractmethod
    def check(self) -> None:
        """Raise a clear error if the object cannot be used."""

    @property
    @abstractmethod
    def _administration(self) -> AdministrationSteps:
        """The steps."""

    @abstractmethod
    async def _look(self) -> Status:
        """Look at the queue. It changes nothing."""

    @abstractmethod
    async def _purge(self) -> int:
        """Delete the messages that wait when it begins; returns how many. See `_purge_by_steps`."""

    @abstractmethod
    async def _until(self, step: Callable[[], Awaitable[A | Wait]], timeout: float | None) -> A:
        """Try a step, wait while it says so, try again; raise the wait's error at the end of the timeout."""

    async def _close(self, timeout: float | None) -> None:
        """Close the queue. A kind whose `close` has to wait has its own."""
        await self._administration.close(self._expected)

    async def _delete(self, timeout: float | None) -> None:
        """Delete the queue. A kind whose `delete` has to wait has its own."""
        await self._administration.delete()

    @abstractmethod
    async def statistics(self, *, deadline: float | None = None) -> BoundedStatistics:
        """Return a snapshot of the queue."""

    # What programs call.

    @abstractmethod
    async def unblock(self) -> int:
        """End this object's blocked operations: each raises OperationUnblockedError. Nothing was put or taken.

        It reaches what waits. An operation that makes a try at this moment may end as well, without being counted, or
        wait after it: to end a task for certain, repeat `unblock` until the task is done.

        Returns:
            How many operations were waiting.
        """

    @with_deadline()
    async def create(self, bound: int = 0, exist_ok: bool = False, *, deadline: float | None = None) -> bool:
        """Create the queue with a bound. From then on, this object's operations raise an error once it was deleted.

        An AsyncQueue has to be created before it is used. One of another kind that has no bound needs no `create`: the
        first put makes it, and messages that are in the queue already stay.

        Args:
            bound: The most messages that may wait; 0 for no bound. It holds for every client of apressure, and for all
                clients of an AsyncQueue.
            exist_ok: Leave a queue that was created before as it is, with its bound, and return False.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            Whether the queue is new.

        Raises:
            QueueAlreadyExistsError: It was created before. Or, for an AsyncQueue, one of its keys belongs to a queue of
                another name.
            ServerTooOldError: It is on a released okq.
            StorageError: The file system refused.
            OutcomeUnknownError: The connection broke and could not be restored in time.
            TypeError, ValueError: The bound is not a whole number of messages.

        Cancelled, the queue is created or not; creating it again with `exist_ok=True` is safe.

        On this kind:
            AsyncQueue: The specification's Create. It clears what an earlier queue of the name has left.
            EventQueue, TaskQueue: An okq or a blueque beside us does not know the bound.
            FileQueue: It makes the directory, with the bound in it, in one step. Messages in flight count, too. The
                bound holds for each `FileQueue` of the directory that was made without `bound=`.
        """
        validation.whole(bound, "bound", 0, self._max_bound, "messages")
        self.check()
        new = await self._administration.create(bound)
        if new is None and not exist_ok:
            raise OutcomeUnknownError(
                f"the connection broke, and now the queue {self.name!r} exists: this create, or another one, created it"
            )
        if new is False and not exist_ok:
            raise QueueAlreadyExistsError(
                f"the queue {self.name!r} exists already{self._where}. Pass exist_ok=True to use it as it is",
                name=self.name,
            )
        self._expected = True
        if new is False:
            await logs.kept_bound(self, bound)
        return new is not False

    @with_deadline(reads=True)
    async def exists(self, *, deadline: float | None = None) -> bool:
        """Return whether the queue exists: it was created, or has messages or registered consumers.

        On this kind:
            AsyncQueue: It exists from `create` to `delete`, and not otherwise.
            EventQueue with an `okq://` address: On a released okq, True if the server answers: there, a queue exists
                as soon as it is named.
            TaskQueue: Also one that has had tasks, until it is deleted.
            FileQueue: False if another directory has replaced the one that this object opened.
        """
        self.check()
        return await self._exists()

    async def bound(self, *, deadline: float | None = None) -> int:
        """Return the most messages that may wait; 0 for no bound. For a `FileQueue` with a `bound=`, that is its own.

        It raises as `statistics` does, and so do `qsize`, `closed` and `paused`: where an AsyncQueue does not exist,
        QueueDoesNotExistError.
        """
        return (await self.statistics(deadline=deadline)).bound

    async def qsize(self, *, deadline: float | None = None) -> int:
        """Return how many messages wait; those in flight, and scheduled tasks, do not count."""
        return (await self.statistics(deadline=deadline)).length

    async def closed(self, *, deadline: float | None = None) -> bool:
        """Return whether the queue is closed; it stays so."""
        return (await self.statistics(deadline=deadline)).closed

    async def paused(self, *, deadline: float | None = None) -> bool:
        """Return whether the queue is paused."""
        return (await self.statistics(deadline=deadline)).paused

    @with_deadline()
    async def close(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Close the *queue*: nothing more can be put, and consumers end when it is drained.

        A put that is under way either returns, and its message is delivered, or raises QueueClosedError. Programs that
        are not apressure's know that only of an AsyncQueue: what they put into one of another kind is delivered, too.
        (`aclose` releases this object's connections.)

        Args:
            timeout: Seconds to wait at most for the producer role of an AsyncQueue, while another client holds it; None
                to wait for ever, 0 for a single try. Other kinds do not wait.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            QueueClosedError: It was closed before.
            QueueDoesNotExistError: There is no such queue: for events and tasks, this object has created it, and it was
                deleted.
            QueueInUseError: Another client held the producer role of an AsyncQueue until the timeout. Or this object's
                own exclusive producer holds it, which closes the queue itself.
            ServerTooOldError: It is on a released okq.
            StorageError: The file system refused.

        Cancelled, the queue is closed or open. Cancelled while it waits, it is open.

        On this kind:
            TaskQueue: Scheduled tasks still run at their time, and consumers wait for them.
        """
        validation.timeout(timeout)
        self.check()
        await self._close(timeout)

    @with_deadline(reads=True)
    async def wait_closed(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Wait until the queue is closed; messages may be left in it.

        Raises:
            QueueOpenError: It stayed open until the timeout (a TimeoutError).
            QueueDoesNotExistError: The queue was deleted meanwhile. An AsyncQueue and a FileQueue must exist. (After
                FLUSHALL, it takes up to five seconds.)
            ServerTooOldError: It is on a released okq.

        Cancelled, nothing has changed.
        """
        validation.timeout(timeout)
        self.check()
        created = self._expected

        async def look() -> bool | Wait:
            nonlocal created
            status = await self._look()
            if created and not status.created:
                raise self._gone()
            created = created or bool(status.created)
            return bool(status.closed) or Wait("open", created=created)

        await self._until(look, timeout)

    @with_deadline()
    async def delete(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Delete the queue with everything in it, what is in flight and dead letters included.

        Tasks that wait for it get QueueDoesNotExistError, if the queue was created.

        Args:
            timeout: Seconds to wait at most for the two roles of an AsyncQueue; None to wait for ever. Other kinds do
                not wait.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            QueueDoesNotExistError: There is no such queue.
            QueueInUseError: A block of this object holds a role of an AsyncQueue: nothing was deleted. Or another
                client held one until the timeout: the queue has ended for all clients, and its last keys stay until the
                holder gives the role back, or a queue of the name is created.
            ServerTooOldError: It is on a released okq.
            StorageError: The file system refused, or the directory contains something else, which the error names.
                Nothing was deleted then.
            OutcomeUnknownError: The connection broke and could not be restored in time.

        Cancelled, the queue is deleted or not. Of tasks, some may be left: delete it again.

        On this kind:
            AsyncQueue: Dead letters are in another queue, and stay. Cancelled while it waits for the roles, the queue
                has ended for all clients.
            TaskQueue: It works in steps of up to 250 tasks. Nodes of the released blueque that run a task meanwhile
                leave its end behind.
            FileQueue: Dead letters are in another queue, and stay. After a kill, the queue is deleted or untouched; the
                next `create` or `delete` beside it removes what is left of the directory.
        """
        validation.timeout(timeout)
        self.check()
        await self._delete(timeout)

    @with_deadline()
    async def purge(self, *, deadline: float | None = None) -> int:
        """Delete the messages that wait or are delayed when it begins; those in flight and dead letters stay.

        Args:
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            How many were deleted.

        Raises:
            PressureError: As for `statistics`.
            OutcomeUnknownError: The connection broke meanwhile: some of them are deleted.

        Cancelled, the oldest messages are deleted, and the others stay.

        On this kind:
            AsyncQueue: They count as consumed. It raises QueueInUseError where a client that works step by step holds
                the consumer role, and may be taking a message; with `scripting=False`, where any client holds it.
            EventQueue: okq's QFLUSH deletes what is in flight, too.
            FileQueue: `give_back_in_flight` before it makes messages in flight wait, too.
        """
        self.check()
        return await self._purge()

    @with_deadline()
    async def pause(self, *, deadline: float | None = None) -> bool:
        """Pause the queue: its consumers take nothing more until `resume`, in all processes.

        This stops `get`, `receive`, consumers, `serve` and `pipe` where they read from the queue. They wait as if it
        were empty, also when it is closed. What is in hand can be settled, and leases are renewed. A consumer gives
        back what it has prefetched when it next renews its leases, that is after a third of the lease at most. Puts go
        on up to the bound. The pause lasts until `resume` or `delete`, or until `create` makes a queue that was not
        created before, also when this process ends.

        Programs that are not apressure's do not know of the pause, and go on. So do those with `scripting=False`.

        Args:
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            Whether it was not paused before.

        Raises:
            QueueDoesNotExistError: There is no such queue: it was not created, and has no messages and no consumers.
            ScriptingRefusedError: It is an AsyncQueue with `scripting=False`.
            ServerTooOldError: It is on a released okq.
            StorageError: The file system refused.
            OutcomeUnknownError: The connection broke and could not be restored in time.

        Cancelled, the queue is paused or not; pausing it again is safe.
        """
        self.check()
        return await self._administration.pause(True, self._expected)

    @with_deadline()
    async def resume(self, *, deadline: float | None = None) -> bool:
        """End a pause: all consumers that wait for that wake at once; without notifications of files, later.

        Args:
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            Whether the queue was paused.

        Raises:
            PressureError: As for `pause`.

        Cancelled, the queue is paused or not; resuming it again is safe.
        """
        self.check()
        return await self._administration.pause(False, self._expected)

    async def _exists(self) -> bool:
        return bool((await self._look()).exists)

    async def _purge_by_steps(self, waiting: int, step: Callable[[int], Awaitable[int]]) -> int:
        """Purge as many messages as wait. Each step deletes and counts up to so many, those that are next first."""
        left, deleted = waiting, 0
        while left > 0 and (purged := await step(left)):
            note_sent()
            deleted += purged
            left -= purged
        return deleted

    async def _existing(self, look: Callable[[], Awaitable[Status]] | None = None) -> Any:
        """Look at the queue, or have `look` do that; raise if this object has created it, and it was deleted."""
        self.check()
        status = await (look or self._look)()
        if self._expected and not status.created:
            raise self._gone()
        return status

    def _gone(self) -> QueueDoesNotExistError:
        return QueueDoesNotExistError(f"the queue {self.name!r} was deleted", name=self.name)
