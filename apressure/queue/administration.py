"""What can be done with a queue as a whole: making and ending it, and looking at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from apressure.connection.client import Client
from apressure.exceptions import OperationUnblockedError, QueueAlreadyExistsError
from apressure.queue.core import Core, check_positive, check_timeout

if TYPE_CHECKING:
    from apressure.queue.statistics import QueueStatistics

T = TypeVar("T")

MAX_BOUND = 10**15


class Administration(Generic[T]):
    """The part of `AsyncQueue` that moves no item from or to the program."""

    name: str
    client: Client
    _core: Core[T]

    @property
    def dead_letters(self) -> str | None:
        """The name of the queue for messages that were delivered `max_attempts` times; None where there is no limit.

        It is a queue like any other: `AsyncQueue(queue.dead_letters, client=queue.client)` opens it. It exists from
        the first dead letter on.
        """
        return None if self._core.dead is None else self._core.dead.name

    @property
    def prefix(self) -> str:
        """What the queue's keys begin with."""
        return self.client.prefix

    def __repr__(self) -> str:
        return f"<AsyncQueue {self.name!r} at {self.client.server.address}>"

    async def create(self, bound: int = 0, exist_ok: bool = False) -> bool:
        """Create the queue (specification: Create). What an earlier queue of the name left behind is cleared.

        Args:
            bound: The most messages that may wait in it; 0 for no bound.
            exist_ok: A queue that exists already is left as it is, with the bound that it has.

        Returns:
            Whether the queue is new.

        Raises:
            QueueAlreadyExistsError: It exists, or one of its keys belongs to a queue of another name.
            TypeError, ValueError: The bound is not a whole number of messages.

        Cancelled, the queue is created or not; creating it again with `exist_ok=True` is safe.
        """
        if isinstance(bound, bool) or not isinstance(bound, int):
            raise TypeError(f"bound must be a whole number of messages, not {type(bound).__name__}")
        if not 0 <= bound <= MAX_BOUND:
            raise ValueError(f"bound must be between 0 (no bound) and {MAX_BOUND}, not {bound}")
        self._core.check()
        try:
            await self._core.operations.create(bound)
        except QueueAlreadyExistsError:
            if exist_ok and await self.exists():
                return False
            raise
        return True

    async def exists(self) -> bool:
        """Return whether the queue exists (specification: Exists)."""
        self._core.check()
        return await self._core.operations.exists()

    async def qsize(self) -> int:
        """Return how many messages wait in the queue (specification: Length); what is in flight does not count.

        Raises:
            QueueDoesNotExistError: There is no such queue.
        """
        return (await self.statistics()).length

    async def bound(self) -> int:
        """Return the most messages that may wait; 0 for no bound.

        Raises:
            QueueDoesNotExistError: There is no such queue.
        """
        return (await self.statistics()).bound

    async def closed(self) -> bool:
        """Return whether the queue is closed (specification: Closed); once it is, it stays so.

        Raises:
            QueueDoesNotExistError: There is no such queue.
        """
        return (await self.statistics()).closed

    async def statistics(self) -> QueueStatistics:
        """Return a snapshot of the queue: length, bound, roles, counts, and this object's waiting tasks.

        Raises:
            QueueDoesNotExistError: There is no such queue.
            ServerError: One of the specification's numbers is none.
        """
        from apressure.queue.statistics import from_snapshot  # here, since most programs do not look

        self._core.check()
        operations = self._core.operations
        snapshot = await operations.inspect()
        return from_snapshot(self.name, snapshot, operations.waiting_putters, operations.waiting_getters)

    async def requeue(
        self, max_items: int | None = None, timeout: float | None = None, source: str | None = None
    ) -> int:
        """Move dead letters back to the end of this queue, the oldest first; their attempts start anew.

        It moves what is there when it begins, as far as there is room at a time, and waits for more. Each portion is
        moved in one step: a message is in one of the two queues, never in both, never in none.

        Args:
            max_items: How many at most; None for all.
            timeout: Seconds to wait at most for room, and for the two roles that it takes (this queue's producer, the
                dead-letter queue's consumer); None to wait for ever, 0 to move what can be moved at once.
            source: The dead-letter queue's name; None for `dead_letters`, or where that is None for this queue's name
                with `:dead` behind it. One that does not exist has no dead letters.

        Returns:
            How many were moved.

        Raises:
            QueueFullError, QueueInUseError: With `accepted`, how many were moved before the timeout.
            QueueClosedError, QueueDoesNotExistError: This queue is closed, or does not exist. A note says how many
                were moved before, if any.
            OutcomeUnknownError: The connection broke and could not be mended in time.
            ScriptingRefusedError: The queue has `scripting=False`.

        Cancelled, what was moved stays moved, and all else is where it was.
        """
        if max_items is not None:
            check_positive(max_items, "max_items")
        return await self._core.requeue(max_items, timeout, source)

    async def peek(self) -> T:
        """Return the item that would be got next, without taking it.

        Raises:
            QueueEmptyError, QueueDoesNotExistError, DecodeError: As for `get`.
        """
        self._core.check()
        return self._core.decode(await self._core.operations.peek(-1))

    async def peek_newest(self) -> T:
        """Return the item that was put last, without taking it.

        Raises:
            QueueEmptyError, QueueDoesNotExistError, DecodeError: As for `get`.
        """
        self._core.check()
        return self._core.decode(await self._core.operations.peek(0))

    async def close(self, timeout: float | None = None) -> None:
        """Close the *queue* (specification: Close): nothing more can be put, consumers end when it is drained.

        (`aclose` releases this object's connections.) It waits while another client holds the producer role.

        Args:
            timeout: Seconds to wait at most; None to wait for ever, 0 for a single try.

        Raises:
            QueueClosedError: It was closed before.
            QueueInUseError: Somebody held the producer role until the timeout; or this object's own exclusive
                producer does, which closes the queue itself.
            QueueDoesNotExistError: There is no such queue.

        Cancelled while it waits, the queue is open still; while the step is on its way, it is closed or not.
        """
        check_timeout(timeout)
        self._core.check("producer")
        await self._core.operations.close(timeout)

    async def wait_closed(self, timeout: float | None = None) -> None:
        """Wait until the queue is closed; messages may be left in it.

        Raises:
            QueueEmptyError: It stayed open until the timeout.
            QueueDoesNotExistError: There is no such queue, or it was deleted meanwhile.

        Cancelled, nothing has changed.
        """
        check_timeout(timeout)
        self._core.check()
        await self._core.operations.wait_closed(timeout)

    async def delete(self, timeout: float | None = None) -> None:
        """Delete the queue with everything in it (specification: Delete), and wake all who wait on it.

        Args:
            timeout: Seconds to wait for the two roles; None to wait for ever.

        Raises:
            QueueDoesNotExistError: There is no such queue.
            QueueInUseError: A role was held until the timeout, or this object's own block holds it. In the first case
                the queue has ended for everybody; its last keys go with the holder, or when the name is created anew.

        Cancelled, the same holds: the queue has ended, or is untouched.
        """
        check_timeout(timeout)
        self._core.check("producer")
        self._core.check("consumer")
        await self._core.operations.delete(timeout)

    async def unblock(self) -> int:
        """End this object's blocked operations: each raises OperationUnblockedError. Nothing was put or taken.

        Returns:
            How many operations were blocked.
        """
        self._core.check()
        return self._core.operations.end(
            OperationUnblockedError(f"the operation on the queue {self.name!r} was unblocked", name=self.name)
        )
