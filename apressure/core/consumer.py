"""What the consumers of queues with a lease for each delivery share: the block, and the iteration."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final, Generic, Literal, NamedTuple, Self, TypeVar

from apressure import logs
from apressure.concurrency import background
from apressure.concurrency.lifetime import IteratingTask
from apressure.concurrency.settle import left_of, wait_for_answer, wait_shielded
from apressure.core.delivery import LeasedDelivery
from apressure.core.leases.in_hand import ClaimHand
from apressure.core.prefetch import Chunk
from apressure.core.registration import Doing, Registration, block_registration
from apressure.exceptions import PressureError, QueueClosedError, QueueDoesNotExistError

T = TypeVar("T")
D = TypeVar("D", bound=LeasedDelivery[Any])


class ConsumerOptions(NamedTuple):
    """What a program says of a consumer.

    Attributes:
        manual: The program gets deliveries, and settles them.
        delete: Delete the queue when it is drained.
        prefetch: How many deliveries to ask for at a time; None to adapt to how quick the program is.
        lease: Seconds.
        max_hold: Seconds without progress after which leases are given up; None for the default.
    """

    manual: bool
    delete: bool
    prefetch: int | None
    lease: float
    max_hold: float | None


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
        queue: The queue object that it consumes from, or the driver of it: it has `blocks`, and `check`.
        hand: What it has in hand.
        chunk: How many deliveries it asks for at a time.
        options: What the program says.
        settle_timeout: Seconds for which the end of the block goes on after a cancellation.

    Attributes:
        hand: As given.
        registers: A block that lives for a while registers at the queue. False where what has the block does that.
    """

    registers = True

    acknowledges_the_one_before: Final = True
    """`put_many` reads ahead, so it refuses a consumer; see `validation.batch`."""

    def __init__(
        self,
        queue: Any,
        hand: ClaimHand[D],
        chunk: Chunk,
        options: ConsumerOptions,
        settle_timeout: float,
    ) -> None:
        self.hand = hand
        self._queue = queue
        self._chunk = chunk
        self._settle_timeout = settle_timeout
        self._manual = options.manual
        self._delete = options.delete
        self._state: Literal["new", "open", "ending", "left"] = "new"
        self._registration: asyncio.Task[None] | None = None
        self._worker: Registration | None = None
        self._iterating = IteratingTask()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        """The task that iterates, as long as nothing but its turns has to be looked at."""
        self._drained = False
        self._deleted = False  # the queue: none of its messages comes again

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

    async def _flush(self) -> None:
        """Wait until acknowledgements have been sent and answered."""

    async def _leave(self) -> None:
        """Leave the queue: everything has been given back."""

    async def _delete_drained(self) -> None:
        """Delete the queue if it is closed, and has nothing left."""

    async def _assure(self, delivery: D) -> None:  # noqa: ARG002
        """Renew the lease of a delivery that may have ended; if it has, it is in hand no more."""
        await self.hand.assure()

    # The block.

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise RuntimeError("this consumer's block has begun already: make one for each block")
        loop = asyncio.get_running_loop()
        end = loop.time() + self._settle_timeout
        try:
            await self._enter()
        except asyncio.CancelledError:  # the block does not begin: what has registered it is undone
            # What was cancelled may have waited for `settle_timeout` seconds itself.
            await wait_shielded(background.start(self._give_back(), "leaving a queue"), end - loop.time())
            raise
        return self

    def _open(self, registration: asyncio.Task[None] | None = None) -> None:
        """The block begins; `registration` gives signs of life until it ends."""
        self._queue.blocks.add(self)
        self._state = "open"
        self._registration = registration
        self._worker = block_registration(self._queue.registry, self._doing) if self.registers else None
        self._log("role_taken")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._state != "open":
            return  # closing the queue object gave everything back
        finished = False
        try:
            if isinstance(error, Exception) and self.hand.current is not None:
                self.hand.current.note_error(error)  # a cancellation is no failure
            if kind is None:
                await self._acknowledge()
                await self._flush()
                self.hand.failures.check()
            finished = self._drained and not self.hand.claims
        finally:
            # The caller has to see the body's own exception.
            with contextlib.suppress(*(() if kind is None else (PressureError,))):
                await self.end(hurry=kind is not None)
        if kind is None and self._delete and finished:
            with contextlib.suppress(QueueDoesNotExistError):  # another consumer was first
                await self._delete_drained()

    async def end(self, hurry: bool = False) -> None:
        """Give back everything in hand, and deregister.

        Cancelled, or in a hurry, this waits for that for up to `settle_timeout` seconds. Then it goes on by itself,
        until the client is closed.
        """
        state, self._task = self._state, None
        if self._worker is not None:
            self._worker.end()
        self.hand.renewal.end()
        self._queue.blocks.discard(self)
        if state != "open":
            return
        self._state = "ending"
        if self._registration is not None:
            self._registration.cancel()
        self._log("role_released")
        work = background.start(self._give_back(), "giving back what a consumer has in hand")
        if (client := getattr(self._queue, "client", None)) is not None:  # a FileQueue has none
            client.finish_before_close(work)
        patience = left_of(self._settle_timeout)
        if await wait_for_answer(work, patience if hurry else None, patience) and (error := work.result()) is not None:
            raise error

    def _doing(self) -> Doing:
        """Return what this block does, for those who look at the queue."""
        hand = self.hand
        handled = hand.progress - (hand.current is not None)
        return Doing(0 if self._manual else 1, len(hand.claims), handled)

    def _log(self, event: str) -> None:
        """Log that this consumer competes for what is in the queue, or does no more."""
        logs.role(event, self.hand.name, "consumer", shared=True, kind=self.hand.kind)

    async def _give_back(self) -> PressureError | None:
        """Give back everything in hand, and deregister. An error is returned: it is the caller's."""
        self._state = "left"
        unseen, seen = self.hand.surrender()
        await self._flush()
        if not self._deleted:
            logs.unacknowledged(self.hand.kind, self.hand.name, self.hand.unacknowledged)
        try:
            try:
                for answer in self.hand.send_back(unseen, seen):
                    if isinstance(outcome := await answer, Exception):
                        raise outcome
                for delivery in (*unseen, *seen):
                    delivery.settled = True
            finally:
                await self._leave()
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
        hand, chunk, task = self.hand, self._chunk, self._task
        if task is None or asyncio.current_task(self._loop) is not task or hand.failures.noted is not None:
            self._begin()
            await self._acknowledge()
            hand.failures.check()
        elif (current := hand.current) is not None:
            hand.current = None
            if not current.settled:
                current.ack_soon()  # type: ignore[attr-defined]  # see `_acknowledge`
        buffer = hand.buffer
        while True:
            while buffer:
                first, now = buffer[0], hand.clock()
                if (
                    now < first.certain_until
                    and now < chunk.turn_at
                    and len(buffer) > chunk.ask_below
                    and first in hand.claims
                ):
                    return self._hand_out(buffer.popleft(), now)
                if (delivery := await self._next_of_buffer()) is not None:
                    return self._hand_out(delivery, now)
            self._queue.check()  # where the queue object was closed meanwhile, what came has gone back
            try:
                await self._receive()
            except QueueClosedError:
                pass
            except QueueDoesNotExistError:
                self._deleted = True
                if not self._delete:
                    raise
            else:
                self._drained = False
                continue
            await self._flush()
            self.hand.failures.check()
            self._drained, self._task = True, None
            raise StopAsyncIteration

    def take_ready(self, most: int) -> list[T]:
        """Return up to `most` deliveries that have come already, without waiting; none without `ack="manual"`.

        Call it right after the iteration has returned one, in the same turn of the event loop.
        """
        ready: list[T] = []
        hand, now = self.hand, self.hand.clock()
        while self._manual and hand.buffer and len(ready) < most and now < hand.buffer[0].certain_until:
            delivery = hand.buffer.popleft()
            if delivery in hand.claims:
                ready.append(self._hand_out(delivery, now))
        return ready

    def on_lost(self, callback: Callable[[Exception], None]) -> None:
        """Have `callback(error)` called, once, when something in hand is lost: its lease ended, and others get it."""
        self.hand.failures.on_lost(callback)

    @property
    def attempts(self) -> int:
        """How often the current item has been delivered, this time included; 0 if there is none."""
        return self.hand.current.attempts if self.hand.current is not None else 0

    @property
    def redelivered(self) -> bool:
        """Whether the current item was delivered before."""
        return self.attempts > 1

    def _begin(self) -> None:
        """An iteration begins: check that it may."""
        self._queue.check()
        if self._state != "open":
            raise RuntimeError("iterate inside the consumer's block: async with queue.consumer() as consumer")
        if self._iterating.check():
            self.hand.renewal.note_task()
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()

    async def _acknowledge(self) -> None:
        """Acknowledge the current item: with the next step that leaves, so a failure is noted when it is known.

        A kind whose acknowledgements do not travel together waits for each one here.
        """
        current, self.hand.current = self.hand.current, None
        if current is not None and not current.settled:
            current.ack_soon()  # type: ignore[attr-defined]

    def _hand_out(self, delivery: D, now: float) -> T:
        """The program gets a delivery, at this time by the clock of the hand; returns what it gets."""
        hand = self.hand
        hand.progress += 1
        hand.handed_at = now
        delivery.handed_out = True
        if self._manual:
            return delivery  # type: ignore[return-value]
        hand.current = delivery
        return delivery.decode(delivery.raw)  # type: ignore[no-any-return]  # `item`, without its frame

    async def _next_of_buffer(self) -> D | None:
        """Take the next delivery from the buffer; None if its lease has ended meanwhile."""
        hand = self.hand
        if self._ask_ahead():
            await asyncio.sleep(0)
            if not hand.buffer:  # the queue object was closed meanwhile
                return None
        delivery = hand.buffer[0]
        if delivery in hand.claims and not hand.certain(delivery):
            await self._assure(delivery)  # if this is cancelled, it stays prefetched
        if hand.buffer and hand.buffer[0] is delivery:
            hand.buffer.popleft()
        return delivery if delivery in hand.claims else None


def give_back_unseen(blocks: Iterable[object]) -> None:
    """Have the consumers among some blocks give back what they have read ahead: the queue is held."""
    for block in blocks:
        if isinstance(block, QueueConsumer):
            block.hand.give_back_unseen()
