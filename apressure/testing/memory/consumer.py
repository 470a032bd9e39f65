"""The consumer of a queue in memory, as an `async with` block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from apressure.concurrency.settle import set_result_once, wait_for_answer
from apressure.core.consumer import QueueConsumer
from apressure.core.leases.in_hand import ExtendedInHand
from apressure.core.prefetch import Chunk
from apressure.core.waiting import Wait
from apressure.testing.memory.delivery import Hand, MemoryDelivery
from apressure.testing.memory.driver import MemoryDriver
from apressure.testing.memory.stored import Extended, Popped, Status, Taken, Want

if TYPE_CHECKING:
    from apressure.testing.memory.queue import MemoryQueue

T = TypeVar("T")

_MOST_PREFETCHED: Final = 100

Make = Callable[[Taken, Hand], MemoryDelivery[Any]]
"""Makes a delivery."""


class Renewing(ExtendedInHand[int, MemoryDelivery[Any]]):
    """Renews the leases of all messages that a consumer has in hand."""

    kind = "MemoryQueue"
    _extends: MemoryDriver

    def _give_back(self, lost: list[MemoryDelivery[Any]]) -> None:
        self._extends.send(lambda _: None, self._extends.queue.settle, [delivery.failure for delivery in lost])

    def _outcomes(self, claims: Sequence[int], answer: Extended) -> Iterable[tuple[int, bool]]:
        return zip(claims, answer.outcomes, strict=True)


class MemoryConsumer(QueueConsumer[T, MemoryDelivery[Any]]):
    """The consuming end of a `MemoryQueue`."""

    hand: Hand
    _renewing: Renewing

    def __init__(
        self, queue: MemoryQueue[Any], driver: MemoryDriver, want: Want, make: Make, manual: bool, delete: bool,
        prefetch: int | None, max_hold: float,
    ) -> None:  # fmt: skip
        hand = Hand(self._failed)
        super().__init__(queue.check, [queue.blocks], driver.settle_timeout, manual=manual, delete=delete, hand=hand)
        self._driver = driver
        self._want = want
        self._make = make
        self._chunk = Chunk(prefetch, _MOST_PREFETCHED)
        self._renewing = Renewing(
            hand, queue.client.renewer, (), "messages", queue.name, want.lease / 1000, max_hold, self._lost,
            driver.connection.now, driver, self._return_buffer,
        )  # fmt: skip

    async def _enter(self) -> None:
        self._check()
        self._open()

    async def _receive(self) -> None:
        await self._driver.waits.until(self._take, None, self._driver.name)

    async def _take(self) -> Wait | None:
        """Take a chunk into the buffer. Cancelled while the step is on its way, it is there when this ends."""
        driver, sent = self._driver, self._renewing.clock()
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def on_answer(answer: Any) -> None:
            if isinstance(answer, Popped):
                self._arrived(answer, sent)
            elif isinstance(answer, Wait) and answer.reason == "paused":
                self._return_buffer()
            set_result_once(done, answer)

        want = self._want._replace(in_hand=len(self.hand))
        driver.send(on_answer, driver.queue.take, self._chunk.adapt(), want)
        await wait_for_answer(done, None, driver.settle_timeout)
        answer = done.result()
        if isinstance(answer, Exception):
            raise answer
        if not isinstance(answer, Wait):
            return None
        self._chunk.waited()
        if answer.created:
            self._want = self._want._replace(expected=True)
        return answer

    def _arrived(self, answer: Popped, sent: float) -> None:
        self._driver.note(answer)
        deliveries = [self._make(taken, self.hand) for taken in answer.taken]
        self._buffer.extend(deliveries)
        self._renewing.arrived([(delivery.claim, delivery) for delivery in deliveries], sent)
        if self._left:  # the block has ended meanwhile
            self._return_buffer()

    def _hand_out(self, delivery: MemoryDelivery[Any]) -> T:
        self._renewing.progress += 1
        if self._manual:
            return delivery  # type: ignore[return-value]
        self._current = delivery
        return delivery.item  # type: ignore[no-any-return]

    def _return_buffer(self) -> None:
        """Give back what was received and not handed out: that was no attempt."""
        unseen = [one.taken for one in self._buffer if self.hand.pop(one.claim, None) is not None]
        self._buffer.clear()
        self._driver.send(lambda _: None, self._driver.queue.put_back, unseen)

    async def _flush(self) -> None:
        await asyncio.wait((self._driver.settler.flushed(),))

    async def _return(self, unseen: list[MemoryDelivery[Any]], seen: list[MemoryDelivery[Any]]) -> None:
        driver = self._driver
        await driver.ask(driver.queue.put_back, [delivery.taken for delivery in unseen])
        await driver.ask(driver.queue.settle, [delivery.failure for delivery in seen])
        for delivery in (*unseen, *seen):
            delivery.settled = True

    async def _delete_drained(self) -> None:
        driver = self._driver
        status: Status = await driver.ask(driver.queue.look)
        if status.closed and not (status.waiting or status.claimed):
            await driver.delete()
