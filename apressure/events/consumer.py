"""Consumers of a queue of events, as `async with` blocks: any number of them compete."""

# ruff: noqa: SLF001 (a block is a part of the queue object that made it)

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from apressure import background
from apressure.connection.leases.clock import Clock, since_boot
from apressure.connection.waiting.waits import Wait
from apressure.events.delivery import EventDelivery, Hand
from apressure.events.engine.answers import Popped
from apressure.events.renewing import Renewing
from apressure.exceptions import (
    DurabilityError,
    LeaseLostError,
    PressureError,
    QueueClosedError,
    QueueDoesNotExistError,
)
from apressure.lifetime import IteratingTask
from apressure.settle import set_result_once, wait_for_answer, wait_shielded

if TYPE_CHECKING:
    from apressure.events.queue import EventQueue

T = TypeVar("T")

MAX_PREFETCH: Final = 1000
READ_AHEAD: Final = 16
"""From so many on, half of a chunk is asked for while the body works on the other half."""
SIGN_OF_LIFE: Final = 10.0
"""Seconds between two signs of life of a registered consumer."""

_QUICK: Final = 0.05
"""Seconds: a chunk that the body handles in less may be followed by one of twice its size."""


class EventConsumer(Generic[T]):
    """A consuming end of a queue, at-least-once; made by `EventQueue.consumer`. Any number of them compete.

    Iterating hands out items until the queue is closed and drained. An item is acknowledged when the loop asks for the
    next one, and at the end of the block. If the body raises or is cancelled, the item goes back, first in line, marked
    as redelivered. If the process dies, that happens when the lease ends. A thread renews the leases of everything in
    hand, also while the body blocks the event loop.

    The loop ends when the queue is closed, nothing waits, and no other consumer has anything in flight, so it gets what
    another one fails to handle.

    `T` is what the iteration hands out: an item, or with `ack="manual"` its `EventDelivery`.
    """

    acknowledges_the_one_before: Final = True
    """`put_many` reads ahead, so it refuses a consumer; see `validation.batch`."""

    def __init__(
        self,
        queue: EventQueue[Any],
        manual: bool,
        delete: bool,
        prefetch: int | None,
        lease: float,
        max_hold: float,
        clock: Clock = since_boot,
    ) -> None:
        self._queue = queue
        self._manual = manual
        self._delete = delete
        self._fixed = prefetch
        self._chunk = prefetch or 1
        self._series = queue._steps.series()
        self._buffer: deque[EventDelivery[Any]] = deque()
        self._hand = Hand(self._failed)
        self._renewing = Renewing(
            queue.client, queue._steps, self._hand, lease, max_hold, self._fail, self._return_buffer, clock
        )
        self._id = str(uuid.uuid4()).encode()
        self._registration: asyncio.Task[None] | None = None
        self._current: EventDelivery[Any] | None = None
        self._iterating = IteratingTask()
        self._error: Exception | None = None
        self._on_lost: Callable[[Exception], None] | None = None
        self._expected = queue._expected
        self._ended = False
        self._left = False
        self._ahead: asyncio.Future[Any] | None = None
        self._breathed = self._asked = 0.0

    async def __aenter__(self) -> Self:
        if self._registration is not None:
            raise RuntimeError("this consumer's block has begun already: make one for each block")
        queue = self._queue
        queue.check()
        await queue._steps.register(self._id)
        queue.blocks.add(self)
        self._registration = background.start(self._stay_registered(), f"registering a consumer of {queue.name!r}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._registration is None:
            return  # closing the queue object gave everything back
        queue, finished = self._queue, False
        try:
            if isinstance(error, Exception) and self._current is not None:
                self._current.note_error(error)  # a cancellation is no failure
            if kind is None:
                self._acknowledge()
                await self._flush()
                if self._error is not None:
                    raise self._error
            finished = self._ended and not self._hand
        finally:
            # The caller has to see the body's own exception.
            with contextlib.suppress(*(() if kind is None else (PressureError,))):
                await self.end()
        if kind is None and self._delete and finished:
            with contextlib.suppress(QueueDoesNotExistError):  # another consumer was first
                status = await queue._steps.status()
                if status.closed and not (status.waiting or status.claimed):
                    await queue._steps.delete()

    async def end(self) -> None:
        """Give back everything in hand, and deregister.

        Cancelled, that goes on, for up to `settle_timeout` seconds; then the cancellation is raised.
        """
        registration, self._registration = self._registration, None
        self._renewing.end()
        self._queue.blocks.discard(self)
        if registration is None:
            return
        registration.cancel()
        work = background.start(self._give_back(), "giving back a consumer's events")
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError:
            await wait_shielded(work, self._queue._steps.settle_timeout)
            raise
        if (error := work.result()) is not None:
            raise error

    async def _give_back(self) -> PressureError | None:
        """Give back everything in hand, and deregister. An error is returned: it is the caller's."""
        if self._ahead is not None:
            await asyncio.wait((self._ahead,))
        self._left = True
        unseen = list(self._buffer)
        seen = [one for one in self._hand.values() if not (one.settled or one in unseen)]
        self._buffer.clear()
        self._hand.clear()
        self._current = None
        steps = self._queue._steps
        await self._flush()
        try:
            try:
                # What the program has not seen goes back first: what goes back later comes before it.
                for how, some in (("unseen", unseen), ("fail", seen)):
                    if some:
                        await steps.settle([one.failure if how == "fail" else one.claim for one in some], how)
                        for one in some:
                            one.settled = True
            finally:
                await steps.unregister(self._id)
        except PressureError as error:  # what is in flight comes back when the leases end
            return error
        return None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Return the next item; with `ack="manual"` the next `EventDelivery`.

        Cancelled while it waits, nothing is lost: the end of the block gives back what was received.

        Raises:
            StopAsyncIteration: The queue is closed and drained.
            DecodeError: The event cannot be decoded. It is given back unless the loop goes on.
            LeaseLostError: The lease of an earlier item ended before it was acknowledged, and others get it. Or it was
                given up after `max_hold`.
            RuntimeError: Another task iterates already, or the block has ended.
            PressureError: As for `EventQueue.receive`.
        """
        self._begin()
        while True:
            while self._buffer:
                if (delivery := await self._next_of_buffer()) is not None:
                    return self._hand_out(delivery)
            try:
                await self._queue._waits.until(self._step, None, self._queue.name)
            except QueueClosedError:
                pass
            except QueueDoesNotExistError:
                if not self._delete:
                    raise
            else:
                self._ended = False
                continue
            await self._flush()
            self._raise_failure()
            self._ended = True
            raise StopAsyncIteration

    def take_ready(self, most: int) -> list[T]:
        """Return up to `most` deliveries that have come already, without waiting; none without `ack="manual"`.

        Call it right after the iteration has returned one, in the same turn of the event loop.
        """
        ready: list[Any] = []
        while self._manual and self._buffer and len(ready) < most and self._renewing.certain(self._buffer[0]):
            ready.append(self._hand_out(self._buffer.popleft()))
        return ready

    def on_lost(self, callback: Callable[[Exception], None]) -> None:
        """Have `callback(error)` called, once, when an event in hand is lost: its lease ended, and others get it."""
        self._on_lost = callback

    @property
    def attempts(self) -> int:
        """How often the current item has been delivered, this time included; 0 if there is none."""
        return self._current.attempts if self._current is not None else 0

    @property
    def redelivered(self) -> bool:
        """Whether the current item was delivered before."""
        return self.attempts > 1

    def _begin(self) -> None:
        """An iteration begins: acknowledge the item before."""
        self._queue.check()
        if self._registration is None:
            raise RuntimeError("iterate inside the consumer's block: async with queue.consumer() as consumer")
        if self._iterating.check():
            self._renewing.note_task()
        self._acknowledge()
        self._raise_failure()

    def _acknowledge(self) -> None:
        current, self._current = self._current, None
        if current is not None and not current.settled:
            current.ack_soon()

    def _raise_failure(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    async def _next_of_buffer(self) -> EventDelivery[Any] | None:
        """Take the next delivery from the buffer; None if its lease has ended meanwhile."""
        loop = asyncio.get_running_loop()
        due = self._ahead is None and self._chunk >= READ_AHEAD and len(self._buffer) <= self._chunk // 2
        if due:
            self._adapt()
            self._ahead = self._send_pop(self._chunk // 2, b"", loop.create_future())
        if due or loop.time() - self._breathed > _QUICK:  # or nothing would leave until the buffer is empty
            await asyncio.sleep(0)
            self._breathed = loop.time()
        if not self._buffer:  # the queue object was closed meanwhile
            return None
        delivery = self._buffer[0]
        if delivery.claim in self._hand and not self._renewing.certain(delivery):
            await self._renewing.assure()  # if this is cancelled, it stays prefetched
        if self._buffer and self._buffer[0] is delivery:
            self._buffer.popleft()
        return delivery if delivery.claim in self._hand else None

    def _hand_out(self, delivery: EventDelivery[Any]) -> T:
        self._renewing.progress += 1
        if self._manual:
            return delivery  # type: ignore[return-value]
        self._current = delivery
        return delivery.item  # type: ignore[no-any-return]

    async def _step(self) -> Wait | None:
        """Ask for a chunk of events, without waiting for them."""
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            await self._answer_to(ahead)
            if self._buffer:
                return None
        self._adapt()
        answer = await self.pop()
        if isinstance(answer, Wait):
            self._asked = 0.0  # the next chunk says nothing about how quick the body is
            return answer
        return None

    def _adapt(self) -> None:
        """Before a chunk is asked for: decide how large it is, by how quickly the body handled the one before."""
        loop = asyncio.get_running_loop()
        if self._fixed is None and self._asked:
            quick = loop.time() - self._asked < _QUICK
            self._chunk = min(MAX_PREFETCH, 2 * self._chunk) if quick else max(1, self._chunk // 2)
        self._asked = loop.time()

    async def pop(self) -> Popped | Wait:
        """Pop up to a chunk of events into the buffer: one step.

        Cancelled while the step is on its way, the events are in the buffer when this ends.
        """
        waits = self._queue._waits
        done = self._send_pop(self._chunk, waits.take_turn(), asyncio.get_running_loop().create_future())
        try:
            answer = await self._answer_to(done)
        except asyncio.CancelledError:
            if done.done() and isinstance(done.result(), Wait):
                waits.drop(done.result())  # nobody waits here now
            raise
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Wait):
            self._expected = self._expected or answer.created
        return answer  # type: ignore[no-any-return]

    def _send_pop(self, most: int, place: bytes, done: asyncio.Future[Any]) -> asyncio.Future[Any]:
        """Send a step that pops into the buffer; returns the future that gets its answer."""
        queue = self._queue
        sent = self._renewing.clock()

        def on_answer(answer: Any) -> None:
            if isinstance(answer, Popped):
                self._arrived(answer, sent)
            elif isinstance(answer, Wait) and answer.reason == "paused":
                self._return_buffer()
            elif isinstance(answer, DurabilityError) and isinstance(answer.answer, Popped) and answer.answer.events:
                queue._steps.give_back_soon(answer.answer.events)
            set_result_once(done, answer)

        queue._steps.send_pop(
            self._series, most, int(self._renewing.term.seconds * 1000), place, queue.max_attempts or 0,
            self._expected, len(self._hand), most > 1, on_answer,
        )  # fmt: skip
        return done

    async def _answer_to(self, done: asyncio.Future[Any]) -> Any:
        """Wait for the answer to a step; a cancellation comes out when it is there, or after `settle_timeout`."""
        await wait_for_answer(done, None, self._queue._steps.settle_timeout)
        return done.result()

    def _arrived(self, answer: Popped, sent: float) -> None:
        queue = self._queue
        for event in answer.events:
            delivery = EventDelivery(queue._steps, queue._settler, queue._items.decode, event, self._hand)
            self._buffer.append(delivery)
            self._hand[delivery.claim] = delivery
            self._renewing.arrived(delivery, sent)
        if self._left:  # the block has ended meanwhile
            self._return_buffer()

    def _return_buffer(self) -> None:
        """Give back what was received and not handed out: that was no attempt."""
        unseen = [one.claim for one in self._buffer if self._hand.pop(one.claim, None) is not None]
        self._buffer.clear()
        if unseen:
            steps = self._queue._steps
            steps.send_settle(steps.series(), "unseen", unseen, False, lambda _: None)

    async def _flush(self) -> None:
        """Wait until acknowledgements have been sent and answered."""
        await asyncio.wait((self._queue._settler.flushed(),))

    async def _stay_registered(self) -> None:
        """Give signs of life, and mend what an okq has left when it died between two commands."""
        steps, suspicious = self._queue._steps, False
        while True:
            await asyncio.sleep(SIGN_OF_LIFE)
            with contextlib.suppress(PressureError):  # the next one may get through
                await steps.register(self._id)
                status = await steps.status()
                torn = status.contents > status.waiting + status.claimed
                if torn and suspicious:  # not at the first look: an okq may be in the middle of a push
                    await steps.mend()
                suspicious = torn

    def _failed(self, error: Exception) -> None:
        """An acknowledgement that nobody waited for has failed: the next iteration says so."""
        self._error = self._error or error
        self._tell(error)

    def _fail(self, error: LeaseLostError, lost: list[EventDelivery[Any]]) -> None:
        """Claims were lost to others, or given up: the program has some of them in hand."""
        seen = [one for one in lost if one not in self._buffer]
        if seen and not self._manual:
            self._error = self._error or error
            self._current = None
        if seen:
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        callback, self._on_lost = self._on_lost, None
        if callback is not None:
            callback(error)
