"""Killed processes, restarts, lost replies, full servers, damaged keys: tasks for later are neither lost nor early."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import redis

from apressure import (
    OutOfMemoryError,
    QueueEmptyError,
    ServerError,
    TaskQueue,
)
from apressure.testing.proxy import Proxy, Trouble
from tests.integration.deaths import killed_at_random, start, url_of, workers
from tests.integration.tasks.conftest import Blueque, Open, consistent, eventually, in_time

EARLY = 0.005
"""Seconds: two clocks are read, and one of them by another process."""

HOUR = 3600.0


async def test_what_a_killed_process_has_given_back_for_later_comes_then(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many(range(20))
    async with workers() as running:
        running["1"] = await start("later", url_of(db), "1.5", "tasks")
        await eventually(lambda: len(running["1"].noted("back")) == 20)
        await running["1"].kill()
    given = {line.split()[1]: float(line.split()[2]) for line in running["1"].lines if line.startswith("back ")}
    assert db.zcard("blueque_scheduled_tasks_jobs") == 20
    assert (await queue.statistics()).in_flight == 0
    for _ in range(20):
        delivery = await in_time(queue.receive())
        assert time.time() >= given.pop(delivery.id) + 1.5 - EARLY
        assert (delivery.attempts, delivery.task.fields["failure"]) == (2, "ValueError\tnot yet")
        await delivery.complete()
    assert given == {}
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    consistent(db)


@pytest.mark.timeout(180)
async def test_killed_processes_lose_no_retry_and_are_not_early(open_queue: Open, url: str, db: redis.Redis) -> None:
    """Processes are killed at random while they give back tasks for later."""
    queue = await open_queue(lease=1.0)
    ids = [await queue.enqueue(number) for number in range(60)]
    dead = await killed_at_random(("retry", "retry"), 10, url, "tasks")
    await queue.close()
    async with asyncio.timeout(120), queue.consumer("manual") as consumer:
        async for delivery in consumer:
            if delivery.attempts < 3:
                await delivery.nack("again", delay=0.2)
            else:
                await delivery.complete()
    complete = [task async for task in queue.tasks("complete")]
    assert sorted(task.id for task in complete) == sorted(ids)
    lines = [line.split() for worker in dead for line in worker.lines if line != "ready"]
    given = {(task_id, int(attempt)): float(at) for word, task_id, attempt, at in lines if word == "gives"}
    got = Counter((task_id, int(attempt)) for word, task_id, attempt, _ in lines if word == "got")
    assert max(got.values(), default=1) == 1  # each attempt is one process's
    done = {(task_id, int(attempt)) for word, task_id, attempt, _ in lines if word == "gave"}
    for word, task_id, attempt, at in lines:
        if word == "got" and (task_id, int(attempt) - 1) in done:
            assert float(at) >= given[task_id, int(attempt) - 1] + 0.2 - EARLY
    consistent(db)


async def test_a_restart_of_the_server_neither_loses_nor_shortens_a_delay(make_server: Any, tmp_path: Path) -> None:
    server = make_server(directory=tmp_path / "data", config={"appendfsync": "always"})
    async with TaskQueue("jobs", url=server.url, retry_timeout=30.0) as queue:
        await queue.enqueue("b")
        delivery = await queue.receive()
        await delivery.nack(ValueError("not yet"), delay=3.0)
        begun = time.time()
        await queue.enqueue("a", delay=2.0)
        waiting = asyncio.create_task(queue.receive())
        await asyncio.sleep(0.2)
        await asyncio.to_thread(server.stop)
        await asyncio.sleep(0.2)
        await asyncio.to_thread(server.start)
        first = await in_time(waiting)
        assert time.time() >= begun + 2.0 - EARLY
        await first.complete()
        second = await in_time(queue.receive())
        assert time.time() >= begun + 3.0 - 0.1  # the time was taken before
        assert (first.item, second.item, second.attempts) == ("a", "b", 2)
        assert second.task.fields["failure"] == "ValueError\tnot yet"
        await second.complete()


async def test_a_lost_reply_of_a_delayed_put_neither_loses_nor_doubles(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue()
    async with Proxy(url_of(db)) as line, TaskQueue("jobs", url=line.url) as behind:
        await behind.put_many(["a", "b"], delay=HOUR)  # the server knows the script from here on
        line.trouble = Trouble(lose_next=1)
        task_id = await in_time(behind.enqueue("c", delay=HOUR))
        assert line.cuts == 1
        eta = db.zscore("blueque_scheduled_tasks_jobs", task_id)
        line.trouble = Trouble(lose_next=1)
        assert await in_time(behind.put_many(range(5), delay=HOUR)) == 5
        assert db.zscore("blueque_scheduled_tasks_jobs", task_id) == eta
    assert (await queue.statistics()).scheduled == 8
    assert db.zcard("blueque_scheduled_tasks_jobs") == len(set(db.lrange("blueque_tasks_jobs", 0, -1))) == 8
    consistent(db)


async def test_a_lost_reply_of_a_nack_for_later(open_queue: Open, db: redis.Redis) -> None:
    """The step is repeated after the task has come to another node: it changes nothing, and the nack has succeeded."""
    queue = await open_queue()
    await queue.enqueue("a")
    async with Proxy(url_of(db)) as line, TaskQueue("jobs", url=line.url) as behind:
        await (await behind.receive()).nack(delay=0.05)  # the server knows the script from here on
        delivery = await in_time(behind.receive(lease=600))
        line.trouble = Trouble(down=True, lose_next=1)
        giving_back = asyncio.create_task(delivery.nack(delay=0.2))
        other = await in_time(queue.receive(lease=600))
        await eventually(lambda: line.cuts == 1)
        line.trouble = Trouble()
        await in_time(giving_back)
    assert other.attempts == 3
    assert not db.exists("blueque_scheduled_tasks_jobs")
    await other.complete()
    consistent(db)


async def test_flushall(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.enqueue("a", delay=HOUR)
    held_id = await queue.enqueue("b")
    held = await queue.receive()
    waiting = asyncio.create_task(queue.receive())
    await asyncio.sleep(0.2)
    db.flushall()
    with pytest.raises(Exception, match=held_id):
        await held.nack("x", delay=0.1)
    assert not db.exists("blueque_scheduled_tasks_jobs")
    await queue.enqueue("c", delay=0.2)
    delivery = await in_time(waiting)
    assert delivery.item == "c"
    await delivery.complete()
    consistent(db)


async def test_a_full_server_keeps_retries_and_refuses_puts(make_server: Any) -> None:
    server = make_server(config={"maxmemory-policy": "noeviction"})
    with redis.Redis.from_url(server.url) as db:
        async with TaskQueue("jobs", url=server.url) as queue:
            await queue.enqueue("due", delay=0.3)
            await queue.enqueue("a")
            delivery = await queue.receive()
            db.config_set("maxmemory", 1)
            with pytest.raises(OutOfMemoryError):
                await queue.enqueue("x", delay=0.1)
            await asyncio.sleep(0.4)
            for put in (queue.enqueue("x"), queue.enqueue("x", delay=60)):
                with pytest.raises(OutOfMemoryError):
                    await put
            assert (await queue.statistics()).scheduled == 1
            await delivery.nack("again", delay=0.2)
            first, second = await in_time(queue.receive()), await in_time(queue.receive())
            assert [(first.item, first.attempts), (second.item, second.attempts)] == [("due", 1), ("a", 2)]
            await first.complete()
            await second.complete()
            assert (await queue.statistics()).scheduled == await queue.qsize() == 0
            consistent(db)


# What other programs have written.


async def test_a_scheduled_set_of_another_type(open_queue: Open, blueque: Blueque, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many(["a", "b"])
    first, second = await queue.receive_many(2)
    db.set("blueque_scheduled_tasks_jobs", "text")
    for operation in (queue.enqueue("x", delay=1), first.nack(delay=1), queue.receive(timeout=0), queue.statistics()):
        with pytest.raises(ServerError, match="WRONGTYPE"):
            await operation
    assert not first.settled
    await second.start()
    await second.complete("done")  # what has been done is noted in any case
    db.delete("blueque_scheduled_tasks_jobs")
    await first.nack(delay=0.1)
    again = await in_time(queue.receive())
    assert (again.id, again.attempts) == (first.id, 2)
    await again.complete()
    consistent(db)


async def test_scheduled_ids_without_tasks_and_times_that_are_none(queue: TaskQueue[Any], db: redis.Redis) -> None:
    db.zadd("blueque_scheduled_tasks_jobs", {"gone": 5, "list": float("-inf"), "never": float("inf")})
    db.rpush("blueque_task_list", "x")
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    assert db.zrange("blueque_scheduled_tasks_jobs", 0, -1) == [b"never"]
    assert (await queue.statistics()).next_due > HOUR  # type: ignore[operator]
    await queue.enqueue("a", delay=0.1)
    await (await in_time(queue.receive())).complete()
    db.delete("blueque_task_list", "blueque_scheduled_tasks_jobs")
    consistent(db)
