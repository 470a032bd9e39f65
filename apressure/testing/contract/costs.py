"""The part of the contract that is about messages that count for more than one: `spend`, and `put(cost=)`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apressure import serve
from apressure.exceptions import QueueDoesNotExistError, QueueEmptyError
from apressure.testing.contract.cancellation import everywhere
from apressure.testing.contract.steps import ITEMS, Opener, begun, drained, fails, in_time

HOUR = 3600.0


class SpendContract:
    """A program says what its messages have cost, and the rate of the queue counts it."""

    async def test_what_was_spent_is_waited_for(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.put_many(ITEMS[:5])
        await queue.set_rate(10, per=HOUR, burst=10)
        assert await queue.get() == ITEMS[0]
        await other.spend(8)
        assert await queue.get_many(5) == ITEMS[1:2]
        await fails(QueueEmptyError, queue.get_nowait())
        await other.spend(100)
        waiting = await begun(queue.get())
        await other.spend(-90)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await other.spend(-11)
        assert await in_time(waiting) == ITEMS[2]
        await fails(QueueEmptyError, queue.get_nowait())

    async def test_a_debt_is_paid_by_time(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put_many(ITEMS[:2])
        await queue.set_rate(100, per=1.0, burst=1)
        assert await queue.get() == ITEMS[0]
        await queue.spend(20)
        await fails(QueueEmptyError, queue.get(timeout=0.05))
        assert await in_time(queue.get()) == ITEMS[1]

    async def test_another_rate_knows_nothing_of_a_debt(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put_many(ITEMS[:3])
        await queue.set_rate(1, per=HOUR, burst=1)
        await queue.spend(1000)
        await fails(QueueEmptyError, queue.get_nowait())
        await queue.set_rate(100, per=1.0, burst=1)
        assert await in_time(queue.get()) == ITEMS[0]
        await queue.set_rate(1, per=HOUR, burst=1)
        await queue.spend(1000)
        await queue.set_rate(None)
        await queue.spend(1000)  # nothing counts it
        assert await drained(queue) == ITEMS[1:3]

    async def test_what_was_not_spent_gives_no_more_than_the_burst(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put_many(ITEMS[:6])
        await queue.set_rate(10, per=HOUR, burst=3)
        await queue.spend(-100)
        assert await queue.get_many(9) == ITEMS[:3]

    async def test_bad_costs_are_refused(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        for wrong in (1.5, "1", True, None):
            await fails(TypeError, queue.spend(wrong))
        await fails(ValueError, queue.spend(10**9 + 1))
        await fails(ValueError, queue.spend(-(10**9) - 1))
        await queue.spend(0)
        await queue.delete()
        await fails(QueueDoesNotExistError, queue.spend(1))

    async def test_a_cancelled_spend_has_counted_or_not(self, open_queue: Opener) -> None:
        async def spend(queue: Any) -> None:
            await queue.set_rate(2, per=HOUR, burst=2)
            await queue.spend(1)

        async def check(queue: Any, _: Any) -> None:
            got = await queue.get_many(3)
            assert got in (ITEMS[:1], ITEMS[:2], ITEMS[:3])
            await queue.set_rate(None)
            assert got + await drained(queue) == ITEMS[:3]

        await everywhere(open_queue, spend, check)


class CostContract(SpendContract):
    """The same, and a message has a cost."""

    @pytest.mark.parametrize("way", ["get_many", "receive_many"])
    async def test_the_rate_counts_costs(self, open_queue: Opener, way: str) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.set_rate(10, per=HOUR, burst=10)
        await queue.put_many(ITEMS[:5], cost=4)
        got = await getattr(queue, way)(9)
        assert len(got) == 3  # the third one costs more than there is left: it is the last one for a while
        await fails(QueueEmptyError, queue.get_nowait())
        await queue.spend(-3)
        assert len(await getattr(queue, way)(9)) == 1

    async def test_one_that_costs_more_than_the_burst_comes_and_the_next_one_waits(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.set_rate(100, per=1.0, burst=5)
        await other.put(b"1", cost=20)
        await other.put(b"2")
        assert await queue.get() == b"1"
        await fails(QueueEmptyError, queue.get(timeout=0.05))
        assert await in_time(queue.get()) == b"2"
        await queue.set_rate(1, per=HOUR, burst=1)
        await queue.put(b"3", cost=10**9)
        await queue.put(b"4")
        await queue.set_rate(None)
        await queue.set_rate(1, per=HOUR, burst=1)
        assert await queue.get() == b"3"
        await fails(QueueEmptyError, queue.get_nowait())
        await queue.set_rate(None)
        assert await drained(queue) == [b"4"]

    async def test_a_delivery_says_its_cost_and_costs_it_again(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.set_rate(10, per=HOUR, burst=10)
        await queue.put(b"1", cost=3, expires=HOUR)
        await queue.put(b"2")
        delivery = await in_time(queue.receive())
        assert (delivery.raw, delivery.cost) == (b"1", 3)
        await delivery.nack()
        delivery = await in_time(queue.receive())
        assert (delivery.raw, delivery.cost, delivery.attempts) == (b"1", 3, 2)
        await delivery.nack(delay=0.01)
        await asyncio.sleep(0.05)
        second, again = await in_time(queue.receive()), await in_time(queue.receive())
        assert [(one.raw, one.cost) for one in (second, again)] == [(b"2", 1), (b"1", 3)]
        await fails(QueueEmptyError, queue.receive(timeout=0))  # 3 + 3 + 1 + 3

    async def test_with_other_terms(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"1", cost=5, delay=0.02, expires=HOUR, key="a", dedup_id="x")
        await queue.put(b"2", cost=6, dedup_id="x", replace=True)
        await queue.put(b"3", cost=7, expires=0.02)
        await queue.put(b"4", cost=8, key="a")
        await asyncio.sleep(0.05)
        deliveries = []
        for _ in range(2):
            delivery = await in_time(queue.receive())
            deliveries.append((delivery.item, delivery.cost))
            await delivery.ack()
        assert deliveries == [(b"2", 6), (b"4", 8)]
        assert await drained(queue) == []

    async def test_a_handler_says_what_it_has_used(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.set_rate(100, per=HOUR, burst=100)
        await queue.set_concurrency(1)  # or the others are handed out before it is known what the first one has used
        await queue.put_many(ITEMS[:4], cost=10)
        used: list[int] = []
        second = asyncio.Event()

        async def handle(delivery: Any) -> None:
            used.append(delivery.cost + 40)
            await queue.spend(40)
            if len(used) == 2:
                second.set()

        service = await begun(serve(handle, queue, deliveries=True, signals=()))
        await in_time(second.wait())
        await asyncio.sleep(0.1)
        assert used == [50, 50]  # the first two have used it up
        await queue.set_rate(None)
        await queue.close()
        await in_time(service)
        assert used == [50] * 4

    async def test_bad_costs_put_nothing(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        for wrong in (1.5, "1", True, None):
            await fails(TypeError, queue.put(b"1", cost=wrong))
        for wrong in (0, -1, 10**9 + 1):
            await fails(ValueError, queue.put(b"1", cost=wrong))
            await fails(ValueError, queue.put_many([b"1"], cost=wrong))
        assert await queue.qsize() == 0
