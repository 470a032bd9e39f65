"""Limits of a queue of events: its rate, how many are in flight, and holds, over all clients. Nothing is lost."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from apressure import EventQueue, LeaseLostError, QueueDoesNotExistError, QueueEmptyError, ServerError, pipe, serve
from apressure.core.limits import UNLIMITED, Limits, Rate
from apressure.events.engine.keys import EventKeys
from tests.integration.events.conftest import Open, consistent, eventually, in_time
from tests.okq import Okq

KEYS = EventKeys("jobs")
HOUR = 3600.0
ITEMS = [b"%d" % number for number in range(10)]


async def kept(queue: EventQueue[Any], why: str = "the limits of the queue 'jobs' keep its messages") -> None:
    """Check that events wait, and that none comes."""
    assert await queue.qsize() > 0
    for take in (queue.receive, queue.get):
        with pytest.raises(QueueEmptyError, match=why):
            await in_time(take(timeout=0))


async def waiting(*queues: EventQueue[Any]) -> list[asyncio.Task[Any]]:
    """Have each queue receive an event, one behind the other."""
    tasks = []
    for queue in queues:
        tasks.append(asyncio.create_task(queue.receive()))
        await eventually(lambda queue=queue: queue._driver.waits._parked)
    return tasks


# Rates.


async def test_a_rate_counts_for_all_clients(open_queue: Open, long_slices: None) -> None:
    one, other = await open_queue(bound=0), await open_queue()
    await one.put_many(ITEMS[:4])
    await one.set_rate(2, HOUR, burst=2)
    assert [(await queue.receive()).raw for queue in (one, other)] == ITEMS[:2]
    for queue in (one, other):
        await kept(queue, r"try again in \d+")
    tasks = await waiting(other, one)
    await one.set_rate(None)
    assert [(await in_time(task)).raw for task in tasks] == ITEMS[2:4]


async def test_the_next_one_comes_by_the_servers_clock(open_queue: Open, long_slices: None) -> None:
    """Nothing wakes the clients that wait but the time that the step has told."""
    one, other = await open_queue(bound=0), await open_queue()
    await one.set_rate(1, 0.2)
    await one.put_many(ITEMS)
    got = []

    async def consume(queue: EventQueue[bytes]) -> None:
        while len(got) < len(ITEMS):
            got.append((await queue.receive()).raw)

    tasks = [asyncio.create_task(consume(queue)) for queue in (one, other)]
    await in_time(asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))
    assert got == ITEMS
    for task in tasks:
        task.cancel()


async def test_a_batch_is_no_larger_than_the_rate_allows(open_queue: Open) -> None:
    queue = await open_queue(bound=0)
    await queue.put_many(ITEMS)
    await queue.set_rate(100, HOUR, burst=3)
    assert [one.raw for one in await queue.receive_many(10)] == ITEMS[:3]
    await kept(queue)
    async with queue.consumer(ack="manual", prefetch=5) as consumer:
        await queue.set_rate(100, HOUR, burst=7)
        assert [(await in_time(anext(consumer))).raw for _ in range(4)] == ITEMS[3:7]
        assert await queue.qsize() == 3


async def test_an_event_that_comes_again_counts_again_and_a_dead_letter_does_not(open_queue: Open) -> None:
    queue = await open_queue(bound=0, max_attempts=1)
    await queue.put_many(ITEMS[:3])
    await queue.set_rate(2, HOUR, burst=2)
    await (await queue.receive()).nack()
    assert (await queue.receive()).raw == b"1"  # the other one has become a dead letter
    assert [letter.item for letter in await queue.dead_letters()] == [b"0"]
    await kept(queue)


async def test_a_get_counts_for_the_rate_and_not_for_concurrency(open_queue: Open) -> None:
    queue = await open_queue(bound=0)
    await queue.put_many(ITEMS[:4])
    await queue.set_concurrency(1)
    delivery = await queue.receive()
    with pytest.raises(QueueEmptyError, match="try again when one of those in flight is settled"):
        await queue.receive(timeout=0)
    assert await queue.get_many(2) == [b"1", b"2"]
    await queue.set_rate(1, HOUR)
    assert await queue.get() == b"3"
    await delivery.nack()
    await kept(queue)


# How many are in flight.


SETTLING: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "ack": lambda delivery: delivery.ack(),
    "nack": lambda delivery: delivery.nack(),
    "later": lambda delivery: delivery.nack(delay=HOUR),
}


@pytest.mark.parametrize("how", SETTLING)
async def test_settling_makes_room_in_flight(open_queue: Open, long_slices: None, how: str) -> None:
    one, other = await open_queue(bound=0), await open_queue()
    await one.set_concurrency(2)
    await one.put_many(ITEMS[:5])
    first, second = await one.receive_many(5)
    tasks = await waiting(other, one)
    assert await one.qsize() == 3
    await SETTLING[how](first)
    assert (await in_time(tasks[0])).raw == (b"0" if how == "nack" else b"2")
    assert not tasks[1].done()
    await second.ack()
    await in_time(tasks[1])
    assert (await one.statistics()).in_flight == 2


async def test_a_dead_clients_events_are_no_longer_in_flight_when_their_leases_end(
    open_queue: Open, long_slices: None, db: redis.Redis
) -> None:
    dead, other = await open_queue(bound=0), await open_queue()
    await dead.set_concurrency(1)
    await dead.put_many(ITEMS[:2])
    lost = await dead.receive(lease=0.5)
    (task,) = await waiting(other)
    again = await in_time(task)
    assert (again.raw, again.attempts) == (b"0", 2)
    with pytest.raises(LeaseLostError):
        await lost.ack()
    assert consistent(db)


async def test_a_move_makes_room_in_flight(open_queue: Open, long_slices: None) -> None:
    queue, out = await open_queue(bound=0), await open_queue("out", bound=0)
    await queue.set_concurrency(2)
    await queue.put_many(ITEMS)
    await queue.close()
    most = 0

    async def handle(item: bytes) -> bytes:
        nonlocal most
        most = max(most, (await queue.statistics()).in_flight)
        return item

    await in_time(pipe(queue, handle, out, concurrency=5))
    assert sorted(await out.get_many(10)) == ITEMS
    assert 1 <= most <= 2


async def test_what_an_okq_has_in_flight_counts(open_queue: Open, okq: Okq) -> None:
    queue = await open_queue(bound=0)
    await queue.put_many(ITEMS[:3])
    await queue.set_concurrency(1)
    popped = okq.pop("jobs")  # it knows no limits
    assert popped is not None
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    assert okq.ack("jobs", popped[0]) == 1
    assert (await queue.receive(timeout=0)).raw == b"1"


async def test_a_quick_service_leaves_places_to_others(open_queue: Open, long_slices: None) -> None:
    queues = [await open_queue(bound=0), await open_queue()]
    await queues[0].set_concurrency(2)
    handled = [0, 0]

    async def run(number: int) -> None:
        async def handle(_: bytes) -> None:
            handled[number] += 1
            await asyncio.sleep(0.002)

        await serve(handle, queues[number], concurrency=10)

    tasks = [asyncio.create_task(run(number)) for number in range(2)]
    await eventually(lambda: all(queue._driver.waits._parked for queue in queues))
    await queues[0].put_many(b"%d" % number for number in range(300))
    await queues[0].close()
    await in_time(asyncio.gather(*tasks))
    assert sum(handled) == 300
    assert min(handled) >= 60  # half of them, more or less; a service that always took what is free left at most 34


async def test_a_client_that_waits_for_room_in_flight_learns_that_nothing_waits_any_more(
    open_queue: Open, long_slices: None
) -> None:
    """It waits for new events then. Others take what was kept, or delete it."""
    queue, other = await open_queue(bound=0), await open_queue()
    await queue.set_concurrency(1)
    for empty in (queue.get, queue.purge):
        await queue.put_many(ITEMS[:2])
        delivery = await queue.receive()
        (task,) = await waiting(other)
        await empty()
        await delivery.ack()
        await queue.put(b"new")
        got = await in_time(task)
        assert got.raw == b"new"
        await got.ack()


# Holds.


async def test_a_hold_keeps_all_until_it_ends(open_queue: Open, long_slices: None) -> None:
    one, other = await open_queue(bound=0), await open_queue()
    tasks = await waiting(one)  # for events
    await one.hold(HOUR)
    await one.put_many(ITEMS[:2])
    await kept(other, "try again in 3")
    assert not tasks[0].done()
    tasks += await waiting(other)
    await other.hold(0.01)  # no shorter
    assert (await one.limits()).held_for > HOUR / 2
    assert not any(task.done() for task in tasks)
    await other.hold(0)
    assert sorted([(await in_time(task)).raw for task in tasks]) == ITEMS[:2]
    assert await one.limits() == UNLIMITED


async def test_a_hold_ends_by_itself(open_queue: Open, long_slices: None, db: redis.Redis) -> None:
    queue = await open_queue(bound=0)
    await queue.put(b"1")
    await queue.hold(0.5)
    assert await in_time(queue.get()) == b"1"
    assert not db.exists(KEYS.control)


async def test_what_was_read_ahead_goes_back_at_a_hold(open_queue: Open) -> None:
    queue, other = await open_queue(bound=0), await open_queue()
    await queue.put_many(ITEMS)
    async with queue.consumer(prefetch=4) as mine, other.consumer(prefetch=4, lease=1.0) as theirs:
        assert await anext(mine) == b"0"
        assert await anext(theirs) == b"4"
        assert (await queue.statistics()).in_flight > 4
        await queue.hold(HOUR)
        async with asyncio.timeout(60):  # the other one learns of it when it renews its leases
            while (await queue.statistics()).in_flight > 2:
                await asyncio.sleep(0.05)
        assert sorted([item async for item in _popped(queue)]) == [*ITEMS[1:4], *ITEMS[5:]]


async def _popped(queue: EventQueue[bytes]) -> Any:
    await queue.hold(0)
    for _ in range(8):
        delivery = await queue.receive(timeout=0)
        assert delivery.attempts == 1
        yield delivery.raw


# The queue as a whole.


async def test_a_closed_queue_waits_for_what_its_limits_keep(open_queue: Open, long_slices: None) -> None:
    queue, other = await open_queue(bound=0), await open_queue()
    await queue.put_many(ITEMS[:3])
    await queue.set_rate(1, HOUR)
    consuming = [asyncio.create_task(_all_of(one)) for one in (queue, other)]
    await eventually(lambda: queue._driver.waits._parked and other._driver.waits._parked)
    await queue.close()
    await kept(queue)
    await queue.set_rate(None)
    first, second = await in_time(asyncio.gather(*consuming))
    assert sorted(first + second) == ITEMS[:3]


async def _all_of(queue: EventQueue[bytes]) -> list[bytes]:
    async with queue.consumer() as consumer:
        return [item async for item in consumer]


async def test_the_client_that_watches_hands_that_over(open_queue: Open, long_slices: None) -> None:
    queues = [await open_queue(bound=0), await open_queue(), await open_queue()]
    await queues[0].put_many(ITEMS[:3])
    await queues[0].set_rate(1, HOUR)
    await queues[0].get()
    first, second, third = await waiting(*queues)
    first.cancel()
    await asyncio.wait((first,))
    await queues[1].aclose()
    await asyncio.wait((second,))
    await queues[2].set_rate(None)
    assert (await in_time(third)).raw == b"1"


async def test_a_token_that_nobody_uses_goes_to_the_next_one(open_queue: Open, long_slices: None) -> None:
    """The one that watches gives up in the very moment in which the limits change."""
    queue, other = await open_queue(bound=0), await open_queue()
    await queue.put_many(ITEMS)
    for number in range(20):
        await queue.hold(HOUR)
        first, second = await waiting(queue, other)
        releasing = asyncio.create_task(queue.hold(0))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait((first,))
        await releasing
        delivery = await in_time(second)
        await delivery.nack()
        if not first.cancelled():
            await first.result().nack()


@pytest.mark.parametrize("ending", ["a try without waiting", "a cancelled task"])
async def test_the_other_tasks_of_the_client_that_watches_still_do(
    open_queue: Open, long_slices: None, ending: str
) -> None:
    queue, other = await open_queue(bound=0), await open_queue()
    await queue.put_many(ITEMS[:4])
    await queue.set_concurrency(1)
    async with queue.consumer(prefetch=1, ack="manual") as consumer:
        delivery = await other.receive()
        mine = asyncio.create_task(anext(consumer))
        await eventually(lambda: queue._driver.waits._parked)
        (theirs,) = await waiting(other)
        if ending == "a cancelled task":
            (task,) = await waiting(queue)
            await eventually(lambda: len(queue._driver.waits._parked) == 2)
            task.cancel()
            await asyncio.wait((task,))
        else:
            with pytest.raises(QueueEmptyError):
                await queue.receive(timeout=0)
        await queue.statistics()  # the step that hands over would have been carried out
        await delivery.ack()
        for task in (mine, theirs):
            await (await in_time(task)).ack()


@pytest.mark.parametrize("seed", range(3))
async def test_random_cancellations_and_changes_leave_nobody_waiting(
    open_queue: Open, long_slices: None, db: redis.Redis, seed: int
) -> None:
    """Those that are not cancelled wait for ever: everything is received, and nothing ends the waits but news."""
    chosen = random.Random(seed)
    queues = [await open_queue(bound=0), *[await open_queue() for _ in range(3)]]
    most, received, flying, at_most, ended = 200, [], 0, 0, False
    await queues[0].set_concurrency(2)

    async def receive(queue: EventQueue[bytes]) -> None:
        nonlocal flying, at_most
        while not ended:
            timeout = 0 if chosen.random() < 0.1 else None
            task = asyncio.ensure_future(queue.receive(timeout=timeout, lease=600))
            if chosen.random() < 0.3:
                await asyncio.sleep(chosen.uniform(0, 0.01))
                task.cancel()
                await asyncio.wait((task,))
            try:
                delivery = await task
            except QueueEmptyError:
                continue
            except asyncio.CancelledError:
                continue
            flying += 1
            at_most = max(at_most, flying)
            await asyncio.sleep(chosen.uniform(0, 0.003))
            flying -= 1
            await delivery.ack()
            received.append(delivery.raw)

    async def change() -> None:
        while not ended:
            await asyncio.sleep(chosen.uniform(0, 0.05))
            queue = chosen.choice(queues)
            if chosen.random() < 0.5:
                await queue.hold(chosen.choice((0.005, 0)))
            else:
                await queue.set_rate(*chosen.choice(((None,), (1000, 1.0), (200, 1.0, 5))))

    working = [asyncio.create_task(receive(queue)) for queue in queues for _ in range(2)]
    working.append(asyncio.create_task(change()))
    for number in range(most):
        await chosen.choice(queues).put(b"%d" % number)
        await asyncio.sleep(chosen.uniform(0, 0.005))
    await eventually(lambda: len(received) == most or any(task.done() for task in working))
    ended = True
    for task in working:
        task.cancel()
    await asyncio.wait(working)
    assert sorted(received, key=int) == [b"%d" % number for number in range(most)]
    assert at_most <= 2
    assert consistent(db)


async def test_several_queues_at_once(open_queue: Open, url: str) -> None:
    first, second = await open_queue("jobs", bound=0), await open_queue("others", bound=0)
    await first.put(b"1")
    await first.hold(HOUR)
    async with EventQueue.consume("jobs", "others", url=url) as consumer:
        coming = asyncio.create_task(anext(consumer))
        await eventually(lambda: not coming.done())
        await second.put(b"2")
        delivery = await in_time(coming)
        assert delivery.raw == b"2"
        await delivery.ack()
        coming = asyncio.create_task(anext(consumer))
        await first.hold(0)
        assert (await in_time(coming)).raw == b"1"


async def test_limits_are_told_and_last_until_they_are_changed(open_queue: Open, db: redis.Redis) -> None:
    queue, other = await open_queue(bound=0), await open_queue()
    assert await queue.limits() == UNLIMITED
    await queue.set_rate(100, 60.0)
    await queue.set_concurrency(20)
    assert await other.limits() == Limits(Rate(100, 60.0), 20)
    assert (await other.statistics()).limits == Limits(Rate(100, 60.0), 20)
    await other.set_rate(5, 0.25, burst=7)
    await other.pause()
    assert await queue.limits() == Limits(Rate(5, 0.25, 7), 20)
    await queue.resume()
    await queue.set_rate(None)
    assert await other.limits() == Limits(None, 20)
    await queue.set_concurrency(None)
    assert not db.exists(KEYS.control)


async def test_a_queue_that_is_no_more_has_no_limits(open_queue: Open, okq: Okq, db: redis.Redis) -> None:
    queue = await open_queue()
    with pytest.raises(QueueDoesNotExistError):
        await queue.set_rate(1)
    okq.push("jobs", "a", b"1")
    await queue.hold(HOUR)
    (task,) = await waiting(await open_queue())
    assert await queue.create()  # this clears what an earlier one had
    assert (await in_time(task)).raw == b"1"
    assert await queue.limits() == UNLIMITED
    await queue.set_rate(1)
    await queue.delete()
    assert not db.exists(KEYS.control)
    with pytest.raises(QueueDoesNotExistError):
        await queue.set_concurrency(1)
    okq.push("jobs", "a", b"1")
    with pytest.raises(QueueDoesNotExistError):
        await queue.hold(1)  # it is not the one that this object has created


async def test_a_pause_and_limits_are_independent(open_queue: Open, long_slices: None) -> None:
    queue, other = await open_queue(bound=0), await open_queue()
    await queue.put_many(ITEMS[:2])
    await queue.hold(HOUR)
    await queue.pause()
    (task,) = await waiting(other)
    await queue.hold(0)
    with pytest.raises(QueueEmptyError, match="paused"):
        await queue.receive(timeout=0)
    await queue.hold(HOUR)
    await queue.resume()
    await eventually(lambda: other._driver.waits.blocked.seconds().limited)
    assert not task.done()
    await queue.hold(0)
    assert (await in_time(task)).raw == b"0"


# What other programs have damaged, and a server without memory.


@pytest.mark.parametrize("field", ["held", "count", "per", "burst", "concurrency"])
async def test_a_damaged_limit_is_an_error_and_loses_nothing(open_queue: Open, db: redis.Redis, field: str) -> None:
    queue = await open_queue(bound=0)
    await queue.put_many(ITEMS[:2])
    delivery = await queue.receive()
    db.hset(KEYS.control, field, "many")
    for take in (queue.receive, queue.get):
        with pytest.raises(ServerError, match=re.escape(f"has a field {field} that is not a number")):
            await take(timeout=0)
    await delivery.nack()
    db.hdel(KEYS.control, field)
    assert await queue.get_many(2) == ITEMS[:2]


async def test_limits_of_the_wrong_type_are_an_error_and_lose_nothing(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue(bound=0)
    await queue.put_many(ITEMS[:2])
    delivery = await queue.receive()
    db.set(KEYS.control, "x")
    operations: list[Callable[[], Awaitable[Any]]] = [
        lambda: queue.receive(timeout=0), lambda: queue.get(timeout=0), lambda: queue.hold(1), queue.pause,
        queue.resume, queue.statistics,
    ]  # fmt: skip
    for operation in operations:
        with pytest.raises(ServerError, match="WRONGTYPE"):
            await operation()
    await delivery.extend(60)
    await delivery.ack()
    db.delete(KEYS.control)
    assert (await queue.statistics()).in_flight == 0
    assert await queue.get() == b"1"


async def test_a_full_server_can_be_limited(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue(bound=0)
    await queue.put_many(ITEMS[:3])
    before = db.config_get("maxmemory")["maxmemory"]
    db.config_set("maxmemory", 1)
    try:
        await queue.set_rate(2, HOUR, burst=2)
        await queue.set_concurrency(1)
        delivery = await queue.receive()
        await kept_in_flight(queue)
        await delivery.ack()
        assert await queue.get() == b"1"
        await kept(queue)
        await queue.set_rate(None)
        assert await queue.get() == b"2"
    finally:
        db.config_set("maxmemory", before)


async def kept_in_flight(queue: EventQueue[bytes]) -> None:
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)


async def test_the_clock_of_the_server_may_be_set_back(open_queue: Open, db: redis.Redis) -> None:
    """A hold, and what the rate has handed out, then seem to be far in the future."""
    queue = await open_queue(bound=0)
    await queue.put_many(ITEMS[:2])
    await queue.set_rate(10, 0.5, burst=1)
    await queue.hold(0.2)
    db.hset(KEYS.control, mapping={"held": 99 * 10**11, "next": "9900000000000.000"})
    assert await in_time(queue.get()) == b"0"
    assert await in_time(queue.get()) == b"1"
