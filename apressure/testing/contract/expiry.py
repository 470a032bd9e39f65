"""The part of the contract that is about messages that expire."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from apressure.dead_letters import Failure
from apressure.exceptions import QueueClosedError, QueueEmptyError, QueueFullError
from apressure.testing.contract.delays import consumed
from apressure.testing.contract.steps import ITEMS, Opener, begun, drained, fails, in_time


async def letters(queue: Any) -> list[tuple[bytes, int, Failure]]:
    """Return the dead letters of a queue."""
    return [(letter.item, letter.attempts, letter.error) for letter in await queue.dead_letters()]


class ExpiryContract:
    """A message that has expired is not delivered: it becomes a dead letter, and is counted.

    A test never says how soon something must be; what has not expired yet would do so in a minute.
    """

    async def test_a_message_that_has_expired_becomes_a_dead_letter(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.put(b"old", expires=0.1)
        await queue.put(b"new")
        await asyncio.sleep(0.3)
        assert await in_time(other.get()) == b"new"
        await fails(QueueEmptyError, other.get(timeout=0))
        assert await letters(queue) == [(b"old", 0, Failure("expired", "", 0))]
        assert [letter.reason for letter in await queue.dead_letters()] == ["expired"]
        statistics = await queue.statistics()
        assert (statistics.length, statistics.in_flight, statistics.expired) == (0, 0, 1)
        assert (await other.statistics()).dead_lettered_count == 1

    async def test_until_then_it_is_a_message_like_others(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create(bound=4)
        await queue.put(b"1", expires=60)
        await queue.put(b"2")
        assert await queue.put_many([b"3", b"4"], expires=60) == 2
        await fails(QueueFullError, queue.put_nowait(b"5", expires=60))
        statistics = await other.statistics()
        assert (statistics.length, statistics.delayed, statistics.next_due, statistics.expired) == (4, 0, None, 0)
        assert await other.peek() == b"1"
        delivery = await in_time(other.receive())
        assert (delivery.raw, delivery.attempts) == (b"1", 1)
        await delivery.nack(ValueError("no"))
        assert await drained(other) == [b"1", b"2", b"3", b"4"]
        assert await letters(queue) == []

    async def test_a_waiting_consumer_gets_it_at_once(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        waiting = await begun(queue.get())
        await other.put(b"1", expires=60)
        assert await in_time(waiting) == b"1"

    async def test_consumers_pass_over_what_has_expired(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.put_many([b"old %d" % number for number in range(250)], expires=0.1)
        await queue.put_many(ITEMS[:3])
        await queue.put_many([b"older", b"oldest"], expires=0.1)
        await asyncio.sleep(0.3)
        await queue.close()
        assert await in_time(consumed(other)) == [(item, 1) for item in ITEMS[:3]]
        await fails(QueueClosedError, other.get())
        assert (await queue.statistics()).expired == 252

    async def test_a_closed_queue_ends_when_all_has_expired(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.put_many(ITEMS[:3], expires=0.1)
        await queue.close()
        ended = await begun(other.wait_closed())
        await asyncio.sleep(0.3)
        assert await in_time(consumed(queue)) == []
        await in_time(ended)
        assert sorted(item for item, _, _ in await letters(queue)) == ITEMS[:3]

    async def test_what_is_in_hand_is_not_taken_back(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"1", expires=1.0)
        delivery = await in_time(queue.receive())
        await asyncio.sleep(1.2)
        await delivery.ack()
        assert await letters(queue) == []
        assert (await queue.statistics()).expired == 0

    async def test_what_goes_back_too_late_is_not_delivered_again(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=5)
        await queue.create()
        await queue.put(b"back", expires=1.0)
        await queue.put(b"later", expires=1.0)
        back, later = await in_time(queue.receive()), await in_time(queue.receive())
        await later.nack(ValueError("not yet"), delay=1.1)
        await asyncio.sleep(1.2)
        await back.nack(ValueError("no"))
        await fails(QueueEmptyError, queue.receive(timeout=0.5))
        expired = Failure("expired", "", 1)
        assert sorted(await letters(queue)) == [(b"back", 1, expired), (b"later", 1, expired)]
        assert (await queue.statistics()).expired == 2

    async def test_a_delayed_message_can_expire(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"1", delay=0.5, expires=0.7)
        await queue.put(b"2", delay=0.5, expires=60)
        statistics = await queue.statistics()
        assert (statistics.length, statistics.delayed) == (0, 2)
        await asyncio.sleep(0.9)
        assert await in_time(queue.get()) == b"2"
        await fails(QueueEmptyError, queue.get(timeout=0))
        assert await letters(queue) == [(b"1", 0, Failure("expired", "", 0))]

    async def test_what_has_expired_takes_room_until_a_consumer_comes_upon_it(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create(bound=1)
        await queue.put(b"old", expires=0.1)
        waiting = await begun(queue.put(b"new"))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        assert await in_time(other.get()) == b"new"
        await in_time(waiting)

    async def test_a_dead_letter_that_goes_back_does_not_expire_again(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"1", expires=0.1)
        await asyncio.sleep(0.3)
        await fails(QueueEmptyError, queue.get(timeout=0))
        assert await queue.requeue() == 1
        delivery = await in_time(queue.receive())
        assert (delivery.raw, delivery.attempts) == (b"1", 1)
        await delivery.nack()
        assert await in_time(queue.get()) == b"1"

    async def test_purge_forgets_when_messages_expire(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put_many(ITEMS[:3], expires=0.2)
        await queue.put(ITEMS[3], delay=30, expires=60)
        assert await queue.purge() == 4
        await queue.put_many(ITEMS[:3])
        await asyncio.sleep(0.4)
        assert await drained(queue) == ITEMS[:3]
        assert (await queue.statistics()).expired == 0

    async def test_times_that_are_none_are_refused(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        for wrong in (0, -1, math.nan, math.inf, 315_360_001.0):
            await fails(ValueError, queue.put(b"1", expires=wrong))
        for other in ("1", True, b"1"):
            await fails(TypeError, queue.put(b"1", expires=other))
        await fails(ValueError, queue.put(b"1", delay=2, expires=2))
        await fails(ValueError, queue.put_many([b"1"], delay=2, expires=1))
        statistics = await queue.statistics()
        assert (statistics.length, statistics.delayed) == (0, 0)
