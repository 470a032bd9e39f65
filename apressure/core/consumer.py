"""What the consumers of queues with a lease for each delivery share: the block, the iteration, and what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

from apressure import logs
from apressure.concurrency import background
from apressure.concurrency.lifetime import IteratingTask
from apressure.concurrency.settle import wait_shielded
from apressure.core.leases.clock import Clock
from apressure.exceptions import LeaseLostError, PressureError, QueueClosedError, QueueDoesNotExistError


class Leased(Protocol):
    """A delivery under a lease."""

    settled: bool
    certain_until: float

    @property
    def claim(self) -> Any:
        """What names it in the consumer's hand."""

    @property
    def attempts(self) -> int:
        """How often it was delivered, this time included."""

    @property
    def item(self) -> Any:
        """What the program gets."""

    def note_error(self, error: BaseException | str) -> None:
        """Keep why this attempt failed."""


D = TypeVar("D", bound=Leased)
D_contra = TypeVar("D_contra", bound=Leased, contravariant=True)
T = TypeVar("T")


class Leases(Protocol[D_contra]):
    """What renews the leases of a consumer.

    Attributes:
        kind: The kind of the queue, for the log.
        name: The queue's name.
        clock: The clock of `certain_until`.
    """

    kind: ClassVar[str]
    name: str
    clock: Clock

    def certain(self, delivery: D_contra) -> bool:
        """Whether a lease has certainly not ended."""

    async def assure(self) -> None:
        """Renew all leases now; what others have got is in hand no more."""

    def note_task(self) -> None:
        """Note the asyncio task that iterates."""

    def end(self) -> None:
        """Renew nothing any more."""


class Failures:
    """What the program does not know yet: the first failure since its last iteration.

    Attributes:
        noted: The failure; None if there is none.
    """

    def __init__(self) -> None:
        self.noted: Exception | None = None
        self._on_lost: Callable[[Exception], None] | None = None

    def on_lost(self, callback: Callable[[Exception], None]) -> None:
        """Have `callback(error)` called, once, at the next failure."""
        self._on_lost = callback

    def note(self, error: Exception) -> None:
        """Have the next iteration, or the end of the block, raise this."""
        self.noted = self.noted or error

    def tell(self, error: Exception) -> None:
        """Call the program's callback."""
        callback, self._on_lost = self._on_lost, None
        if callback is not None:
            asyncio.get_running_loop().call_soon(callback, error)  # it may raise

    def check(self) -> None:
        """Raise what was noted, once."""
        error, self.noted = self.noted, None
        if error is not None:
            raise error


class QueueConsumer(ABC, Generic[T, D]):
    """A consuming end of a queue, at-least-once, as an `async with` block; made by `consumer` of the queue.

    Any number of them compete. Iterating hands out items until the queue is closed and drained. An item is acknowledged
    when the loop asks for the next one, and at the end of the block. If the body raises or is cancelled, the item goes
    back, first in line, marked as redelivered. If the process dies, that happens when the lease ends. A thread renews
    the leases of everything in hand, also while the body blocks the event loop.

    The loop ends when the queue is closed, nothing waits, and no other consumer has anything in flight, so it gets what
    another one fails to handle.

    `T` is what the iteration hands out: an item, or with `ack="manual"` a delivery. `D` is what deliveries are.

    On this kind:
        TaskQueue: While the block is open, this process is one of the queue's listeners. A task is completed, without a
            result, when the loop asks for the next one. The loop also waits for scheduled tasks.
        FileQueue: A timer renews the leases, while the event loop runs. With deliveries of its own in hand
            (`ack="manual"`), it does not wait for other consumers.
        EventQueue with the address of a released okq: leases are not renewed, and the loop never ends.

    Args:
        check: Raises if the queue object cannot be used.
        blocks: The open blocks of each queue object that it consumes from.
        settle_timeout: Seconds for which the end of the block goes on after a cancellation.
        manual: The program gets deliveries, and settles them.
        delete: Delete the queue when it is drained.
        hand: What it has in hand, by its claims.

    Attributes:
        hand: As given.
    """

    acknowledges_the_one_before: Final = True
    """`put_many` reads ahead, so it refuses a consumer; see `validation.batch`."""

    _renewing: Leases[D]

    def __init__(
        self,
        check: Callable[[], None],
        blocks: Sequence[set[Any]],
        settle_timeout: float,
        *,
        manual: bool,
        delete: bool,
        hand: dict[Any, D],
    ) -> None:
        self.hand = hand
        self._check = check
        self._blocks = blocks
        self._settle_timeout = settle_timeout
        self._manual = manual
        self._delete = delete
        self._buffer: deque[D] = deque()
        self._registration: asyncio.Task[None] | None = None
        self._inside = False
        self._current: D | None = None
        self._iterating = IteratingTask()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        """The task that iterates, as long as nothing but its turns has to be looked at."""
        self._ask_below = -1
        """The length of the buffer at which `_ask_ahead` is due,"""
        self._turn_at = math.inf
        """and the time, by the clock of the leases."""
        self._failures = Failures()
        self._drained = False
        self._left = False

    # What a kind of queue does in its own way.

    @abstractmethod
    async def _enter(self) -> None:
        """Begin the block, with `_open`."""

    @abstractmethod
    async def _receive(self) -> None:
        """Wait until there is something in the buffer, or until it is worth another look."""

    def _ask_ahead(self) -> bool:
        """Ask for more before the buffer is empty, if it is time. Returns whether the event loop has to turn now."""
        return False

    @abstractmethod
    def _hand_out(self, delivery: D) -> T:
        """Note that the program gets a delivery; returns what it gets."""

    @abstractmethod
    async def _flush(self) -> None:
        """Wait until acknowledgements have been sent and answered."""

    @abstractmethod
    async def _return(self, unseen: list[D], seen: list[D]) -> None:
        """Give back what the program has not seen, and what it has; leave the queue."""

    async def _delete_drained(self) -> None:
        """Delete the queue if it is closed, and has nothing left."""

    async def _assure(self, delivery: D) -> None:  # noqa: ARG002
        """Renew the lease of a delivery that may have ended; if it has, it is in hand no more."""
        await self._renewing.assure()

    # The block.

    async def __aenter__(self) -> Self:
        if self._inside or self._left:
            raise RuntimeError("this consumer's block has begun already: make one for each block")
        await self._enter()
        return self

    def _open(self, registration: asyncio.Task[None] | None = None) -> None:
        """The block begins; `registration` gives signs of life until it ends."""
        for blocks in self._blocks:
            blocks.add(self)
        self._inside = True
        self._registration = registration
        self._log("role_taken")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._inside:
            return  # closing the queue object gave everything back
        finished = False
        try:
            if isinstance(error, Exception) and self._current is not None:
                self._current.note_error(error)  # a cancellation is no failure
            if kind is None:
                await self._acknowledge()
                await self._flush()
                self._failures.check()
            finished = self._drained and not self.hand
        finally:
            # The caller has to see the body's own exception.
            with contextlib.suppress(*(() if kind is None else (PressureError,))):
                await self.end()
        if kind is None and self._delete and finished:
            with contextlib.suppress(QueueDoesNotExistError):  # another consumer was first
                await self._delete_drained()

    async def end(self) -> None:
        """Give back everything in hand, and deregister.

        Cancelled, that goes on, for up to `settle_timeout` seconds; then the cancellation is raised.
        """
        inside, self._inside, self._task = self._inside, False, None
        self._renewing.end()
        for blocks in self._blocks:
            blocks.discard(self)
        if not inside:
            return
        if self._registration is not None:
            self._registration.cancel()
        self._log("role_released")
        work = background.start(self._give_back(), "giving back what a consumer has in hand")
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError:
            await wait_shielded(work, self._settle_timeout)
            raise
        if (error := work.result()) is not None:
            raise error

    def _log(self, event: str) -> None:
        """Log that this consumer competes for what is in the queue, or does no more."""
        logs.role(event, self._renewing.name, "consumer", shared=True, kind=self._renewing.kind)

    async def _give_back(self) -> PressureError | None:
        """Give back everything in hand, and deregister. An error is returned: it is the caller's."""
        self._left = True
        unseen = list(self._buffer)
        seen = [one for one in self.hand.values() if not (one.settled or one in unseen)]
        self._buffer.clear()
        self.hand.clear()
        self._current = None
        await self._flush()
        try:
            await self._return(unseen, seen)
        except PressureError as error:  # what is in flight comes back when the leases end
            return error
        return None

    # The iteration.

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Return the next item; with `ack="manual"` the next delivery.

        Cancelled while it waits, nothing is lost: the end of the block gives back what was received.

        Raises:
            StopAsyncIteration: The queue is closed and drained.
            DecodeError: The item cannot be decoded. It is given back unless the loop goes on.
            LeaseLostError: The lease of an earlier item ended before it was acknowledged, and others get it. Or it was
                given up after `max_hold`.
            RuntimeError: Another asyncio task iterates already, or the block has ended.
            PressureError: As for the queue's `receive`.
        """
        # Most items take the short way of the next lines: it decides how much CPU an item costs.
        task = self._task
        if task is None or asyncio.current_task(self._loop) is not task or self._failures.noted is not None:
            self._begin()
            await self._acknowledge()
            self._failures.check()
        elif (current := self._current) is not None:
            self._current = None
            if not current.settled:
                current.ack_soon()  # type: ignore[attr-defined]  # see `_acknowledge`
        buffer = self._buffer
        while True:
            while buffer:
                first, now = buffer[0], self._renewing.clock()
                if (
                    now < first.certain_until
                    and now < self._turn_at
                    and len(buffer) > self._ask_below
                    and first.claim in self.hand
                ):
                    return self._hand_out(buffer.popleft())
                if (delivery := await self._next_of_buffer()) is not None:
                    return self._hand_out(delivery)
            self._check()  # where the queue object was closed meanwhile, what came has gone back
            try:
                await self._receive()
            except QueueClosedError:
                pass
            except QueueDoesNotExistError:
                if not self._delete:
                    raise
            else:
                self._drained = False
                continue
            await self._flush()
            self._failures.check()
            self._drained, self._task = True, None
            raise StopAsyncIteration

    def take_ready(self, most: int) -> list[T]:
        """Return up to `most` deliveries that have come already, without waiting; none without `ack="manual"`.

        Call it right after the iteration has returned one, in the same turn of the event loop.
        """
        ready: list[T] = []
        while self._manual and self._buffer and len(ready) < most and self._renewing.certain(self._buffer[0]):
            delivery = self._buffer.popleft()
            if delivery.claim in self.hand:
                ready.append(self._hand_out(delivery))
        return ready

    def on_lost(self, callback: Callable[[Exception], None]) -> None:
        """Have `callback(error)` called, once, when something in hand is lost: its lease ended, and others get it."""
        self._failures.on_lost(callback)

    @property
    def attempts(self) -> int:
        """How often the current item has been delivered, this time included; 0 if there is none."""
        return self._current.attempts if self._current is not None else 0

    @property
    def redelivered(self) -> bool:
        """Whether the current item was delivered before."""
        return self.attempts > 1

    def _begin(self) -> None:
        """An iteration begins: check that it may."""
        self._check()
        if not self._inside:
            raise RuntimeError("iterate inside the consumer's block: async with queue.consumer() as consumer")
        if self._iterating.check():
            self._renewing.note_task()
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()

    async def _acknowledge(self) -> None:
        """Acknowledge the current item: with the next step that leaves, so a failure is noted when it is known.

        A kind whose acknowledgements do not travel together waits for each one here, and leaves `_task` None.
        """
        current, self._current = self._current, None
        if current is not None and not current.settled:
            current.ack_soon()  # type: ignore[attr-defined]

    async def _next_of_buffer(self) -> D | None:
        """Take the next delivery from the buffer; None if its lease has ended meanwhile."""
        if self._ask_ahead():
            await asyncio.sleep(0)
            if not self._buffer:  # the queue object was closed meanwhile
                return None
        delivery = self._buffer[0]
        if delivery.claim in self.hand and not self._renewing.certain(delivery):
            await self._assure(delivery)  # if this is cancelled, it stays prefetched
        if self._buffer and self._buffer[0] is delivery:
            self._buffer.popleft()
        return delivery if delivery.claim in self.hand else None

    def _failed(self, error: Exception) -> None:
        """An acknowledgement that nobody waited for has failed: the next iteration says so."""
        self._failures.note(error)
        self._failures.tell(error)

    def _lost(self, error: LeaseLostError, lost: list[D]) -> None:
        """Deliveries were lost to others, or given up: the program has some of them in hand."""
        seen = [one for one in lost if one not in self._buffer]
        if seen and not self._manual:
            self._failures.note(error)
            self._current = None
        if seen:
            self._failures.tell(error)
