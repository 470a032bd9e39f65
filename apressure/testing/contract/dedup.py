"""The part of the contract that is about messages that are put once: `put(dedup_id=)`."""

from __future__ import annotations

import asyncio
from typing import Any

from apressure import Backoff, serve
from apressure.exceptions import DuplicateMessageError, QueueClosedError, QueueDoesNotExistError, QueueFullError
from apressure.testing.contract.cancellation import everywhere
from apressure.testing.contract.steps import ITEMS, Opener, begun, drained, fails, in_time

MINUTE = 60.0


class DedupContract:
    """A message is put once for each id, as long as the window says."""

    async def test_a_repeat_is_refused(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.put(b"1", dedup_id="order-17", dedup_window=MINUTE)
        error = await fails(DuplicateMessageError, other.put(b"2", dedup_id="order-17", dedup_window=MINUTE))
        assert (getattr(error, "id", ""), getattr(error, "name", "")) == ("order-17", queue.name)
        assert "order-17" in str(error)
        await fails(DuplicateMessageError, queue.put_nowait(b"2", dedup_id="order-17", dedup_window=MINUTE))
        await other.put(b"3", dedup_id="order-18", dedup_window=MINUTE)
        await other.put(b"4")
        statistics = await other.statistics()
        assert (statistics.put_count, statistics.dedup_ids) == (2, 2)
        assert (await queue.statistics()).put_count == 1
        assert await drained(queue) == [b"1", b"3", b"4"]

    async def test_in_a_window_it_is_refused_though_it_is_done(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"1", dedup_id="a", dedup_window=MINUTE)
        assert await drained(queue) == [b"1"]
        await fails(DuplicateMessageError, queue.put(b"2", dedup_id="a", dedup_window=MINUTE))

    async def test_after_the_window_it_is_put_though_the_first_one_waits(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"1", dedup_id="a", dedup_window=0.001)
        await queue.put(b"2", dedup_id="b", dedup_window=MINUTE)
        await asyncio.sleep(0.05)
        await queue.put(b"3", dedup_id="a", dedup_window=MINUTE)
        await fails(DuplicateMessageError, queue.put(b"4", dedup_id="a", dedup_window=MINUTE))
        assert await drained(queue) == [b"1", b"2", b"3"]

    async def test_one_of_many_is_put(self, open_queue: Opener) -> None:
        queues = [await open_queue() for _ in range(3)]
        await queues[0].create()
        puts = [
            queues[number % 3].put(b"%d" % (number // 10), dedup_id=f"{number // 10}", dedup_window=MINUTE)
            for number in range(100)
        ]
        outcomes = await in_time(asyncio.gather(*puts, return_exceptions=True))
        refused = [one for one in outcomes if isinstance(one, BaseException)]
        assert {type(one) for one in refused} == {DuplicateMessageError}
        assert len(refused) == 90
        assert sorted(await drained(queues[0])) == ITEMS

    async def test_what_found_no_room_was_not_put(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create(bound=1)
        await queue.put(b"1", dedup_id="a", dedup_window=MINUTE)
        await fails(QueueFullError, queue.put_nowait(b"2", dedup_id="b", dedup_window=MINUTE))
        await fails(QueueFullError, queue.put(b"2", timeout=0.05, dedup_id="b", dedup_window=MINUTE))
        await fails(DuplicateMessageError, queue.put_nowait(b"2", dedup_id="a", dedup_window=MINUTE))
        waiting = await begun(queue.put(b"2", dedup_id="b", dedup_window=MINUTE))
        assert (await queue.statistics()).waiting_putters == 1
        assert await in_time(other.get()) == b"1"
        await in_time(waiting)
        await fails(DuplicateMessageError, other.put_nowait(b"3", dedup_id="b", dedup_window=MINUTE))
        assert await drained(queue) == [b"2"]

    async def test_those_that_wait_learn_that_others_were_first(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create(bound=1)
        await queue.put(b"1")
        puts = [await begun(one.put(b"2", dedup_id="a", dedup_window=MINUTE)) for one in (queue, queue, other)]
        assert await in_time(queue.get()) == b"1"
        assert await in_time(queue.get()) == b"2"
        outcomes = await in_time(asyncio.gather(*puts, return_exceptions=True))
        assert sum(isinstance(one, DuplicateMessageError) for one in outcomes) == 2
        assert await drained(queue) == []

    async def test_with_delays_and_blocks(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        async with queue.producer(close=False) as producer:
            await producer.put(b"1", delay=0.05, dedup_id="a", dedup_window=MINUTE)
            await fails(DuplicateMessageError, producer.put(b"2", dedup_id="a", dedup_window=MINUTE))
            await fails(DuplicateMessageError, producer.put_nowait(b"2", dedup_id="a", dedup_window=MINUTE))
        assert await in_time(other.get()) == b"1"

    async def test_the_end_of_a_queue(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"1", dedup_id="a", dedup_window=MINUTE)
        await queue.close()
        await fails(QueueClosedError, queue.put(b"2", dedup_id="b", dedup_window=MINUTE))
        await queue.delete()
        await fails(QueueDoesNotExistError, queue.put(b"1", dedup_id="a", dedup_window=MINUTE))
        await queue.create()
        await queue.put(b"1", dedup_id="a", dedup_window=MINUTE)  # deleted with the queue
        assert await drained(queue) == [b"1"]

    async def test_bad_arguments_put_nothing(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        for dedup_id in ("", "x" * 1025, "\udcff" * 1025):
            await fails(ValueError, queue.put(b"1", dedup_id=dedup_id, dedup_window=MINUTE))
        for wrong in (17, b"a", True):
            await fails(TypeError, queue.put(b"1", dedup_id=wrong, dedup_window=MINUTE))
        for window in (0, -1, float("nan"), float("inf"), 400_000_000):
            await fails(ValueError, queue.put(b"1", dedup_id="a", dedup_window=window))
        await fails(TypeError, queue.put(b"1", dedup_id="a", dedup_window="60"))
        await fails(ValueError, queue.put(b"1", dedup_window=MINUTE))
        assert await queue.qsize() == 0
        for dedup_id in ("x" * 1024, "\udcff", "ä:0:'\n\0", " "):
            await queue.put(b"1", dedup_id=dedup_id, dedup_window=MINUTE)
            await fails(DuplicateMessageError, queue.put(b"1", dedup_id=dedup_id, dedup_window=MINUTE))
        assert await queue.qsize() == 4

    async def test_a_cancelled_put_was_made_or_can_be_repeated(self, open_queue: Opener) -> None:
        async def check(queue: Any, _: Any) -> None:
            put = await queue.qsize() == 4
            try:
                await queue.put(b"9", dedup_id="a", dedup_window=MINUTE)
            except DuplicateMessageError:
                assert put
            else:
                assert not put
            assert await drained(queue) == [*ITEMS[:3], b"9"]

        await everywhere(open_queue, lambda queue: queue.put(b"9", dedup_id="a", dedup_window=MINUTE), check)


class DedupUntilDoneContract(DedupContract):
    """The same, and without a window a message is put once until it is done; a newer one may replace it."""

    async def test_it_is_refused_until_the_first_one_is_done(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.put(b"1", dedup_id="a")
        await fails(DuplicateMessageError, other.put(b"2", dedup_id="a"))
        delivery = await in_time(queue.receive())
        await fails(DuplicateMessageError, other.put(b"2", dedup_id="a"))
        await delivery.nack()
        await fails(DuplicateMessageError, other.put(b"2", dedup_id="a"))
        delivery = await in_time(queue.receive())
        await delivery.nack(delay=0.05)
        await fails(DuplicateMessageError, other.put(b"2", dedup_id="a"))
        await (await in_time(queue.receive())).ack()
        await other.put(b"2", dedup_id="a")
        await fails(DuplicateMessageError, queue.put(b"3", dedup_id="a"))
        assert await in_time(queue.get()) == b"2"
        await queue.put(b"3", dedup_id="a")
        assert await drained(queue) == [b"3"]

    async def test_a_delayed_one_is_not_done(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"1", delay=3600, dedup_id="a")
        await fails(DuplicateMessageError, queue.put(b"2", dedup_id="a"))
        assert await queue.purge() == 1
        await queue.put(b"2", dedup_id="a")
        assert await drained(queue) == [b"2"]

    async def test_a_dead_letter_is_done(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=1)
        await queue.create()
        await queue.put(b"1", dedup_id="a")
        await (await in_time(queue.receive())).nack(ValueError("no"))
        assert await drained(queue) == []
        await queue.put(b"2", dedup_id="a")
        assert [letter.item for letter in await queue.dead_letters()] == [b"1"]
        assert await drained(queue) == [b"2"]

    async def test_each_is_handled_once_at_a_time(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        running: set[bytes] = set()
        done: list[bytes] = []

        async def handle(item: bytes) -> None:
            assert item not in running
            running.add(item)
            await asyncio.sleep(0.003)
            running.discard(item)
            done.append(item)

        services = [
            await begun(serve(handle, one, concurrency=8, signals=(), retry=Backoff(0.0))) for one in (queue, other)
        ]
        accepted: list[bytes] = []
        for number in range(120):
            item = b"%d" % (number % 4)
            try:
                await (queue, other)[number % 2].put(item, dedup_id=item.decode())
            except DuplicateMessageError:
                await asyncio.sleep(0)
            else:
                accepted.append(item)
        await queue.close()
        for service in services:
            await in_time(service)
        assert sorted(done) == sorted(accepted)
        assert set(accepted) == {b"0", b"1", b"2", b"3"}

    async def test_a_window_and_none_are_told_apart(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"1", dedup_id="a")
        await fails(DuplicateMessageError, queue.put(b"2", dedup_id="a", dedup_window=0.001))
        assert await in_time(queue.get()) == b"1"
        await queue.put(b"2", dedup_id="a", dedup_window=MINUTE)
        assert await in_time(queue.get()) == b"2"
        await fails(DuplicateMessageError, queue.put(b"3", dedup_id="a"))

    async def test_a_cancelled_put_was_made_or_can_be_repeated_at_once(self, open_queue: Opener) -> None:
        async def check(queue: Any, _: Any) -> None:
            assert await queue.qsize() in (3, 4)
            await drained(queue)
            await queue.put(b"9", dedup_id="a")
            assert await drained(queue) == [b"9"]

        await everywhere(open_queue, lambda queue: queue.put(b"9", dedup_id="a"), check)

    async def test_a_newer_item_takes_the_place_of_one_that_waits(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create(bound=2)
        first = await queue.put(b"1", dedup_id="a", replace=True)
        await queue.put(b"2")
        assert await other.put_nowait(b"3", dedup_id="a", replace=True) == first  # it needs no room
        assert await other.put_nowait(b"4", dedup_id="a", replace=True) == first
        statistics = await other.statistics()
        assert (statistics.length, statistics.put_count, statistics.replaced_count) == (2, 2, 2)
        await fails(DuplicateMessageError, queue.put(b"5", dedup_id="a"))
        assert await in_time(queue.get()) == b"4"
        assert await queue.put(b"6", dedup_id="a", replace=True) != first
        assert await drained(queue) == [b"2", b"6"]

    async def test_the_last_one_of_many_is_there(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        puts = [queue.put(b"%d" % number, dedup_id=f"{number % 2}", replace=True) for number in range(100)]
        assert len(set(await in_time(asyncio.gather(*puts)))) == 2
        assert await drained(queue) == [b"98", b"99"]

    async def test_a_delayed_one_is_replaced_and_is_due_when_the_newer_one_is(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.put(b"1", delay=3600, dedup_id="a", replace=True)
        await queue.put(b"2", delay=3600, dedup_id="b", replace=True)
        waiting = await begun(other.get())
        await queue.put(b"3", delay=0.05, dedup_id="a", replace=True)
        assert await in_time(waiting) == b"3"
        await queue.put(b"4", dedup_id="b", replace=True)
        assert await in_time(other.get()) == b"4"
        await queue.put(b"5", delay=0.1, dedup_id="a", replace=True)
        await queue.put(b"6", delay=3600, dedup_id="a", replace=True)
        await asyncio.sleep(0.15)
        assert (await queue.qsize(), (await queue.statistics()).delayed) == (0, 1)

    async def test_one_in_flight_is_not_replaced(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"1", dedup_id="a", replace=True)
        delivery = await in_time(queue.receive())
        second = await queue.put(b"2", dedup_id="a", replace=True)
        assert await queue.put(b"3", dedup_id="a", replace=True) == second
        assert delivery.item == b"1"
        await delivery.ack()
        assert await queue.put(b"4", dedup_id="a", replace=True) == second
        assert await drained(queue) == [b"4"]

    async def test_attempts_and_times_are_those_of_the_newer_one(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=2)
        await queue.create()
        await queue.put(b"1", dedup_id="a", replace=True, expires=0.05)
        await (await in_time(queue.receive())).nack(ValueError("no"))
        await queue.put(b"2", dedup_id="a", replace=True)
        await asyncio.sleep(0.1)
        delivery = await in_time(queue.receive())
        assert (delivery.item, delivery.attempts) == (b"2", 1)
        await delivery.nack()
        await queue.put(b"3", dedup_id="a", replace=True, expires=0.05)
        await asyncio.sleep(0.1)
        assert await drained(queue) == []
        assert [letter.item for letter in await queue.dead_letters()] == [b"3"]

    async def test_what_was_put_with_a_window_is_not_replaced(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put(b"1", dedup_id="a", dedup_window=MINUTE)
        await fails(DuplicateMessageError, queue.put(b"2", dedup_id="a", replace=True))
        await queue.put(b"3", dedup_id="b")
        await queue.put(b"4", dedup_id="b", replace=True)
        await queue.close()
        await fails(QueueClosedError, queue.put(b"5", dedup_id="b", replace=True))
        assert await drained(queue) == [b"1", b"4"]

    async def test_what_cannot_replace(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await fails(ValueError, queue.put(b"1", replace=True))
        await fails(ValueError, queue.put(b"1", dedup_id="a", dedup_window=MINUTE, replace=True))
        await fails(TypeError, queue.put(b"1", dedup_id="a", replace="yes"))
        assert await queue.qsize() == 0

    async def test_a_cancelled_put_has_replaced_one_or_not(self, open_queue: Opener) -> None:
        async def operation(queue: Any) -> None:
            await queue.put(b"8", dedup_id="a", replace=True)
            await queue.put(b"9", dedup_id="a", replace=True)

        async def check(queue: Any, _: Any) -> None:
            items = await drained(queue)
            assert items[:3] == ITEMS[:3]
            assert items[3:] in ([], [b"8"], [b"9"])

        await everywhere(open_queue, operation, check)
