"""Scheduled tasks become pending at their time, each once, however many schedulers there are."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest
import redis

from apressure import TaskClient, TaskQueue
from apressure.tasks import Scheduler
from tests.integration.tasks.conftest import Blueque, Open, consistent, eventually, in_time

HOUR = 3600.0


class FakeClock:
    """A clock that a test sets.

    Attributes:
        now: What it says.
        reads: How often it was read.
    """

    def __init__(self) -> None:
        self.now = time.time()
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.now


@contextlib.asynccontextmanager
async def running(*schedulers: Scheduler) -> Any:
    tasks = [asyncio.create_task(one.run()) for one in schedulers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            assert task.cancelled()


async def test_tasks_move_at_their_time(client: TaskClient, blueque: Blueque, db: redis.Redis) -> None:
    queue, clock = client.queue("jobs"), FakeClock()
    scheduler = Scheduler(client, clock=clock)
    begun = clock.now
    ids = [await queue.schedule(number, begun + HOUR + number) for number in (2, 1, 3)]
    foreign = blueque.schedule("foreign", begun + HOUR + 1.5)
    assert await scheduler.round() == 1.0
    assert await queue.qsize() == 0
    clock.now = begun + HOUR + 0.75
    assert await scheduler.round() == pytest.approx(0.25)
    clock.now = begun + HOUR + 2
    assert await scheduler.round() == 1.0
    assert blueque.ids("pending_tasks")[::-1] == [ids[1], foreign, ids[0]]
    assert blueque.task(foreign)["status"] == "pending"
    assert float(blueque.task(foreign)["updated"]) == clock.now
    clock.now = begun + HOUR + 3
    await scheduler.round()
    assert [task.id async for task in queue.tasks()] == [ids[1], foreign, ids[0], ids[2]]
    assert clock.reads == 4  # once a round
    consistent(db)


async def test_several_schedulers_move_each_task_once(url: str, client: TaskClient, db: redis.Redis) -> None:
    queue = client.queue("jobs")
    now = time.time()
    await asyncio.gather(*(queue.schedule(number, now + 0.5 + number / 300) for number in range(300)))
    async with (
        TaskClient(url) as second,
        TaskClient(url) as third,
        running(*(Scheduler(one) for one in (client, second, third))),
    ):
        got = []
        while len(got) < 300:
            for delivery in await in_time(queue.receive_many(50)):
                got.append(delivery.item)
                eta = delivery.task.eta
                assert eta is None or eta <= time.time()  # None: scheduling took so long that it was due
                await delivery.complete()
    assert sorted(got) == list(range(300))
    consistent(db)


async def test_a_task_that_is_due_first_wakes_the_scheduler(
    client: TaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the wake-up the next look would be much later."""
    from apressure.tasks import scheduler

    monkeypatch.setattr(scheduler, "LOOK", 600.0)
    queue = client.queue("jobs")
    await queue.schedule("late", time.time() + HOUR)
    async with running(Scheduler(client, ["jobs"])):
        await asyncio.sleep(0.5)
        await queue.schedule("early", time.time() + 0.3)
        assert (await in_time(queue.receive())).item == "early"


async def test_a_round_looks_after_the_queue(client: TaskClient, open_queue: Open, db: redis.Redis) -> None:
    queue = client.queue("jobs")
    old = await queue.enqueue("a")
    await (await queue.receive()).complete("done")
    db.hset(f"blueque_task_{old}", "updated", time.time() - 100)
    await queue.enqueue("b")
    lost = await queue.receive(lease=0.1)
    await queue.schedule("c", time.time() - 5)
    scheduler = Scheduler(client, result_ttl=50)
    await eventually(lambda: looked(scheduler, db, lost.id))
    assert not db.exists(f"blueque_task_{old}")
    consistent(db)


async def looked(scheduler: Scheduler, db: redis.Redis, task_id: str) -> bool:
    await scheduler.round()
    return bool(db.hget(f"blueque_task_{task_id}", "status") == b"pending")


async def test_a_damaged_queue_disturbs_no_other(client: TaskClient, db: redis.Redis, caplog: Any) -> None:
    db.zadd("blueque_queues", {"broken": 0, "": 0, "\udcff".encode(errors="surrogateescape"): 0})
    db.set("blueque_scheduled_tasks_broken", "text")
    queue = client.queue("jobs")
    clock = FakeClock()
    await queue.schedule("x", clock.now + HOUR)
    scheduler = Scheduler(client, clock=clock)
    for _ in range(3):
        await scheduler.round()
    clock.now += HOUR + 1
    await scheduler.round()
    assert await queue.qsize() == 1
    assert sum("'broken'" in record.message for record in caplog.records) == 1
    db.delete("blueque_scheduled_tasks_broken", "blueque_queues")


async def test_a_scheduler_outlives_an_outage(make_server: Any) -> None:
    server = make_server()
    async with TaskClient(server.url, retry_timeout=0.2, connect_timeout=1) as client:
        queue: TaskQueue[Any] = client.queue("jobs")
        async with running(Scheduler(client)):
            await queue.enqueue("warm")
            await (await queue.receive()).complete()
            server.stop()
            await asyncio.sleep(1.0)
            server.start()
            async with TaskClient(server.url) as other:
                await other.queue("jobs").schedule("x", time.time() + 0.1)
                assert (await in_time(other.queue("jobs").receive())).item == "x"


def test_bad_arguments() -> None:
    client = TaskClient("redis://127.0.0.1:1")
    with pytest.raises(TypeError):
        Scheduler(client, "jobs")
    with pytest.raises(ValueError):
        Scheduler(client, [""])
    with pytest.raises(ValueError):
        Scheduler(client, result_ttl=0)
