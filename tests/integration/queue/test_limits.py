"""The limits of an AsyncQueue in trouble: kills, clock steps, a full server, damaged keys, and who wakes whom.

`apressure.testing.contract.limits` has what all kinds promise.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    Limits,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
    Rate,
    ScriptingRefusedError,
    ServerError,
    pipe,
    recovery,
)
from apressure.exceptions import OperationUnblockedError
from apressure.testing.contract.limits import HOUR
from tests.integration.conftest import Opener, cancelled, fails, in_time
from tests.integration.leases.test_leases import running
from tests.integration.queue.test_line import quiet

CONTROL = "apressure:__pressure__:jobs:control"

# Takes items for a rate, and does nothing with them.
TAKER = """
print("2", flush=True)
async with queue.consumer(shared=True) as consumer:
    async for _ in consumer:
        pass
"""
HOLDER = """
async with queue.consumer("manual", shared=True, lease=1.0) as consumer:
    delivery = await anext(consumer)
    print("2", flush=True)
    await asyncio.sleep(600)
"""

# What was handed out by a time of the server, in one step.
LOOK = """
local time = redis.call('TIME')
return {time[1] * 1000000 + time[2], redis.call('LLEN', KEYS[1])}
"""


@pytest.mark.slow
async def test_no_window_has_more_than_the_rate_over_four_processes(
    open_queue: Opener, url: str, db: redis.Redis
) -> None:
    """What the server has handed out is looked at by its own clock, while four processes take what they can."""
    queue, total, count, per = await open_queue(), 400, 100, 2.0
    await queue.put_many([b"x"] * total)
    await queue.set_rate(count, per=per)
    look, seen = db.register_script(LOOK), []
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(running(TAKER, url))
        while not seen or seen[-1][1] < total:
            now, left = look(keys=["__pressure__:jobs"])
            seen.append((now, total - left))
            await asyncio.sleep(0.004)
            assert now - seen[0][0] < 60_000_000, "they take too little"
        await queue.close()
    begin = 0
    for end, (until, gone) in enumerate(seen):
        while until - seen[begin][0] >= per * 1_000_000:
            begin += 1
        assert gone - seen[begin][1] <= count, (begin, end)


@pytest.mark.parametrize("frozen", [False, True])
async def test_what_a_killed_process_had_in_flight_is_free_again(open_queue: Opener, url: str, frozen: bool) -> None:
    queue = await open_queue()
    await queue.set_concurrency(1)
    await queue.put_many([b"1", b"2"])
    with running(HOLDER, url) as process:
        async with queue.consumer("manual", shared=True) as consumer:
            waiting = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            os.kill(process.pid, signal.SIGSTOP if frozen else signal.SIGKILL)
            delivery = await in_time(waiting)
            assert (delivery.item, delivery.attempts) == (b"1", 2)
            await delivery.ack()
    assert await queue.get() == b"2"


async def test_each_settlement_wakes_one_of_many_that_wait(open_queue: Opener, long_slices: None) -> None:
    queues = [await open_queue(create=not number) for number in range(6)]
    await queues[0].set_concurrency(2)
    done: list[bytes] = []
    running_now, most = 0, 0

    async def consume(queue: AsyncQueue[Any]) -> None:
        nonlocal running_now, most
        async with queue.consumer(shared=True) as consumer:
            async for item in consumer:
                running_now += 1
                most = max(most, running_now)
                await asyncio.sleep(0.002)
                running_now -= 1
                done.append(item)

    consumers = [asyncio.create_task(consume(queue)) for queue in queues]
    items = [b"%d" % number for number in range(60)]
    for item in items:
        await queues[0].put(item)
    await queues[0].close()
    for task in consumers:
        await in_time(task)
    assert sorted(done) == sorted(items)
    assert 1 <= most <= 2


async def test_who_waits_for_limits_gets_what_is_put_into_an_emptied_queue(
    open_queue: Opener, long_slices: None
) -> None:
    queue, other = await open_queue(), await open_queue(create=False)
    await queue.set_concurrency(1)
    await queue.put_many([b"1", b"2"])
    async with queue.consumer("manual", shared=True) as one, other.consumer("manual", shared=True) as two:
        first = await in_time(anext(one))
        waiting = asyncio.ensure_future(anext(two))
        await asyncio.sleep(0.1)
        assert await queue.purge() == 1
        await first.ack()
        await asyncio.sleep(0.1)
        await queue.put(b"3")
        delivery = await in_time(waiting)
        assert delivery.item == b"3"
        await delivery.ack()


async def test_one_task_that_gives_up_leaves_the_watch_to_another_of_its_client(
    open_queue: Opener, long_slices: None
) -> None:
    queue, other = await open_queue(), await open_queue(create=False)
    await queue.set_rate(1, per=HOUR)
    await queue.put_many([b"1", b"2", b"3", b"4"])
    assert await queue.get() == b"1"
    first = asyncio.ensure_future(other.get())
    await asyncio.sleep(0.05)
    second = asyncio.ensure_future(other.get())
    await asyncio.sleep(0.05)
    await cancelled(second)
    await fails(QueueEmptyError, other.get(timeout=0))
    await queue.set_rate(None)
    assert await in_time(first) == b"2"


async def test_they_share_a_limit_of_concurrency(open_queue: Opener) -> None:
    """One that has read ahead all that may be in flight gives way to one that waits."""
    first, second = await open_queue(), await open_queue(create=False)
    await first.set_concurrency(4)
    await first.put_many([b"%d" % number for number in range(20)])
    async with first.consumer("manual", shared=True, prefetch=20) as one:
        in_hand = [await in_time(anext(one)) for _ in range(4)]
        async with second.consumer("manual", shared=True, prefetch=20) as other:
            waiting = asyncio.ensure_future(anext(other))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await in_hand.pop().ack()
            await (await in_time(waiting)).ack()
            await (await in_time(anext(one))).ack()
        for each in in_hand:
            await each.ack()


@pytest.mark.parametrize("limit", ["rate", "concurrency", "hold"])
async def test_a_limited_wait_costs_the_server_nothing(open_queue: Opener, db: redis.Redis, limit: str) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    if limit == "rate":
        await queue.set_rate(1, per=HOUR)
        assert await queue.get() == b"1"
    elif limit == "hold":
        await queue.hold(HOUR)
    else:
        await queue.set_concurrency(1)
    async with queue.consumer("manual", shared=True) as consumer:
        if limit == "concurrency":
            await in_time(anext(consumer))
        task = asyncio.current_task()
        assert task is not None
        before: list[int] = []

        async def look() -> None:
            before.append(await quiet(db))
            await asyncio.sleep(0.5)  # less than the time between two looks
            before.append(await quiet(db))
            task.cancel()

        looking = asyncio.create_task(look())
        with pytest.raises(asyncio.CancelledError):
            await anext(consumer)
        task.uncancel()
        await looking
    assert before[1] - before[0] <= 3


@pytest.mark.parametrize("way", ["get", "receive", "members"])
async def test_nobody_polls_a_closed_queue_whose_limits_keep_messages(
    open_queue: Opener, db: redis.Redis, long_slices: None, way: str
) -> None:
    """The end is not what they wait for. One of two waits in line; both learn what becomes of the queue."""
    queues = [await open_queue(create=not number) for number in range(1 if way == "receive" else 2)]
    await queues[0].put_many([b"1", b"2", b"3"])
    await queues[0].set_rate(1, per=HOUR)
    assert await queues[0].get() == b"1"
    got: list[bytes] = []

    async def consume(queue: AsyncQueue[Any]) -> None:
        if way == "members":
            async with queue.consumer(shared=True) as consumer:
                async for item in consumer:
                    got.append(item)
        with contextlib.suppress(QueueClosedError):
            while way == "get":
                got.append(await queue.get())
            while way == "receive":
                delivery = await queue.receive()
                got.append(delivery.item)
                await delivery.ack()

    tasks = [asyncio.create_task(consume(queue)) for queue in queues]
    await asyncio.sleep(0.1)
    await queues[0].close()
    before = await quiet(db)
    await asyncio.sleep(0.5)
    assert await quiet(db) - before <= 3
    await queues[0].set_rate(None)
    for task in tasks:
        await in_time(task)
    assert sorted(got) == [b"2", b"3"]


async def test_who_waits_for_limits_learns_that_the_queue_is_deleted(open_queue: Opener, long_slices: None) -> None:
    queue, other = await open_queue(), await open_queue(create=False)
    await queue.put(b"1")
    await queue.hold(HOUR)
    await queue.close()
    waiting = asyncio.ensure_future(other.get())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await queue.delete()
    await fails(QueueDoesNotExistError, waiting)


async def test_a_limited_wait_that_ends_early_takes_nothing(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    await queue.set_rate(1, per=HOUR)
    assert await queue.get() == b"1"
    for operation in (queue.get, queue.receive, queue.get_many):
        arguments = (2,) if operation == queue.get_many else ()
        task = asyncio.ensure_future(operation(*arguments))
        await asyncio.sleep(0.05)
        await cancelled(task)
        task = asyncio.ensure_future(operation(*arguments))
        await asyncio.sleep(0.05)
        await queue.unblock()
        await fails(OperationUnblockedError, task)
        await fails(QueueEmptyError, operation(*arguments, timeout=0.02))
    await queue.set_rate(None)
    assert await in_time(queue.get()) == b"2"


@pytest.mark.parametrize("atomic", [True, False])
async def test_a_pipe_makes_room_for_what_it_moves(open_queue: Opener, atomic: bool) -> None:
    source, destination = await open_queue(), await open_queue("results")
    await source.set_concurrency(1)
    items = [b"%d" % number for number in range(10)]
    await source.put_many(items)
    await source.close()

    async def same(item: bytes) -> bytes:
        return item

    await in_time(pipe(source, same, destination, exactly_once=atomic))
    assert await destination.get_many(20) == items


@pytest.mark.parametrize("shared", [True, False])
async def test_clock_steps_neither_lift_limits_nor_keep_them(open_queue: Opener, db: redis.Redis, shared: bool) -> None:
    """A clock that is set back leaves times in the future behind: they count as what they were meant to be."""
    queue = await open_queue()
    await queue.put_many([b"1", b"2", b"3"])
    await queue.hold(0.2)
    db.hset(CONTROL, "held", db.time()[0] * 1000 + 86_400_000)
    async with queue.consumer(shared=shared) as consumer:
        assert await in_time(anext(consumer)) == b"1"
    await queue.set_rate(2, per=1.0)
    db.hset(CONTROL, "next", f"{db.time()[0] * 1000 + 86_400_000}.000")
    async with queue.consumer(shared=shared) as consumer:
        assert await in_time(anext(consumer)) == b"2"
    assert await queue.limits() == Limits(Rate(2, 1.0))


async def test_a_full_server_can_be_limited_and_goes_on(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    await queue.set_rate(50, per=1.0)
    before = db.config_get("maxmemory")["maxmemory"]
    db.config_set("maxmemory", 1)
    try:
        await queue.set_rate(1, per=HOUR)
        await queue.set_concurrency(3)
        assert await queue.get() == b"1"
        await fails(QueueEmptyError, queue.get(timeout=0))
        await queue.hold(HOUR)
        await queue.hold(0)
        await queue.set_rate(None)
        assert await in_time(queue.get()) == b"2"
    finally:
        db.config_set("maxmemory", before)
    assert await queue.limits() == Limits(concurrency=3)


@pytest.mark.parametrize("field", ["count", "per", "burst", "held", "held_for", "concurrency"])
async def test_damaged_limits_are_a_clear_error_and_lose_nothing(
    open_queue: Opener, db: redis.Redis, field: str
) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    await queue.set_rate(5, per=1.0, burst=2)
    await queue.set_concurrency(5)
    await queue.hold(0.01)
    for value in ("x", "-1", "1e3", "", "9" * 30, "nan"):
        db.hset(CONTROL, field, value)
        for operation in (queue.get, queue.receive):
            error = await fails(ServerError, operation())
            assert f"{CONTROL} has a field {field} that is not a number" in str(error)
        async with queue.consumer(shared=True) as consumer:
            await fails(ServerError, anext(consumer))
        await queue.statistics()
    assert await queue.qsize() == 2
    db.hdel(CONTROL, field)
    assert await in_time(queue.get()) == b"1"


@pytest.mark.parametrize("value", ["0", "9" * 13])
async def test_numbers_that_no_client_of_ours_writes_stop_nothing(
    open_queue: Opener, db: redis.Redis, value: str
) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    db.hset(
        CONTROL, mapping={"count": value, "per": value, "burst": value, "next": "nan", "held": value, "held_for": 0}
    )
    assert await in_time(queue.get()) == b"1"
    await queue.limits()


async def test_a_control_key_of_a_wrong_type_is_found_and_repaired(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    db.set(CONTROL, "x")
    await fails(ServerError, queue.get())
    await fails(ServerError, queue.set_rate(1))
    await fails(ServerError, queue.statistics())
    (finding,) = (await recovery.examine(queue, patience=0.01)).findings
    assert finding.kind == "wrong_type"
    await recovery.repair(queue, patience=0.01)
    assert await queue.get() == b"1"
    db.delete(*db.keys("*.damaged-*"))


async def test_the_doctor_says_it(open_queue: Opener) -> None:
    queue = await open_queue("a b")
    await queue.set_rate(100, per=60)
    (finding,) = (await recovery.examine(queue, patience=0.01)).findings
    assert (finding.kind, finding.fault, finding.repair) == ("limited", False, "none")
    assert finding.text == "Consumers of apressure get at most 100 in 60 s. Other clients are not limited."
    assert finding.advice.startswith("To end that: apressure limit 'a b' --rate off --concurrency off, ")


async def test_without_scripts_there_are_no_limits(open_queue: Opener) -> None:
    queue, plain = await open_queue(), await open_queue(create=False, scripting=False)
    await queue.put_many([b"1", b"2"])
    for call in (plain.set_rate(1), plain.set_concurrency(1), plain.hold(1)):
        await fails(ScriptingRefusedError, call)
    await queue.hold(HOUR)
    assert await plain.get() == b"1"  # it does not know of limits
    assert await plain.limits() == Limits()


async def test_limits_outlive_who_set_them_and_a_restart(own: Any) -> None:
    with own as server:
        async with AsyncQueue("jobs", url=server.url) as queue:
            await queue.create()
            await queue.set_rate(7, per=3.0)
            await queue.put(b"1")
        with redis.Redis.from_url(server.url) as db:
            db.save()
    with own as server:
        async with AsyncQueue("jobs", url=server.url) as queue:
            assert await queue.limits() == Limits(Rate(7, 3.0))
            assert await queue.get() == b"1"
            await queue.delete()


async def test_a_queue_that_is_never_limited_again_is_usual_again(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.set_rate(1)
    await queue.set_concurrency(1)
    await queue.hold(0.01)
    await queue.pause()
    await queue.set_rate(None)
    await queue.set_concurrency(None)
    await queue.resume()
    await queue.put(b"1")
    assert await in_time(queue.get()) == b"1"
    assert not db.exists(CONTROL)


async def test_a_producer_that_works_step_by_step_goes_on_when_the_bound_grows(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue, plain = await open_queue(bound=1), await open_queue(create=False, scripting=False)
    await queue.put(b"0")
    putting = asyncio.ensure_future(plain.put(b"1"))
    await quiet(db)
    await queue.set_bound(3)
    await in_time(putting)
    assert (await recovery.examine(queue)).healthy
    await in_time(plain.put(b"2"))
    await fails(QueueFullError, plain.put(b"3", timeout=0))
    await queue.set_bound(2)
    assert await in_time(queue.get()) == b"0"
    await fails(QueueFullError, plain.put(b"3", timeout=0))
    with pytest.raises(ScriptingRefusedError, match="set_bound"):
        await plain.set_bound(5)
    assert (await recovery.examine(queue)).healthy


async def test_a_bound_that_is_no_number_is_told(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(bound=1)
    db.set("__pressure__:jobs:bound", "many")
    with pytest.raises(ServerError, match="not an integer"):
        await queue.set_bound(5)
    assert db.get("__pressure__:jobs:bound") == b"many"
    db.set("__pressure__:jobs:bound", "1")
