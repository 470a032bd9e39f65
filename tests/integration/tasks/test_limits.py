"""How many tasks a queue hands out: rate and concurrency over all nodes, and holds.

Rates with long times show that something is kept; a test that waits for more changes the limits.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import fakeredis
import pytest
import redis

from apressure import (
    Hold,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    ServerError,
    TaskClient,
    TaskQueue,
    serve,
)
from apressure.concurrency.backoff import Backoff
from apressure.connection.wire import reconnecting
from apressure.core.limits import UNLIMITED, Limits, Rate
from apressure.tasks.delivery import TaskDelivery
from apressure.tasks.engine import waits
from apressure.tasks.processor import Processor
from apressure.testing.contract.steps import Counting
from apressure.testing.proxy import Proxy, Trouble
from tests.integration.deaths import each_trouble, url_of
from tests.integration.tasks.conftest import Blueque, Open, consistent, eventually, in_time
from tests.servers import SERVERS

CONTROL = "apressure:blueque:control:jobs"
HOUR = 3600.0


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clients wait for messages only: a test that ends has got one."""
    monkeypatch.setattr(waits, "POLL", HOUR)


async def waits_in(queue: TaskQueue[Any], most: int = 1) -> asyncio.Task[list[TaskDelivery[Any]]]:
    """A task of this object that waits for up to so many tasks of the queue."""
    waiting = asyncio.create_task(queue.receive_many(most, lease=600))
    await eventually(lambda: queue._waits._parked)
    await asyncio.sleep(0.1)  # its channel is listened to, and it has tried again for that
    assert not waiting.done()
    return waiting


async def nothing(queue: TaskQueue[Any]) -> None:
    with pytest.raises(QueueEmptyError, match="limits"):
        await queue.receive(timeout=0)


async def items(deliveries: list[TaskDelivery[Any]]) -> list[Any]:
    for one in deliveries:
        await one.complete()
    return [one.item for one in deliveries]


# The rate.


async def test_a_rate_counts_for_all_clients(open_queue: Open, no_polls: None) -> None:
    one, two = await open_queue(), await open_queue()
    await one.put_many(range(8))
    await one.set_rate(3, HOUR, burst=3)
    assert await two.limits() == Limits(Rate(3, HOUR, 3))
    got = await items(await one.receive_many(2))
    got += await items(await two.receive_many(5))
    for queue in (one, two):
        await nothing(queue)
        with pytest.raises(QueueEmptyError, match="limits"):
            await queue.get(timeout=0)
    waiting = [await waits_in(one), await waits_in(two)]
    assert (await two.statistics()).length == 5
    await two.set_rate(None)
    for each in waiting:
        got += await items(await in_time(each))
    got += await items(await one.receive_many(9))
    assert sorted(got[:5]) == list(range(5))
    assert got[:3] + got[5:] == [0, 1, 2, 5, 6, 7]
    assert await one.limits() == UNLIMITED


@pytest.mark.parametrize(("count", "per"), [(30, 1.0), (60, 1.0), (90, 1.0), (7, 0.7), (1000, 1.0), (3, 0.1)])
async def test_a_quiet_queue_hands_out(queue: TaskQueue[Any], count: int, per: float) -> None:
    """Whatever the interval is as a binary fraction."""
    await queue.put_many(range(5))
    await queue.set_rate(count, per)
    async with queue.consumer("auto") as consuming:
        assert [await in_time(anext(consuming)) for _ in range(5)] == list(range(5))


@pytest.mark.parametrize("burst", [None, 5])
async def test_no_window_has_more(open_queue: Open, burst: int | None) -> None:
    """By the server's clock, which each reservation notes."""
    queues = [await open_queue(), await open_queue()]
    count, per, most = 200, 1.0, 200 if burst is None else 200 + burst - 1
    await queues[0].put_many(range(450))
    await queues[0].set_rate(count, per, burst)
    await queues[0].close()
    times: list[float] = []

    async def consume(queue: TaskQueue[Any]) -> None:
        async with queue.consumer("manual") as consuming:
            async for delivery in consuming:
                times.append(float(delivery.task.fields["updated"]))
                await delivery.complete()

    await in_time(asyncio.gather(*map(consume, queues)))
    times.sort()
    assert len(times) == 450
    windows = [last - first for first, last in zip(times, times[most:], strict=False)]
    assert min(windows) > per - 0.001


async def test_what_comes_again_counts_again(queue: TaskQueue[Any]) -> None:
    await queue.put_many(["a", "b"])
    await queue.set_rate(2, HOUR, burst=2)
    await (await queue.receive()).release()
    again = await queue.receive()
    assert (again.item, again.attempts) == ("a", 1)
    await nothing(queue)


async def test_tasks_that_are_given_up_do_not_count(queue: TaskQueue[Any], blueque: Blueque) -> None:
    for number in range(3):
        blueque.enqueue(str(number), expires=5)
    blueque.enqueue("first")
    blueque.enqueue("second")
    await queue.set_rate(2, HOUR, burst=2)
    assert (await in_time(queue.receive())).id == "first"
    assert (await in_time(queue.receive())).id == "second"
    assert (await queue.statistics()).expired == 3
    blueque.enqueue("late", expires=5)
    await nothing(queue)  # it is given up when its turn comes
    assert await queue.qsize() == 1


async def test_a_get_counts_for_the_rate(queue: TaskQueue[Any]) -> None:
    await queue.put_many(range(4))
    await queue.set_rate(2, HOUR, burst=2)
    assert await queue.get_many(4) == [0, 1]
    await nothing(queue)
    assert (await queue.statistics()).blocked.limited == 0.0


async def test_a_change_of_the_rate_wakes_and_takes_nothing_back(open_queue: Open, no_polls: None) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put_many(range(4))
    held = await queue.receive()
    await queue.set_rate(1, HOUR)
    await other.receive()
    waiting = await waits_in(other)
    await queue.set_rate(1, 0.01)
    assert [one.item for one in await in_time(waiting)] == [2]
    await held.complete()
    statistics = await other.statistics()
    assert statistics.limits == Limits(Rate(1, 0.01))
    assert statistics.blocked.limited > 0


@each_trouble
async def test_a_bad_line_spends_a_rate_once(
    open_queue: Open, db: redis.Redis, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnecting, "RECONNECT_BACKOFF", Backoff(0.01, 0.05))
    queue = await open_queue()
    await queue.put_many(range(80))
    settings: Any = {"response_timeout": 1.0, "connect_timeout": 1.0, "retry_timeout": 60.0}
    handed: list[Any] = []
    async with Proxy(url_of(db), random.Random()) as line, TaskQueue("jobs", url=line.url, **settings) as receiving:
        line.trouble = trouble
        await receiving.set_rate(60, HOUR, burst=60)
        async with asyncio.timeout(90):
            while len(handed) < 60:
                handed += [one.item for one in await receiving.receive_many(1, lease=600)]
        line.trouble = Trouble()
        await nothing(receiving)
    assert handed == list(range(60))


# How many are in flight.

ENDS: dict[str, Callable[[TaskDelivery[Any]], Awaitable[object]]] = {
    "complete": lambda one: one.complete("done"),
    "fail": lambda one: one.fail("why"),
    "later": lambda one: one.nack("why", delay=HOUR),
    "used up": lambda one: one.nack("why"),
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_task_that_ends_makes_room_for_the_next(
    open_queue: Open, client: TaskClient, end: str, no_polls: None
) -> None:
    queue, other = await open_queue(max_attempts=1 if end == "used up" else None), await open_queue()
    await queue.put_many(["a", "b", "c"])
    await queue.set_concurrency(1)
    assert await other.limits() == Limits(concurrency=1)
    (first,) = await queue.receive_many(3, lease=600)
    await first.start()
    await nothing(other)
    waiting = await waits_in(other, 3)
    await ENDS[end](first)
    assert await items(await in_time(waiting)) == ["b"]


async def test_one_that_goes_back_is_the_next(open_queue: Open, no_polls: None) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put_many(["a", "b"])
    await queue.set_concurrency(1)
    first = await queue.receive(lease=600)
    waiting = await waits_in(other)
    await first.nack("again")
    (again,) = await in_time(waiting)
    assert (again.id, again.attempts) == (first.id, 2)
    waiting = await waits_in(queue)
    await again.release()
    (again,) = await in_time(waiting)
    assert (again.id, again.attempts) == (first.id, 2)


async def test_many_that_end_in_one_step(open_queue: Open, no_polls: None, db: redis.Redis) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put_many(range(9))
    await queue.set_concurrency(4)
    held = await queue.receive_many(9, lease=600)
    assert len(held) == 4
    waiting = await waits_in(other, 9)
    await asyncio.gather(*(one.complete() for one in held[:3]))
    more = await in_time(waiting)
    while len(more) < 3:
        more += await in_time(other.receive_many(9))
    await nothing(queue)
    assert [one.item for one in more] == [4, 5, 6]
    assert db.zcard("apressure:blueque:leases:jobs") == 4
    consistent(db)


async def test_what_a_dead_node_had_is_free_when_its_lease_ends(
    open_queue: Open, no_polls: None, db: redis.Redis
) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put_many(["a", "b"])
    await queue.set_concurrency(1)
    first = await queue.receive(lease=0.5)
    await nothing(other)
    again = await in_time(other.receive(lease=600))
    assert (again.id, again.attempts) == (first.id, 2)
    await nothing(queue)
    assert await queue.qsize() == 1
    consistent(db)


async def test_a_limit_that_is_lowered_or_raised(open_queue: Open, no_polls: None) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put_many(range(6))
    await queue.set_concurrency(3)
    held = await queue.receive_many(9, lease=600)
    await queue.set_concurrency(1)
    for one in held[:2]:
        await nothing(other)
        await one.complete()
    await nothing(other)
    waiting = await waits_in(other)
    await queue.set_concurrency(2)
    assert [one.item for one in await in_time(waiting)] == [3]
    await nothing(queue)
    await queue.set_concurrency(None)
    assert len(await queue.receive_many(9)) == 2


async def test_get_waits_while_as_many_are_in_flight(open_queue: Open, no_polls: None) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put_many(range(6))
    await queue.set_concurrency(2)
    assert [await queue.get() for _ in range(2)] == [0, 1]
    held = await queue.receive_many(2, lease=600)
    getting = asyncio.create_task(other.get())
    await eventually(lambda: other._waits._parked)
    await asyncio.sleep(0.1)
    assert not getting.done()
    await held[0].complete()
    assert await in_time(getting) == 4


async def test_nodes_of_the_release_take_what_they_want(queue: TaskQueue[Any], blueque: Blueque) -> None:
    await queue.put_many(range(4))
    await queue.set_concurrency(1)
    blueque.listen("other_1")
    taken = blueque.dequeue("other_1")
    held = await queue.receive()
    assert blueque.dequeue("other_1") is not None
    await nothing(queue)
    assert taken is not None
    blueque.start(taken, "other_1", 5)
    blueque.complete(taken, "other_1", 5, "done")
    await nothing(queue)
    await held.complete()
    assert (await queue.receive()).item == 3


# Nodes and workers.


async def test_serve_keeps_to_the_concurrency(open_queue: Open) -> None:
    queues = [await open_queue(), await open_queue()]
    await queues[0].put_many(range(30))
    await queues[0].set_concurrency(3)
    await queues[0].close()
    counting = Counting(0.01)
    await in_time(asyncio.gather(*(serve(counting.handle, queue, concurrency=5, signals=()) for queue in queues)))
    assert sorted(counting.done) == list(range(30))
    assert counting.most <= 3


async def test_serve_with_a_failing_handler(open_queue: Open) -> None:
    queue = await open_queue(max_attempts=1)
    await queue.put_many(range(6))
    await queue.set_concurrency(1)
    await queue.close()

    async def handle(item: int) -> None:
        raise ValueError(item)

    served = await in_time(serve(handle, queue, concurrency=2, signals=()))
    assert served is not None
    assert [letter.item for letter in await queue.dead_letters()] == list(range(6))


async def test_processors_elsewhere_make_room(client: TaskClient, url: str, no_polls: None, db: redis.Redis) -> None:
    queue = client.queue("jobs")
    await queue.put_many(range(4))
    await queue.close()
    await queue.set_concurrency(1)
    order = []

    async def finish(processor: Processor) -> None:
        await asyncio.sleep(0.05)
        await processor.complete("done")

    async with (
        TaskClient(url) as processing,
        client.listener("jobs", lease=600) as listener,
        asyncio.TaskGroup() as finishing,
    ):
        async for task in listener:
            assert db.zcard("apressure:blueque:leases:jobs") == 1
            processor = processing.processor(task)
            order.append(await processor.start())
            finishing.create_task(finish(processor))
    assert order == list(range(4))
    consistent(db)


# Holds.


async def test_a_handler_holds_the_queue(open_queue: Open, db: redis.Redis, no_polls: None) -> None:
    queue, other = await open_queue(max_attempts=1), await open_queue()
    await queue.put_many(["a", "b"])
    await queue.close()
    handled: list[str] = []

    async def handle(item: str) -> None:
        handled.append(item)
        if len(handled) == 1:
            raise Hold(HOUR, "429")

    serving = asyncio.create_task(serve(handle, queue, signals=()))
    await eventually(lambda: handled)
    await eventually(lambda: db.llen("blueque_pending_tasks_jobs") == 2)
    await nothing(other)
    assert handled == ["a"]
    await other.hold(0)
    await in_time(serving)
    assert handled == ["a", "a", "b"]
    assert await queue.dead_letters() == []
    consistent(db)


async def test_a_hold_keeps_everything_and_never_gets_shorter(open_queue: Open, no_polls: None) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put_many(["a", "b"])
    await queue.hold(HOUR)
    await other.hold(1)
    assert 1800 < (await other.limits()).held_for <= HOUR
    await nothing(other)
    waiting = [await waits_in(queue), await waits_in(other)]
    await other.hold(0)
    assert await other.limits() == UNLIMITED
    got = [item for each in waiting for item in await items(await in_time(each))]
    assert sorted(got) == ["a", "b"]


async def test_a_hold_ends_by_itself(queue: TaskQueue[Any], db: redis.Redis, no_polls: None) -> None:
    await queue.put("a")
    await queue.hold(0.5)
    assert (await in_time(queue.receive())).item == "a"
    assert not db.exists(CONTROL)


async def test_a_hold_gives_back_what_was_reserved_ahead(open_queue: Open, db: redis.Redis) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put_many(range(10))
    async with (
        queue.consumer("manual", prefetch=4, lease=600) as consuming,
        other.consumer("manual", prefetch=4, lease=0.6) as elsewhere,
    ):
        first, fifth = await in_time(anext(consuming)), await in_time(anext(elsewhere))
        assert await queue.qsize() == 2
        await queue.hold(HOUR)
        await eventually(lambda: db.zcard("apressure:blueque:leases:jobs") == 2)
        # Those of the object at once, those elsewhere with the renewal of its leases.
        waiting = [task async for task in queue.tasks("pending")]
        assert {task.parameters for task in waiting} == {1, 2, 3, 5, 6, 7, 8, 9}
        assert {task.attempts for task in waiting} == {0}
        for one in (first, fifth):
            await one.complete()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await anext(consuming)
        await other.hold(0)
        await (await in_time(anext(consuming))).complete()
    consistent(db)


async def test_a_pause_and_limits_are_two_things(queue: TaskQueue[Any], db: redis.Redis) -> None:
    await queue.put("a")
    await queue.set_rate(1, HOUR, burst=5)
    assert await queue.pause()
    assert not await queue.pause()
    statistics = await queue.statistics()
    assert (statistics.paused, statistics.limits) == (True, Limits(Rate(1, HOUR, 5)))
    with pytest.raises(QueueEmptyError, match="paused"):
        await queue.receive(timeout=0)
    await queue.hold(HOUR)
    with pytest.raises(QueueEmptyError, match="paused"):
        await queue.receive(timeout=0)
    assert await queue.resume()
    assert not await queue.resume()
    await nothing(queue)
    await queue.hold(0)
    assert (await queue.receive()).item == "a"
    await queue.set_rate(None)
    assert not db.exists(CONTROL)


# The queue's life.


@pytest.mark.parametrize("limit", ["rate", "concurrency", "hold"])
async def test_a_closed_queue_is_not_drained_while_limits_keep_its_tasks(
    open_queue: Open, limit: str, no_polls: None
) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put_many(range(3))
    first = await queue.receive(lease=600)
    await queue.close()
    if limit == "rate":
        await queue.set_rate(1, HOUR)
        await items(await other.receive_many(3))
    elif limit == "concurrency":
        await queue.set_concurrency(1)
    else:
        await queue.hold(HOUR)
    await nothing(queue)
    got = []

    async def drain() -> None:
        async with other.consumer() as consuming:
            async for item in consuming:
                got.append(item)

    draining = asyncio.create_task(drain())
    await eventually(lambda: other._waits._parked)
    await asyncio.sleep(0.1)
    assert got == []
    if limit != "concurrency":
        await queue.set_rate(None)
        await queue.hold(0)
    await first.complete()
    await in_time(draining)
    assert got == ([2] if limit == "rate" else [1, 2])
    with pytest.raises(QueueClosedError):
        await queue.receive(timeout=0)


async def test_limits_of_a_queue_that_does_not_exist(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue()
    for change in (queue.set_rate(5), queue.set_concurrency(5), queue.hold(5), queue.set_rate(None)):
        with pytest.raises(QueueDoesNotExistError):
            await change
    assert not db.exists(CONTROL)
    await queue.create(3)
    await queue.set_rate(5)
    await queue.delete()
    assert not db.exists(CONTROL)
    with pytest.raises(QueueDoesNotExistError):
        await queue.set_rate(5)
    other = await open_queue()
    await other.put("a")
    await other.pause()
    await other.set_concurrency(5)
    assert await other.create(3)  # a new one, which keeps the tasks
    assert await other.limits() == UNLIMITED
    assert await other.get() == "a"
    for bad in (0, -1, 1.5, "1"):
        for refused in (other.set_rate(bad), other.set_concurrency(bad), other.set_rate(5, burst=bad)):  # type: ignore[arg-type]
            with pytest.raises((TypeError, ValueError)):
                await refused


# Trouble.

DAMAGE: dict[str, Callable[[redis.Redis], object]] = {
    "a string": lambda db: db.set(CONTROL, "1"),
    "a list": lambda db: db.lpush(CONTROL, "x"),
    **{
        f"{field} of {value}": lambda db, field=field, value=value: db.hset(CONTROL, field, value)
        for field in ("count", "per", "burst", "concurrency", "held", "held_for")
        for value in ("x", "-1", "1.5", "9" * 14)
    },
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_damage_is_a_clear_error_and_loses_nothing(open_queue: Open, db: redis.Redis, damage: str) -> None:
    queue = await open_queue()
    await queue.put_many(["a", "b", "c"])
    one, two, three = await queue.receive_many(3)
    await one.nack()
    before = db.lrange("blueque_pending_tasks_jobs", 0, -1), db.zrange("apressure:blueque:leases:jobs", 0, -1)
    DAMAGE[damage](db)
    wrong_type = damage.startswith("a ")
    error = "WRONGTYPE.*key of the queue" if wrong_type else "control:jobs has a field .* that is not a number"
    for taking in (queue.receive(timeout=0), queue.receive_many(2), queue.get(timeout=0)):
        with pytest.raises(ServerError, match=error):
            await taking
    assert before == (db.lrange("blueque_pending_tasks_jobs", 0, -1), db.zrange("apressure:blueque:leases:jobs", 0, -1))
    consistent(db)
    await two.extend(60)
    await two.start()
    await two.complete()
    await three.fail("why")
    await queue.put("d")
    if wrong_type:
        for operation in (queue.set_rate(1), queue.hold(1), queue.hold(0), queue.pause(), queue.statistics()):
            with pytest.raises(ServerError, match=error):
                await operation
        db.delete(CONTROL)
    else:
        assert isinstance((await queue.statistics()).limits, Limits)
        await queue.set_rate(None)
        await queue.set_concurrency(None)
        await queue.hold(0)
        assert not db.exists(CONTROL)
    assert [one.item for one in await queue.receive_many(9)] == ["a", "d"]
    consistent(db)


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_queue_can_be_deleted(queue: TaskQueue[Any], db: redis.Redis, damage: str) -> None:
    await queue.put("a")
    DAMAGE[damage](db)
    await queue.delete()
    assert not db.exists(CONTROL)


@pytest.mark.parametrize(
    "fields",
    [
        {"count": 0, "per": 1000}, {"count": 5, "per": 0}, {"count": 5}, {"per": 5}, {"concurrency": 0}, {"held": 5},
        {"held": 9999999999999}, {"held": 9999999999999, "held_for": 0}, {"held_for": 9999999999999},
        {"count": 5, "per": 1000, "burst": 0}, {"burst": 0}, {"count": 5, "per": 1000, "next": "x"},
        {"count": 5, "per": 1000, "next": "-5.0"}, {"count": 5, "per": 1000, "next": "nan"}, {"other": "x"},
        {"count": 9999999999999, "per": 1}, {"count": 1, "per": 9999999999999},
    ],
    ids=str,
)  # fmt: skip
async def test_odd_limits_keep_nothing_for_ever(queue: TaskQueue[Any], db: redis.Redis, fields: dict[str, Any]) -> None:
    """What only another program writes: a limit of 0 is none, and what is missing, too."""
    await queue.put("a")
    db.hset(CONTROL, mapping=fields)
    assert isinstance((await queue.statistics()).limits, Limits)
    assert await in_time(queue.get()) == "a"


async def test_a_clock_that_was_set_back_keeps_nothing_for_long(queue: TaskQueue[Any], db: redis.Redis) -> None:
    """What is noted of the rate and of a hold lies far ahead then."""
    await queue.put_many(["a", "b"])
    await queue.set_rate(10, 1)
    db.hset(CONTROL, "next", "9999999999999.000")
    assert await in_time(queue.get()) == "a"
    await queue.hold(0.3)
    db.hset(CONTROL, "held", 9999999999999)
    assert (await queue.limits()).held_for <= 0.3
    assert await in_time(queue.get()) == "b"


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_full_server_can_be_slowed_down(make_server: Any, kind: str) -> None:
    server = make_server(kind, config={"maxmemory-policy": "noeviction"})
    with redis.Redis.from_url(server.url) as db:
        async with TaskQueue[Any]("jobs", url=server.url) as queue:
            await queue.put_many(range(6))
            db.config_set("maxmemory", 1)
            await queue.set_rate(2, HOUR, burst=2)
            assert [one.item for one in await queue.receive_many(1, lease=600)] == [0]
            await queue.set_concurrency(2)
            (second,) = await queue.receive_many(5, lease=600)
            await nothing(queue)
            await queue.set_rate(None)
            await nothing(queue)
            await second.extend(600)
            await second.complete()
            await queue.hold(HOUR)
            await nothing(queue)
            await queue.hold(0)
            assert await queue.pause()
            assert await queue.resume()
            assert [one.item for one in await queue.receive_many(9)] == [2]
            db.config_set("maxmemory", 0)
            consistent(db)


async def test_a_user_without_the_right_to_publish_changes_no_limits(make_server: Any) -> None:
    server = make_server()
    with redis.Redis.from_url(server.url) as db:
        db.execute_command("ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "resetchannels")
        async with (
            TaskQueue[Any]("jobs", url=server.url.replace("://", "://mute:secret@")) as queue,
            TaskQueue[Any]("jobs", url=server.url) as other,
        ):
            await other.put("a")
            for change in (queue.set_rate(1), queue.set_concurrency(1), queue.hold(1), queue.pause()):
                with pytest.raises(ServerError):
                    await change
            assert not db.exists(CONTROL)


async def test_a_queue_without_servers_can_be_limited() -> None:
    """On fakeredis, whose Lua is another one."""
    async with TaskQueue[Any]("jobs", redis=fakeredis.FakeAsyncRedis()) as queue:
        await queue.put_many(range(5))
        await queue.set_rate(30)
        await queue.set_concurrency(1)
        for number in range(3):
            delivery = await in_time(queue.receive())
            assert delivery.item == number
            await nothing(queue)
            await delivery.complete()
        await queue.hold(HOUR)
        await nothing(queue)
        await queue.hold(0)
        assert await in_time(queue.get()) == 3
