"""Consumers of queues of events, as `async with` blocks: any number of them compete."""

from __future__ import annotations

import asyncio
import random
import uuid
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from apressure.concurrency import background
from apressure.concurrency.backoff import Backoff
from apressure.concurrency.settle import set_result_once
from apressure.connection.waiting.waiter import SLICE, Behind, Waiter
from apressure.core.consumer import ConsumerOptions, QueueConsumer
from apressure.core.fetching import FetchingConsumer
from apressure.core.leases.in_hand import ExtendedHand
from apressure.core.prefetch import QUICK, Chunk
from apressure.core.waiting import Parked, Wait, moment
from apressure.events.delivery import EventDelivery
from apressure.events.driver import RedisDriver
from apressure.events.engine.answers import Extended
from apressure.events.engine.steps import Mender, Want
from apressure.exceptions import PressureError, QueueClosedError

T = TypeVar("T")
D = TypeVar("D", bound=EventDelivery[Any])

MAX_PREFETCH: Final = 1000
READ_AHEAD: Final = 16
"""From so many on, half of a chunk is asked for while the body works on the other half."""
SIGN_OF_LIFE: Final = 10.0
"""Seconds between two signs of life of a registered consumer."""


class EventHand(ExtendedHand[Any]):
    """The events that a consumer has in hand. Its arguments are those of `ExtendedHand`."""

    kind = "EventQueue"
    _noun = "events"

    def send_back(
        self, unseen: Sequence[EventDelivery[Any]], seen: Sequence[EventDelivery[Any]]
    ) -> list[asyncio.Future[Any]]:
        kinds = ("unseen", [one.claim for one in unseen]), ("fail", [(*one.claim, one.failure) for one in seen])
        return [self._steps.settle_soon(how, claims) for how, claims in kinds if claims]

    def _outcomes(self, answer: Extended) -> list[bool]:
        return answer.outcomes


class AnyEventConsumer(QueueConsumer[T, D]):
    """A consumer of one queue of events, on a server of either kind.

    Attributes:
        queue: The driver of the queue.
    """

    queue: Any

    @abstractmethod
    async def _step(self) -> Wait | None:
        """Take events into the buffer, without waiting for them; returns why there is none.

        Raises:
            QueueClosedError: The queue is closed and drained.
        """

    async def _receive(self) -> None:
        await self.queue.waits.until(self._step, None, self.queue.name)

    async def _delete_drained(self) -> None:
        status = await self.queue.steps.status()
        if status.closed and not (status.waiting or status.claimed or status.delayed):
            await self.queue.steps.delete()

    async def poll(self) -> D | Wait | None:
        """Return the next delivery, or why there is none; None if it is worth another look. For `EventConsumers`.

        Raises:
            QueueClosedError: The queue is closed and drained.
            PressureError, RuntimeError: As for the iteration.
        """
        self._begin()
        if not self.hand.buffer and (wait := await self._step()) is not None:
            return wait
        while self.hand.buffer:
            if (delivery := await self._next_of_buffer()) is not None:
                self._hand_out(delivery, self.hand.clock())
                return delivery
        return None  # dead letters were moved, or the lease has ended


class EventConsumer(AnyEventConsumer[T, EventDelivery[Any]], FetchingConsumer[T, EventDelivery[Any]]):
    """The consuming end of an `EventQueue`. Its block is registered, and mends what an okq that died has left."""

    queue: RedisDriver[Any]
    _heartbeat = SIGN_OF_LIFE

    def __init__(self, queue: RedisDriver[Any], options: ConsumerOptions) -> None:
        hand, chunk = EventHand(queue.client.renewer, queue.steps, options), Chunk(options.prefetch, MAX_PREFETCH)
        super().__init__(queue, hand, chunk, options)
        chunk.turn_at = 0.0
        self.queue = queue
        self._mender = Mender(queue.steps)
        self._id = str(uuid.uuid4()).encode()
        self._ahead: asyncio.Future[Any] | None = None
        self._receiving = False
        self._behind: asyncio.Future[Any] | None = None  # a step that stands behind a wait
        self._following = queue.steps.series()  # of those

    async def _enter(self) -> None:
        self.queue.check()
        await self._steps.register(self._id)
        self._open(background.start(self._stay_registered(), f"registering a consumer of {self.queue.name!r}"))

    async def _beat(self) -> None:
        await self._steps.register(self._id)
        await self._mender.look()

    async def _give_back(self) -> PressureError | None:
        if self._ahead is not None:
            await asyncio.wait((self._ahead,))
        return await super()._give_back()

    async def _leave(self) -> None:
        await self._steps.unregister(self._id)

    async def _receive(self) -> None:
        self._receiving = True
        try:
            await self.queue.waits.until(self._step, None, self.queue.name, self._hasten)
        except BaseException:
            if self._ahead is not None:
                self._ahead.add_done_callback(self._unwanted)
            raise
        finally:
            self._receiving = False
        size, came = self._chunk.size, len(self.hand.buffer)
        # Where a single one came, the queue was empty behind it.
        self._chunk.ask_below = size // 2 if size >= READ_AHEAD and came > 1 else -1
        self._chunk.turn_at = self.hand.clock() + QUICK  # it has just turned

    def _ask_ahead(self) -> bool:
        now, chunk = self.hand.clock(), self._chunk
        if len(self.hand.buffer) <= chunk.ask_below:
            chunk.ask_below = -1
            self._ahead = self._pop(chunk.adapt() // 2, b"")
        elif now < chunk.turn_at:
            return False
        chunk.turn_at = now + QUICK  # or nothing would leave until the buffer is empty
        return True

    async def _step(self) -> Wait | None:
        """Take up to a chunk of events. Cancelled while the step is on its way, they are in the buffer at the end."""
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            try:
                await self._wait_for(ahead)  # what it could not do, the next step tells
            except asyncio.CancelledError:
                ahead.add_done_callback(self._unwanted)
                raise
            if self.hand.buffer:
                return None
        done = self._pop(self._chunk.adapt(), self.queue.waits.take_turn())
        try:
            answer = await self._answer_to(done)
        except asyncio.CancelledError:
            done.add_done_callback(self._unwanted)
            raise
        if not isinstance(answer, Wait):
            return None
        self._chunk.waited()
        return answer

    def _unwanted(self, done: asyncio.Future[Any]) -> None:
        """A step has been answered for which nobody waits."""
        if isinstance(done.result(), Wait):
            self.queue.waits.drop(done.result())

    def _hasten(self, parked: Parked, wait: Wait) -> None:
        """Have the next step leave as early as possible: now, behind the wait for events, or else at the wake-up."""
        parked.on_wake = self._pop_early
        waiter = self.queue.waits.leading(wait)
        # How long the claims last is reckoned from now on.
        if waiter is not None and self._behind is None and self.hand.term.seconds > 2 * SLICE:
            self._follow(waiter)

    def _pop_early(self, parked: Parked) -> None:
        if self._ahead is None and parked.exception() is None:
            self._ahead = self._pop(self._chunk.adapt(), self.queue.waits.take_turn())

    def _follow(self, waiter: Waiter) -> None:
        """Send a step behind a wait, so that the event that ends it takes no second round trip.

        It takes events only while this client watches the queue.
        """
        done = self._behind = asyncio.get_running_loop().create_future()
        take = self._taking(done)

        def on_end() -> None:
            if self._receiving and self._ahead is None:
                self._ahead = done
                self._chunk.adapt()
                self.queue.waits.take_turn()

        def on_answer(answer: Any) -> None:
            if self._steps.repeat(request, answer, self._receiving):
                on_end()
                return
            self._behind = None
            if self._receiving or self._ahead is done:
                take(answer)
            else:
                set_result_once(done, answer)
                if events := self._steps.messages(answer):
                    self._steps.give_back_soon(events)

        most, place, behind = self._chunk.size, self.queue.waits.place, Behind(waiter, on_end)
        request = self._steps.send_pop(self._following, most, self._want(most), place, on_answer, behind)

    def _pop(self, most: int, place: bytes) -> asyncio.Future[Any]:
        """Send a step that pops up to `most` events into the buffer."""
        want = self._want(most)
        return self._send(lambda on_answer: self._steps.send_pop(self._series, most, want, place, on_answer))

    def _want(self, most: int) -> Want:
        lease, limit = int(self.hand.term.seconds * 1000), self.queue.max_attempts or 0
        return Want(lease, limit, self._expected, len(self.hand.claims), share=most > 1)


class EventConsumers:
    """A consumer of several queues; made by `EventQueue.consume`: the loop that okq asks every consumer to write.

    Args:
        queues: The queues, which its block opens.
        consumers: A consumer of each queue, with `ack="manual"`.

    Attributes:
        name: The name of the queue that the latest delivery is from; empty before the first one.
    """

    def __init__(
        self, queues: Iterable[AbstractAsyncContextManager[Any]], consumers: Iterable[AnyEventConsumer[Any, Any]]
    ) -> None:
        self.name = ""
        self._consumers = list(consumers)
        self._blocks: list[AbstractAsyncContextManager[Any]] = [*queues, *self._consumers]
        self._not_drained = list(self._consumers)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for block in self._blocks:
                await stack.enter_async_context(block)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the block: what was handed out and not settled goes back, first in line."""
        await self._stack.__aexit__(kind, error, traceback)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventDelivery[Any]:
        """Return the next delivery of any of the queues.

        Cancelled while it waits, nothing is lost: the end of the block gives back what was received.

        Raises:
            StopAsyncIteration: All queues are closed and drained.
            PressureError, RuntimeError: As for a consumer of one queue.
        """
        loop, misses = asyncio.get_running_loop(), Misses()
        while self._not_drained:
            since = moment()
            blocked: dict[AnyEventConsumer[Any, Any], Wait] = {}
            try:
                # A busy queue must not starve the others.
                for consumer in random.sample(self._not_drained, len(self._not_drained)):
                    try:
                        answer = await consumer.poll()
                    except QueueClosedError:
                        self._not_drained.remove(consumer)
                        continue
                    if isinstance(answer, Wait):
                        blocked[consumer] = answer
                        continue
                    if answer is not None:
                        self.name = consumer.queue.name
                        return answer  # type: ignore[no-any-return]
                    break  # look again
                else:
                    if blocked:
                        began = loop.time()
                        await self._park(blocked, since)
                        blocked = {}
                        await misses.note(loop.time() - began)
            finally:
                for consumer, wait in blocked.items():
                    consumer.queue.waits.drop(wait)
        self._not_drained = list(self._consumers)  # what was in hand may have gone back
        raise StopAsyncIteration

    async def _park(self, blocked: dict[AnyEventConsumer[Any, Any], Wait], since: int) -> None:
        """Wait until one of the queues may have something that it did not have at that moment."""
        parked = {consumer: consumer.queue.waits.park(wait, since) for consumer, wait in blocked.items()}
        try:
            await asyncio.wait(parked.values(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for consumer, future in parked.items():
                if not future.done():
                    future.cancel()
                    consumer.queue.waits.hand_back("consumer")
        for future in parked.values():
            if not future.cancelled():
                future.result()


class Misses:
    """Slows down a loop whose waits end at once and whose pops find nothing: others are quicker, or a pause holds."""

    _PAUSES: Final = Backoff(first=0.005, most=0.5)
    _FEW: Final = 3

    def __init__(self) -> None:
        self._count = 0

    def pause(self, waited: float) -> float:
        """Return how many seconds to pause after a wait: 0, unless it was one of many short ones.

        Args:
            waited: Its seconds.
        """
        self._count = self._count + 1 if waited < 0.1 else 0
        return self._PAUSES.pause(self._count - self._FEW - 1) if self._count > self._FEW else 0.0

    async def note(self, waited: float) -> None:
        """Pause, if this wait was one of many short ones.

        Args:
            waited: Its seconds.
        """
        if pause := self.pause(waited):
            await asyncio.sleep(pause)
