"""The consumer of a queue in memory, as an `async with` block."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from apressure.core.consumer import ConsumerOptions
from apressure.core.fetching import Fetched, FetchingConsumer
from apressure.core.leases.clock import Term
from apressure.core.leases.in_hand import ExtendedHand
from apressure.core.leases.renewal import Timer
from apressure.core.prefetch import Chunk
from apressure.core.waiting import Wait
from apressure.testing.memory.delivery import MemoryDelivery
from apressure.testing.memory.driver import MemoryDriver
from apressure.testing.memory.messages import Change, Extended, Status, Want

T = TypeVar("T")

_MOST_PREFETCHED: Final = 100


class MemoryHand(ExtendedHand[MemoryDelivery[Any]]):
    """What a consumer has in hand. Its leases end by the clock of the server."""

    kind = "MemoryQueue"
    _noun = "messages"

    _steps: MemoryDriver

    def __init__(self, renewer: Timer, steps: MemoryDriver, options: ConsumerOptions) -> None:
        super().__init__(renewer, steps, options)
        self.clock = steps.connection.now
        self.term = Term(options.lease, self.clock)

    def send_back(
        self, unseen: Sequence[MemoryDelivery[Any]], seen: Sequence[MemoryDelivery[Any]]
    ) -> list[asyncio.Future[Any]]:
        changes = [Change(delivery.claim, False, delivery.failure) for delivery in seen]
        unused = [delivery.taken for delivery in unseen]
        return [self._steps.give_back_soon(unused), self._steps.start(self._steps.queue.settle, changes)]

    def _outcomes(self, answer: Extended) -> list[bool]:
        return answer.outcomes


class MemoryConsumer(FetchingConsumer[T, MemoryDelivery[Any]]):
    """The consuming end of a `MemoryQueue`."""

    hand: MemoryHand
    _steps: MemoryDriver

    def __init__(self, queue: Fetched, renewer: Timer, limit: int, options: ConsumerOptions) -> None:
        super().__init__(
            queue, MemoryHand(renewer, queue.steps, options), Chunk(options.prefetch, _MOST_PREFETCHED), options
        )
        self._want = Want(int(options.lease * 1000), limit, self._expected)

    async def _enter(self) -> None:
        self._queue.check()
        self._open()

    async def _beat(self) -> None:
        """The server knows by the leases who is alive."""

    async def _delete_drained(self) -> None:
        status: Status = await self._steps.ask(self._steps.queue.look)
        if status.closed and not (status.waiting or status.claimed):
            await self._steps.delete()

    async def _receive(self) -> None:
        await self._steps.waits.until(self._step, None, self._steps.name)

    async def _step(self) -> Wait | None:
        """Take a chunk into the buffer. Cancelled while the step is on its way, it is there when this ends."""
        want = self._want._replace(expected=self._expected, in_hand=len(self.hand.claims))
        most, steps = self._chunk.adapt(), self._steps
        answer = await self._answer_to(
            self._send(lambda on_answer: steps.send(on_answer, steps.queue.take, most, want))
        )
        if not isinstance(answer, Wait):
            return None
        self._chunk.waited()
        return answer
