"""Consumers of a queue of events, as `async with` blocks: any number of them compete."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any, Final, TypeVar

from apressure.concurrency import background
from apressure.concurrency.settle import set_result_once, wait_for_answer
from apressure.core.consumer import QueueConsumer
from apressure.core.leases.clock import Clock, since_boot
from apressure.core.prefetch import QUICK, Chunk
from apressure.core.waiting import Wait
from apressure.events.delivery import EventDelivery, Hand
from apressure.events.driver import RedisDriver
from apressure.events.engine.answers import Popped
from apressure.events.engine.batching import note_popped
from apressure.events.engine.mending import Mender
from apressure.events.engine.steps import Want
from apressure.events.renewing import Renewing
from apressure.exceptions import DurabilityError, PressureError

T = TypeVar("T")

MAX_PREFETCH: Final = 1000
READ_AHEAD: Final = 16
"""From so many on, half of a chunk is asked for while the body works on the other half."""
SIGN_OF_LIFE: Final = 10.0
"""Seconds between two signs of life of a registered consumer."""


class EventConsumer(QueueConsumer[T, EventDelivery[Any]]):
    """The consuming end of an `EventQueue`. Its block is registered, and mends what an okq that died has left."""

    hand: Hand
    _renewing: Renewing

    def __init__(
        self,
        queue: RedisDriver[Any],
        manual: bool,
        delete: bool,
        prefetch: int | None,
        lease: float,
        max_hold: float,
        clock: Clock = since_boot,
    ) -> None:
        steps = queue.steps
        hand = Hand(self._failed)
        super().__init__(queue.check, [queue.blocks], steps.settle_timeout, manual=manual, delete=delete, hand=hand)
        self._queue = queue
        self._chunk = Chunk(prefetch, MAX_PREFETCH)
        self._series = steps.series()
        self._renewing = Renewing(queue.client, steps, hand, lease, max_hold, self._lost, self._return_buffer, clock)
        self._id = str(uuid.uuid4()).encode()
        self._expected = queue.expected
        self._ahead: asyncio.Future[Any] | None = None
        self._turn_at = 0.0

    async def _enter(self) -> None:
        queue = self._queue
        queue.check()
        await queue.steps.register(self._id)
        self._open(background.start(self._stay_registered(), f"registering a consumer of {queue.name!r}"))

    async def _give_back(self) -> PressureError | None:
        if self._ahead is not None:
            await asyncio.wait((self._ahead,))
        return await super()._give_back()

    async def _return(self, unseen: list[EventDelivery[Any]], seen: list[EventDelivery[Any]]) -> None:
        steps = self._queue.steps
        try:
            # What the program has not seen goes back first: what goes back later comes before it.
            for how, some in (("unseen", unseen), ("fail", seen)):
                if some:
                    await steps.settle([one.failure if how == "fail" else one.claim for one in some], how)
                    for one in some:
                        one.settled = True
        finally:
            await steps.unregister(self._id)

    async def _delete_drained(self) -> None:
        steps = self._queue.steps
        status = await steps.status()
        if status.closed and not (status.waiting or status.claimed):
            await steps.delete()

    async def _receive(self) -> None:
        await self._queue.waits.until(self._step, None, self._queue.name)
        size = self._chunk.size
        self._ask_below = size // 2 if size >= READ_AHEAD else -1

    def _ask_ahead(self) -> bool:
        now = self._renewing.clock()
        if len(self._buffer) <= self._ask_below:
            self._ask_below = -1
            self._ahead = self._send_pop(self._chunk.adapt() // 2, b"", asyncio.get_running_loop().create_future())
        elif now < self._turn_at:
            return False
        self._turn_at = now + QUICK  # or nothing would leave until the buffer is empty
        return True

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
        self._chunk.adapt()
        answer = await self.pop()
        if isinstance(answer, Wait):
            self._chunk.waited()
            return answer
        return None

    async def pop(self) -> Popped | Wait:
        """Pop up to a chunk of events into the buffer: one step.

        Cancelled while the step is on its way, the events are in the buffer when this ends.
        """
        waits = self._queue.waits
        done = self._send_pop(self._chunk.size, waits.take_turn(), asyncio.get_running_loop().create_future())
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
                queue.steps.give_back_soon(answer.answer.events)
            set_result_once(done, answer)

        lease, limit = int(self._renewing.term.seconds * 1000), queue.max_attempts or 0
        want = Want(lease, limit, self._expected, len(self.hand), share=most > 1)
        queue.steps.send_pop(self._series, most, want, place, on_answer)
        return done

    async def _answer_to(self, done: asyncio.Future[Any]) -> Any:
        """Wait for the answer to a step; a cancellation comes out when it is there, or after `settle_timeout`."""
        await wait_for_answer(done, None, self._queue.steps.settle_timeout)
        return done.result()

    def _arrived(self, answer: Popped, sent: float) -> None:
        queue = self._queue
        note_popped(queue.steps, answer)
        deliveries = queue.deliveries(answer.events, self.hand)
        self._buffer.extend(deliveries)
        self._renewing.arrived([(one.claim, one) for one in deliveries], sent)
        if self._left:  # the block has ended meanwhile
            self._return_buffer()

    def _return_buffer(self) -> None:
        """Give back what was received and not handed out: that was no attempt."""
        unseen = [one.claim for one in self._buffer if self.hand.pop(one.claim, None) is not None]
        self._buffer.clear()
        if unseen:
            steps = self._queue.steps
            steps.send_settle(steps.series(), "unseen", unseen, False, lambda _: None)

    async def _flush(self) -> None:
        """Wait until acknowledgements have been sent and answered."""
        await asyncio.wait((self._queue.settler.flushed(),))

    async def _stay_registered(self) -> None:
        """Give signs of life, and mend what an okq has left when it died between two commands."""
        steps = self._queue.steps
        mender = Mender(steps)
        while True:
            await asyncio.sleep(SIGN_OF_LIFE)
            with contextlib.suppress(PressureError):  # the next one may get through
                await steps.register(self._id)
                await mender.look()
