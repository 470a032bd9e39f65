"""Operations on a queue as a whole: create, close, delete, look at it, empty it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from apressure import logs, validation
from apressure.concurrency.deadline import with_deadline
from apressure.connection.client import Client
from apressure.dead_letters import DeadLetter, Requeued, checked_ids
from apressure.exceptions import QueueAlreadyExistsError

if TYPE_CHECKING:
    from apressure.items import Items
    from apressure.pressure.engine.plain.engine import Plain
    from apressure.pressure.engine.scripted import Scripted
    from apressure.pressure.statistics import QueueStatistics

T = TypeVar("T")

MAX_BOUND = 10**15


class Administration(Generic[T]):
    """The part of `AsyncQueue` that moves no item from or to the program."""

    name: str
    client: Client
    _engine: Scripted | Plain
    _items: Items[T]

    @property
    def opened(self) -> bool:
        """Whether the queue object has been used."""
        return self._engine.opened

    @property
    def prefix(self) -> str:
        """What the queue's keys begin with."""
        return self.client.prefix

    def __repr__(self) -> str:
        return f"<AsyncQueue {self.name!r} at {self.client.server.address}>"

    @with_deadline()
    async def create(self, bound: int = 0, exist_ok: bool = False, *, deadline: float | None = None) -> bool:
        """Create the queue (specification: Create). What an earlier queue of the name left behind is cleared.

        Args:
            bound: The most messages that may wait in it; 0 for no bound.
            exist_ok: Leave a queue that exists as it is, with its bound, and return False.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            Whether the queue is new.

        Raises:
            QueueAlreadyExistsError: It exists, or one of its keys belongs to a queue of another name.
            TypeError, ValueError: The bound is not a whole number of messages.

        Cancelled, the queue is created or not; creating it again with `exist_ok=True` is safe.
        """
        validation.whole(bound, "bound", 0, MAX_BOUND, "messages")
        self._engine.check()
        try:
            await self._engine.create(bound)
        except QueueAlreadyExistsError:
            if exist_ok and await self.exists():
                await logs.kept_bound(self, bound)
                return False
            raise
        return True

    @with_deadline(reads=True)
    async def exists(self, *, deadline: float | None = None) -> bool:
        """Return whether the queue exists (specification: Exists)."""
        self._engine.check()
        return await self._engine.exists()

    async def qsize(self, *, deadline: float | None = None) -> int:
        """Return how many messages wait in the queue (specification: Length); what is in flight does not count.

        Raises:
            QueueDoesNotExistError: There is no such queue.
        """
        return (await self.statistics(deadline=deadline)).length

    async def bound(self, *, deadline: float | None = None) -> int:
        """Return the most messages that may wait; 0 for no bound.

        Raises:
            QueueDoesNotExistError: There is no such queue.
        """
        return (await self.statistics(deadline=deadline)).bound

    async def closed(self, *, deadline: float | None = None) -> bool:
        """Return whether the queue is closed (specification: Closed); once it is, it stays so.

        Raises:
            QueueDoesNotExistError: There is no such queue.
        """
        return (await self.statistics(deadline=deadline)).closed

    async def paused(self, *, deadline: float | None = None) -> bool:
        """Return whether the queue is paused.

        Raises:
            QueueDoesNotExistError: There is no such queue.
        """
        return (await self.statistics(deadline=deadline)).paused

    @with_deadline(reads=True)
    async def statistics(self, *, deadline: float | None = None) -> QueueStatistics:
        """Return a snapshot of the queue: length, bound, roles, counts, and this object's waiting tasks.

        Raises:
            QueueDoesNotExistError: There is no such queue.
            ServerError: The bound or a statistic is not an integer.
        """
        from apressure.pressure.statistics import from_snapshot  # here, since most programs do not look

        engine = self._engine
        engine.check()
        snapshot = await engine.inspect()
        return from_snapshot(
            self.name,
            snapshot,
            waiting_putters=engine.waiting_putters,
            waiting_receivers=engine.waiting_receivers,
            blocked=engine.waits.blocked.seconds(),
            late_renewals=self.client.renewer.late[self.name],
            **engine.counts.fields(),
        )

    @with_deadline()
    async def purge(self, *, deadline: float | None = None) -> int:
        """Delete the messages that wait in the queue; they count as consumed.

        Messages in flight and dead letters stay. It deletes as many messages as wait when it begins, in steps of up to
        2,000 messages or 1 MiB. It does not wait, and works on a closed queue and beside a consumer of apressure.

        Args:
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            How many messages were deleted.

        Raises:
            QueueDoesNotExistError: There is no such queue.
            QueueInUseError: A client that works step by step holds the consumer role, and may be taking a message.
                With `scripting=False`: any client holds it.
            OutcomeUnknownError: The connection broke and could not be restored in time.

        Cancelled, the oldest messages are deleted, and the others stay.
        """
        self._engine.check()
        return await self._engine.purge()

    @with_deadline()
    async def requeue(
        self,
        max_items: int | None = None,
        timeout: float | None = None,
        source: str | None = None,
        *,
        ids: Iterable[str] | None = None,
        deadline: float | None = None,
    ) -> Requeued:
        """Move dead letters back to the end of this queue, the oldest first; their attempts start anew.

        It moves the dead letters that are there when it begins, waiting for room where it must. Each chunk is moved in
        one step: a message is always in exactly one of the two queues.

        Args:
            max_items: How many at most; None for all.
            ids: Only these, by the ids that `dead_letters` shows; None for any. Dead letters are looked through for
                them, the oldest first.
            timeout: Seconds to wait at most for room, and for the two roles that it takes (this queue's producer, the
                dead-letter queue's consumer); None to wait for ever, 0 to move only what has room now.
            source: The dead-letter queue's name; None for `dead_letter_queue`, or where that is None for this queue's
                name with `:dead` behind it. It need not exist.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            How many were moved. Its attribute `not_found` has the ids that no dead letter has (any more).

        Raises:
            QueueFullError, QueueInUseError: With `accepted`, how many were moved before the timeout.
            QueueClosedError, QueueDoesNotExistError: This queue is closed, or does not exist. A note says how many
                were moved before, if any.
            OutcomeUnknownError: The connection broke and could not be restored in time.
            ScriptingRefusedError: The queue has `scripting=False`.

        Cancelled, some dead letters have been moved, and the others are where they were.
        """
        if max_items is not None:
            validation.whole(max_items, "max_items")
        engine = self._engine.scripted("requeue")
        if ids is None:
            return Requeued(await engine.requeue(max_items, timeout, source))
        if max_items is not None:
            raise ValueError("give either max_items= or ids=: the ids say how many")
        return await engine.requeue_chosen(checked_ids(ids).keys(), timeout, source)

    @with_deadline(reads=True)
    async def dead_letters(
        self, limit: int | None = 100, source: str | None = None, *, deadline: float | None = None
    ) -> list[DeadLetter[T]]:
        """Return this queue's dead letters, the oldest first, with the reason of each. It changes nothing.

        A reason is the last error of the message (what a handler of `serve` or `pipe` or the body of `consumer` raised,
        or what was given to `nack`), its attempts, and when it was moved. The server keeps the reasons of the latest
        5,000 dead letters, and of the latest 20 with the same content, until 30 days after the last one. Programs that
        take messages out of the dead-letter queue may ignore them.

        Args:
            limit: How many at most; None for all.
            source: The dead-letter queue's name, as for `requeue`.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            A list; empty where there is no dead-letter queue. It is read in chunks of up to 1 MiB, so dead letters that
            are moved meanwhile may be missing.

        Raises:
            TypeError, ValueError: An argument is invalid.
            ScriptingRefusedError: The queue has `scripting=False`.
            ServerUnavailableError: The server cannot be reached.

        Cancelled, nothing has changed.
        """
        if limit is not None:
            validation.whole(limit, "limit")
        engine = self._engine.scripted("dead_letters")
        return await engine.dead_letters(limit, source, self._items.decode)

    @with_deadline(reads=True)
    async def peek(self, *, deadline: float | None = None) -> T:
        """Return the next item without taking it.

        Raises:
            QueueEmptyError, QueueDoesNotExistError, DecodeError: As for `get`.
        """
        self._engine.check()
        return self._items.decode(await self._engine.peek(-1))

    @with_deadline(reads=True)
    async def peek_newest(self, *, deadline: float | None = None) -> T:
        """Return the newest item without taking it.

        Raises:
            QueueEmptyError, QueueDoesNotExistError, DecodeError: As for `get`.
        """
        self._engine.check()
        return self._items.decode(await self._engine.peek(0))

    @with_deadline()
    async def close(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Close the *queue* (specification: Close): nothing more can be put, and consumers end when it is drained.

        It waits while another client holds the producer role. (`aclose` only releases this object's connections.)

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            QueueClosedError: It was closed before.
            QueueInUseError: Another client held the producer role until the timeout. Or this object's own exclusive
                producer holds it, which closes the queue itself.
            QueueDoesNotExistError: There is no such queue.

        Cancelled while it waits, the queue is open. Cancelled while the step is on its way, it is closed or not.
        """
        validation.timeout(timeout)
        self._engine.check("producer")
        return await self._engine.close(timeout)

    @with_deadline()
    async def pause(self, *, deadline: float | None = None) -> bool:
        """Pause the queue: its consumers take no further message until `resume`, in all processes.

        This stops `get`, `receive`, consumers, `serve`, `pipe` and Spark where they read from the queue. They wait as
        if it were empty, also when it is closed. Messages in hand can be settled, and leases are renewed. A consumer
        gives back what it has prefetched: when it next settles a message or renews its lease, that is after a third of
        the lease at most. Puts go on up to the bound. The pause lasts until `resume`, `delete` or `create`.

        Clients that are not apressure's, and those with `scripting=False`, do not know of the pause.

        Args:
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            Whether it was not paused before.

        Raises:
            QueueDoesNotExistError: There is no such queue.
            OutcomeUnknownError: The connection broke and could not be restored in time.
            ScriptingRefusedError: The queue has `scripting=False`.

        Cancelled, the queue is paused or not; pausing it again is safe.
        """
        self._engine.check()
        return await self._engine.scripted("pause").steps.pause()

    @with_deadline()
    async def resume(self, *, deadline: float | None = None) -> bool:
        """End a pause: all consumers that wait for that wake at once.

        Args:
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Returns:
            Whether the queue was paused.

        Raises:
            QueueDoesNotExistError, OutcomeUnknownError, ScriptingRefusedError: As for `pause`.

        Cancelled, the queue is paused or not; resuming it again is safe.
        """
        self._engine.check()
        return await self._engine.scripted("resume").steps.resume()

    @with_deadline(reads=True)
    async def wait_closed(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Wait until the queue is closed; messages may be left in it.

        Raises:
            QueueOpenError: It stayed open until the timeout (a TimeoutError).
            QueueDoesNotExistError: There is no such queue, or it was deleted meanwhile. (It takes up to five seconds
                to notice FLUSHALL.)

        Cancelled, nothing has changed.
        """
        validation.timeout(timeout)
        self._engine.check()
        return await self._engine.wait_closed(timeout)

    @with_deadline()
    async def delete(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Delete the queue with everything in it (specification: Delete), and wake all who wait on it.

        Args:
            timeout: Seconds to wait for the two roles; None to wait for ever.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`.

        Raises:
            QueueDoesNotExistError: There is no such queue.
            QueueInUseError: A block of this object holds a role: nothing was deleted. Or another client held one until
                the timeout: the queue has ended for all clients, and its last keys stay until the holder gives the role
                back, or a queue of the name is created.

        Cancelled, the queue has ended for all clients, or is untouched.
        """
        validation.timeout(timeout)
        self._engine.check("producer")
        self._engine.check("consumer")
        return await self._engine.delete(timeout)

    async def unblock(self) -> int:
        """End this object's blocked operations: each raises OperationUnblockedError. Nothing was put or taken.

        Returns:
            How many operations were blocked.
        """
        return await self._engine.unblock()
