"""The part of the contract that is about messages for later."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from apressure.dead_letters import DeadLetter, Failure
from apressure.exceptions import (
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
    UnsupportedError,
)
from apressure.testing.contract.steps import ITEMS, Opener, begun, drained, fails, in_time


async def consumed(queue: Any) -> list[tuple[bytes, int]]:
    """Consume a queue until its end; returns the items, each with its attempts."""
    got = []
    async with queue.consumer(prefetch=1) as consumer:
        async for item in consumer:
            got.append((item, consumer.attempts))  # noqa: PERF401 (one at a time)
    return got


class DelayContract:
    """A delayed message comes at its time, once, and counts until then.

    A test never says how late something may be, and the two clocks may differ by some milliseconds.
    """

    async def test_delayed_messages_are_promoted(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        assert await queue.promote() == 0
        await queue.put(ITEMS[3], delay=900)
        await queue.put_many(ITEMS[1:3], delay=800)
        await queue.put(ITEMS[0], delay=700)
        assert await queue.promote(1) == 1
        assert await drained(queue) == ITEMS[:1]
        waiting = await begun(queue.get())  # it waits for the one that is due in 800 s
        assert await queue.promote(max_items=1) == 1
        assert await in_time(waiting) == ITEMS[1]
        assert await queue.promote() == 2
        assert await queue.promote() == 0
        await queue.put(b"last")
        assert await drained(queue) == [*ITEMS[2:4], b"last"]
        assert (await queue.statistics()).delayed == 0

    async def test_chosen_delayed_messages_are_promoted(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        ids = [await queue.put(item, delay=600) for item in ITEMS[:3]]
        await fails(TypeError, queue.promote(ids=[DeadLetter("a", b"", None, None, None, bytes)]))
        if ids[0] is None:
            await fails(UnsupportedError, queue.promote(ids=["none"]))
            return
        assert await queue.promote(ids=[ids[1], "none"]) == 1
        assert await queue.promote(ids=[ids[1]]) == 0
        assert await drained(queue) == ITEMS[1:2]
        await fails(ValueError, queue.promote(1, ids=ids[:1]))
        assert (await queue.statistics()).delayed == 2

    async def test_many_delayed_messages_are_promoted_in_order(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        items = [b"%d" % number for number in range(250)]
        await queue.put_many(items, delay=600)
        assert await queue.promote() == 250
        assert await drained(queue) == items

    async def test_a_delayed_message_comes_when_it_is_due(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        begun_at = time.time()
        await queue.put(b"later", delay=0.4)
        await queue.put(b"at", at=datetime.now(UTC) + timedelta(seconds=0.2))
        await queue.put(b"now")
        seen = []
        for _ in range(3):
            delivery = await in_time(queue.receive())
            seen.append((delivery.raw, time.time() - begun_at, delivery.attempts))
            await delivery.ack()
        assert [(raw, attempts) for raw, _, attempts in seen] == [(b"now", 1), (b"at", 1), (b"later", 1)]
        assert seen[1][1] > 0.19
        assert seen[2][1] > 0.39
        await fails(QueueEmptyError, queue.receive(timeout=0))

    async def test_a_time_that_has_passed_is_now(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"past", at=datetime.now(UTC) - timedelta(days=1))
        await queue.put(b"none", delay=0)
        assert sorted([await in_time(queue.get()), await in_time(queue.get())]) == [b"none", b"past"]

    async def test_many_are_delayed_together_in_order(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        assert await queue.put_many(ITEMS[:5], delay=0.3) == 5
        await queue.put_many(ITEMS[5:7], at=datetime.now(UTC) + timedelta(seconds=60))
        await fails(QueueEmptyError, queue.get(timeout=0))
        assert [await in_time(queue.get()) for _ in range(5)] == ITEMS[:5]
        assert (await queue.statistics()).delayed == 2

    async def test_delayed_messages_are_behind_what_waits_when_they_are_due(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"late", delay=0.1)
        await queue.put_many(ITEMS[:3])
        await asyncio.sleep(0.3)
        await queue.put(b"last")
        got = [await in_time(queue.get()) for _ in range(5)]
        assert got[:3] == ITEMS[:3]
        assert sorted(got[3:]) == [b"last", b"late"]

    async def test_delayed_messages_count_towards_the_bound(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create(bound=3)
        await queue.put(b"1", delay=60)
        await queue.put(b"2")
        await other.put(b"3", delay=30)
        await fails(QueueFullError, queue.put_nowait(b"4"))
        await fails(QueueFullError, other.put(b"4", 0.05, delay=1))
        assert await queue.put_many(ITEMS[:0], delay=1) == 0
        statistics = await queue.statistics()
        assert (statistics.length, statistics.delayed, await queue.qsize()) == (1, 2, 1)
        assert 0 < statistics.next_due <= 30.1
        waiting = await begun(queue.put(b"4", delay=0.1))
        assert await in_time(other.get()) == b"2"
        await in_time(waiting)
        assert await in_time(other.get()) == b"4"
        assert (await queue.statistics()).delayed == 2

    async def test_purge_deletes_what_is_delayed_too(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create(bound=3)
        await queue.put(b"1", delay=60)
        await queue.put(b"2")
        delivery = await in_time(queue.receive())
        await queue.put(b"3")
        assert await queue.purge() == 2
        statistics = await queue.statistics()
        assert (statistics.length, statistics.delayed, statistics.next_due) == (0, 0, None)
        await delivery.nack()
        assert await drained(queue) == [b"2"]

    async def test_a_waiting_consumer_learns_of_a_message_that_is_due_earlier(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.put(b"late", delay=60)
        waiting = [await begun(queue.get()), await begun(queue.get())]
        await other.put(b"1", delay=0.4)
        await other.put(b"2", delay=0.1)
        assert sorted([await in_time(one) for one in waiting]) == [b"1", b"2"]

    async def test_a_closed_queue_waits_for_what_is_delayed(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.put(b"later", delay=0.3)
        await queue.put(b"now")
        await other.close()
        await fails(QueueClosedError, queue.put(b"more", delay=1))
        assert await in_time(consumed(queue)) == [(b"now", 1), (b"later", 1)]
        await fails(QueueClosedError, other.get())

    async def test_a_closed_queue_with_nothing_but_delayed_messages_is_empty_for_now(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"later", delay=0.3)
        await queue.close()
        await fails(QueueEmptyError, queue.get_nowait())
        assert await in_time(queue.get()) == b"later"
        await fails(QueueClosedError, queue.get())

    async def test_a_message_that_is_given_back_for_later_comes_then(self, open_queue: Opener) -> None:
        queue, other = await open_queue(max_attempts=3), await open_queue(max_attempts=3)
        await queue.create()
        await queue.put_many(ITEMS[:2])
        delivery = await in_time(queue.receive())
        given_back_at = time.time()
        await delivery.nack(ValueError("not yet"), delay=0.4)
        assert delivery.settled
        statistics = await queue.statistics()
        assert (statistics.length, statistics.in_flight, statistics.delayed) == (1, 0, 1)
        assert await in_time(other.get()) == b"1"
        again = await in_time(other.receive())
        assert (again.raw, again.attempts) == (b"0", 2)
        assert time.time() - given_back_at > 0.39
        await again.nack()
        third = await in_time(queue.receive())
        assert third.attempts == 3
        await third.nack(delay=60)  # it was the last attempt: there is nothing to wait for
        await fails(QueueEmptyError, queue.receive(timeout=0))
        (letter,) = await queue.dead_letters()
        assert (letter.item, letter.attempts, letter.error) == (b"0", 3, Failure("ValueError", "not yet", 1))
        assert (await queue.statistics()).delayed == 0

    async def _drained(self, open_queue: Opener) -> tuple[Any, Any]:
        """Close a queue whose only message is in flight; returns another object of the queue, and the delivery."""
        queue = await open_queue()
        await queue.create()
        await queue.put(b"1")
        delivery = await in_time(queue.receive())
        await queue.close()
        return await open_queue(), delivery

    async def test_a_message_that_is_given_back_for_later_goes_back_to_a_closed_queue(self, open_queue: Opener) -> None:
        other, delivery = await self._drained(open_queue)
        ended = await begun(other.wait_closed())
        await delivery.nack(delay=0.3)
        again = await in_time(other.receive())
        assert (again.raw, again.attempts) == (b"1", 2)
        await again.ack()
        await fails(QueueClosedError, other.receive())
        await in_time(ended)

    async def test_a_retry_of_a_drained_queue_goes_to_those_that_wait_for_the_end(self, open_queue: Opener) -> None:
        other, delivery = await self._drained(open_queue)
        consuming = await begun(consumed(other))
        await delivery.nack(delay=0.2)
        assert await in_time(consuming) == [(b"1", 2)]

    async def test_several_consumers_get_each_message_once(self, open_queue: Opener) -> None:
        queues = [await open_queue() for _ in range(3)]
        await queues[0].create()
        await queues[0].put_many(ITEMS, delay=0.2)
        await queues[1].put_many([b"a%d" % number for number in range(250)], delay=0.3)
        await queues[0].close()
        got = await in_time(asyncio.gather(*(consumed(queue) for queue in queues)))
        assert sorted(item for some in got for item, _ in some) == sorted(
            [*ITEMS, *(b"a%d" % number for number in range(250))]
        )

    async def test_what_is_due_waits_for_the_end_of_a_pause(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.pause()
        waiting = await begun(queue.get())
        await other.put(b"1", delay=0.05)
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await other.resume()
        assert await in_time(waiting) == b"1"

    async def test_a_queue_with_nothing_but_delayed_messages_exists_and_can_be_deleted(
        self, open_queue: Opener
    ) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"1", delay=0.1)
        assert await queue.exists()
        await fails(QueueEmptyError, queue.peek())
        await queue.delete()
        assert not await queue.exists()
        await queue.create()
        await asyncio.sleep(0.2)
        await fails(QueueEmptyError, queue.get(timeout=0))
        assert (await queue.statistics()).delayed == 0

    async def test_deleting_a_queue_ends_those_that_wait_for_a_delayed_message(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"1", delay=60)
        waiting = await begun(queue.get())
        await (await open_queue()).delete()
        await fails(QueueDoesNotExistError, waiting)

    async def test_a_delayed_put_that_is_cancelled_while_it_waits_puts_nothing(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create(bound=1)
        await queue.put(b"1")
        waiting = await begun(queue.put(b"2", delay=0.01))
        waiting.cancel()
        await fails(asyncio.CancelledError, waiting)
        assert await in_time(queue.get()) == b"1"
        await asyncio.sleep(0.1)
        await fails(QueueEmptyError, queue.get(timeout=0))

    async def test_a_cancelled_get_does_not_lose_what_is_due(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        waiting = await begun(queue.get())
        await queue.put(b"1", delay=0.2)
        waiting.cancel()
        await fails(asyncio.CancelledError, waiting)
        assert await in_time(queue.get()) == b"1"

    async def test_what_was_wrong_is_said_and_nothing_is_put(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        for delay in (-1, math.nan, math.inf, 1e9):
            assert "delay must be between" in str(await fails(ValueError, queue.put(b"1", delay=delay)))
        assert "delay must be a number" in str(await fails(TypeError, queue.put(b"1", delay="1")))
        assert "at must be a datetime" in str(await fails(TypeError, queue.put(b"1", at=1.0)))
        naive = datetime.now()  # noqa: DTZ005 (that is what is wrong)
        assert "time zone" in str(await fails(ValueError, queue.put(b"1", at=naive)))
        assert "ten years" in str(await fails(ValueError, queue.put(b"1", at=datetime.now(UTC) + timedelta(days=4000))))
        assert "not both" in str(await fails(ValueError, queue.put(b"1", delay=1, at=datetime.now(UTC))))
        await fails(ValueError, queue.put_many([b"1"], delay=-1))
        assert (await queue.statistics()).delayed == await queue.qsize() == 0
        await queue.put(b"1")
        delivery = await in_time(queue.receive())
        await fails(ValueError, delivery.nack(delay=-1))
        await fails(TypeError, delivery.nack(delay="1"))
        assert not delivery.settled
        await delivery.ack()
