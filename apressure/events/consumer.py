"""Consumers of a queue of events, as `async with` blocks: any number of them compete."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any, Final, TypeVar

from apressure.concurrency import background
from apressure.core.consumer import ConsumerOptions
from apressure.core.driver import OnAnswer
from apressure.core.fetching import FetchingConsumer
from apressure.core.prefetch import QUICK, Chunk
from apressure.core.waiting import Wait
from apressure.events.core import Core
from apressure.events.delivery import EventDelivery
from apressure.events.engine.answers import Event, Popped
from apressure.events.engine.batching import note_popped
from apressure.events.engine.mending import Mender
from apressure.events.engine.steps import Want
from apressure.events.hand import EventHand
from apressure.exceptions import PressureError

T = TypeVar("T")

MAX_PREFETCH: Final = 1000
READ_AHEAD: Final = 16
"""From so many on, half of a chunk is asked for while the body works on the other half."""
SIGN_OF_LIFE: Final = 10.0
"""Seconds between two signs of life of a registered consumer."""


class EventConsumer(FetchingConsumer[T, EventDelivery[Any]]):
    """The consuming end of an `EventQueue`. Its block is registered, and mends what an okq that died has left."""

    hand: EventHand
    _heartbeat = SIGN_OF_LIFE

    def __init__(self, queue: Core[Any], options: ConsumerOptions) -> None:
        hand, chunk = EventHand(queue.client.renewer, queue.steps, options), Chunk(options.prefetch, MAX_PREFETCH)
        super().__init__(queue, hand, chunk, options)
        chunk.turn_at = 0.0
        self._queue = queue
        self._mender = Mender(queue.steps)
        self._id = str(uuid.uuid4()).encode()
        self._ahead: asyncio.Future[Any] | None = None

    async def _enter(self) -> None:
        self._queue.check()
        await self._steps.register(self._id)
        self._open(background.start(self._stay_registered(), f"registering a consumer of {self._queue.name!r}"))

    async def _beat(self) -> None:
        await self._steps.register(self._id)
        await self._mender.look()

    async def _give_back(self) -> PressureError | None:
        if self._ahead is not None:
            await asyncio.wait((self._ahead,))
        return await super()._give_back()

    async def _leave(self) -> None:
        await self._steps.unregister(self._id)

    async def _delete_drained(self) -> None:
        status = await self._steps.status()
        if status.closed and not (status.waiting or status.claimed):
            await self._steps.delete()

    async def _receive(self) -> None:
        await self._queue.waits.until(self._step, None, self._queue.name)
        size = self._chunk.size
        self._chunk.ask_below = size // 2 if size >= READ_AHEAD else -1

    def _ask_ahead(self) -> bool:
        now, chunk = self.hand.clock(), self._chunk
        if len(self.hand.buffer) <= chunk.ask_below:
            chunk.ask_below = -1
            self._ahead = self._send(self._pop(chunk.adapt() // 2, b""))
        elif now < chunk.turn_at:
            return False
        chunk.turn_at = now + QUICK  # or nothing would leave until the buffer is empty
        return True

    async def _step(self) -> Wait | None:
        """Ask for a chunk of events, without waiting for them."""
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            await self._wait_for(ahead)  # what it could not do, the next step tells
            if self.hand.buffer:
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
        done = self._send(self._pop(self._chunk.size, waits.take_turn()))
        try:
            return await self._answer_to(done)  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            if done.done() and isinstance(done.result(), Wait):
                waits.drop(done.result())  # nobody waits here now
            raise

    def _pop(self, most: int, place: bytes) -> Callable[[OnAnswer], object]:
        """Return what sends a step that pops up to `most` events."""
        lease, limit = int(self.hand.term.seconds * 1000), self._queue.max_attempts or 0
        want = Want(lease, limit, self._expected, len(self.hand.claims), share=most > 1)
        return lambda on_answer: self._steps.send_pop(self._series, most, want, place, on_answer)

    def _messages(self, answer: Any) -> list[Event] | None:
        return answer.events if isinstance(answer, Popped) else None

    def _note(self, answer: Popped) -> None:
        note_popped(self._steps, answer)

    # For a consumer of several queues.

    async def poll(self) -> EventDelivery[Any] | Wait | None:
        """Return the next delivery, or why there is none; None if it is worth another look.

        Raises:
            QueueClosedError: The queue is closed and drained.
            PressureError, RuntimeError: As for the iteration.
        """
        self._begin()
        if not self.hand.buffer and isinstance(answer := await self.pop(), Wait):
            return answer
        while self.hand.buffer:
            if (delivery := await self._next_of_buffer()) is not None:
                self._hand_out(delivery, self.hand.clock())
                return delivery
        return None  # dead letters were moved, or the lease has ended
