"""receive_many: several deliveries in one step, each settled by itself."""

from __future__ import annotations

import asyncio

import pytest
import redis

from apressure import AsyncQueue, DeadlineError, QueueInUseError, RoleStatistics
from tests.integration.conftest import Opener, blocked, fails, in_time, open_two


def steps(db: redis.Redis) -> int:
    """How many scripts the server has run."""
    counts = db.info("commandstats")
    return sum(counts.get(f"cmdstat_{word}", {"calls": 0})["calls"] for word in ("eval", "evalsha"))


async def test_one_step_brings_several(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many([b"%d" % index for index in range(10)])
    await (await queue.receive()).nack()  # from now on the server knows the scripts
    before = steps(db)
    deliveries = await queue.receive_many(100)
    # What came back travels first, with its attempts; the others have one.
    assert [(delivery.item, delivery.attempts) for delivery in deliveries][:2] == [(b"0", 2), (b"1", 1)]
    assert len(deliveries) == 10
    assert steps(db) == before + 1
    for delivery in deliveries[1:]:
        await delivery.ack()
    statistics = await queue.statistics()
    assert (statistics.in_flight, statistics.consumed_messages, statistics.consumer.state) == (1, 9, "leased")
    await deliveries[0].ack()
    assert (await queue.statistics()).consumer.state == "free"


async def test_it_takes_no_more_than_max_items(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2", b"3"])
    deliveries = await queue.receive_many(2)
    statistics = await queue.statistics()
    assert (len(deliveries), statistics.length, statistics.in_flight) == (2, 1, 2)
    await asyncio.gather(*(delivery.nack() for delivery in reversed(deliveries)))
    assert await queue.get_many(5) == [b"1", b"2", b"3"]


async def test_tasks_that_receive_at_the_same_time_share_nothing_and_leave_nothing(open_queue: Opener) -> None:
    queue, other = await open_two(open_queue)
    tasks = [asyncio.create_task(queue.receive_many(number)) for number in (1, 7, 2, 100)]
    await asyncio.sleep(0)
    await other.put_many([b"%d" % index for index in range(110)])
    received = [delivery for some in await in_time(asyncio.gather(*tasks[:3])) for delivery in some]
    received += await in_time(tasks[3])
    assert (await queue.statistics()).in_flight == len(received)
    assert len({delivery.raw for delivery in received}) == len(received)
    await in_time(asyncio.gather(*(delivery.ack() for delivery in received)))
    assert (await queue.statistics()).consumer.state == "free"


@pytest.mark.parametrize("turns", range(12))
async def test_a_cancelled_receive_many_gives_everything_back_in_order(open_queue: Opener, turns: int) -> None:
    queue, other = await open_two(open_queue)
    items = [b"%d" % index for index in range(10)]
    await queue.put_many(items)
    task = asyncio.create_task(queue.receive_many(10))
    for _ in range(turns):
        await asyncio.sleep(0.0003)
    if task.cancel():
        await fails(asyncio.CancelledError, task)
    else:
        await in_time(asyncio.gather(*(delivery.nack() for delivery in reversed(await task))))
    assert await in_time(other.get_many(20)) == items


async def test_one_of_two_waiting_receives_is_cancelled(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_two(open_queue)
    tasks = [asyncio.create_task(queue.receive_many(number)) for number in (3, 5)]
    await blocked(db)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    await other.put_many([b"1", b"2"])
    received = await in_time(tasks[1])
    received += await queue.receive_many(1) if len(received) < 2 else []
    assert [delivery.item for delivery in received] == [b"1", b"2"]
    await in_time(asyncio.gather(*(delivery.ack() for delivery in received)))
    assert (await other.statistics()).consumer.state == "free"


@pytest.mark.parametrize(("lease", "seconds"), [(None, 15), (9, 9)])
async def test_a_lease_lasts_15_seconds_unless_it_is_given(
    open_queue: Opener, lease: float | None, seconds: float
) -> None:
    def lasts(role: RoleStatistics) -> float:
        assert role.since is not None
        assert role.expires is not None
        return round((role.expires - role.since).total_seconds())

    queue = await open_queue()
    await queue.put(b"1")
    delivery = await queue.receive(lease=lease)
    assert lasts((await queue.statistics()).consumer) == seconds
    await delivery.nack()
    (delivery,) = await queue.receive_many(1, lease=lease)
    assert lasts((await queue.statistics()).consumer) == seconds
    await delivery.nack()
    async with queue.consumer(lease=lease), queue.producer(exclusive=True, lease=lease):
        statistics = await queue.statistics()
        assert (lasts(statistics.consumer), lasts(statistics.producer)) == (seconds, seconds)


@pytest.mark.parametrize("bad", ["3", 0, -1, True, 1.5])
async def test_a_bad_number_of_items_is_refused(open_queue: Opener, bad: int) -> None:
    queue = await open_queue()
    with pytest.raises((TypeError, ValueError), match="max_items must be"):
        await queue.receive_many(bad)


async def test_a_deadline_ends_the_wait(open_queue: Opener) -> None:
    queue = await open_queue()
    await fails(DeadlineError, queue.receive_many(5, deadline=0.05), "nothing was done")
    assert (await queue.statistics()).consumer.state == "free"


async def test_a_block_of_the_object_itself_refuses_it(open_queue: Opener) -> None:
    queue = await open_queue()
    async with queue.consumer():
        await fails(QueueInUseError, queue.receive_many(5), "itself")


async def test_an_object_knows_whether_it_has_been_used(url: str) -> None:
    queue: AsyncQueue[bytes] = AsyncQueue("jobs", url=url)
    assert not queue.opened
    async with queue:
        assert queue.opened
