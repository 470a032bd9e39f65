"""The consumer of a queue in memory, as an `async with` block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from apressure.core.consumer import Consumed
from apressure.core.driver import Renewer
from apressure.core.fetching import FetchingConsumer
from apressure.core.leases.in_hand import ExtendedHand
from apressure.core.prefetch import Chunk
from apressure.core.waiting import Wait
from apressure.testing.memory.delivery import MemoryDelivery
from apressure.testing.memory.driver import MemoryDriver
from apressure.testing.memory.stored import Change, Extended, Popped, Status, Taken, Want

T = TypeVar("T")

_MOST_PREFETCHED: Final = 100

Make = Callable[[Taken, float, Any], MemoryDelivery[Any]]
"""Makes a delivery whose lease lasts until then, in this hand."""


class MemoryHand(ExtendedHand[MemoryDelivery[Any]]):
    """What a consumer has in hand."""

    kind = "MemoryQueue"
    _noun = "messages"

    _extends: MemoryDriver

    def send_back(
        self, unseen: Sequence[MemoryDelivery[Any]], seen: Sequence[MemoryDelivery[Any]]
    ) -> list[asyncio.Future[Any]]:
        driver = self._extends
        changes = [Change(delivery.claim, False, delivery.failure) for delivery in seen]
        return [driver.put_back([delivery.taken for delivery in unseen]), driver.start(driver.queue.settle, changes)]

    def _outcomes(self, answer: Extended) -> list[bool]:
        return answer.outcomes


class MemoryConsumer(FetchingConsumer[T, MemoryDelivery[Any]]):
    """The consuming end of a `MemoryQueue`."""

    hand: MemoryHand

    def __init__(
        self, queue: Consumed, renewer: Renewer, driver: MemoryDriver, want: Want, make: Make, manual: bool,
        delete: bool, prefetch: int | None, max_hold: float,
    ) -> None:  # fmt: skip
        hand = MemoryHand(renewer, driver, want.lease / 1000, max_hold, driver.connection.now)
        chunk = Chunk(prefetch, _MOST_PREFETCHED)
        super().__init__([queue], hand, chunk, driver.settle_timeout, manual=manual, delete=delete)
        self._driver = driver
        self._want = want
        self._make = make
        self._expected = want.expected

    async def _enter(self) -> None:
        self._check_queues()
        self._open()

    async def _beat(self) -> None:
        """The server knows by its leases who is alive."""

    async def _flush(self) -> None:
        await asyncio.wait((self._driver.settler.flushed(),))

    async def _delete_drained(self) -> None:
        status: Status = await self._driver.ask(self._driver.queue.look)
        if status.closed and not (status.waiting or status.claimed):
            await self._driver.delete()

    async def _receive(self) -> None:
        await self._driver.waits.until(self._step, None, self._driver.name)

    async def _step(self) -> Wait | None:
        """Take a chunk into the buffer. Cancelled while the step is on its way, it is there when this ends."""
        want = self._want._replace(expected=self._expected, in_hand=len(self.hand.claims))
        most, driver = self._chunk.adapt(), self._driver
        answer = await self._answer_to(
            self._send(lambda on_answer: driver.send(on_answer, driver.queue.take, most, want))
        )
        if not isinstance(answer, Wait):
            return None
        self._chunk.waited()
        return answer

    def _messages(self, answer: Any) -> list[Taken] | None:
        return answer.taken if isinstance(answer, Popped) else None

    def _note(self, answer: Popped) -> None:
        self._driver.note(answer)

    def _deliveries(self, messages: Sequence[Taken], until: float) -> list[MemoryDelivery[Any]]:
        return [self._make(taken, until, self.hand) for taken in messages]

    def _undo(self, messages: Sequence[Taken]) -> object:
        return self._driver.put_back(messages)
