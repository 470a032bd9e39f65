"""Tasks that wait for their time: Blueque's scheduled tasks, which our steps enqueue without a scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from apressure import (
    LeaseLostError,
    QueueClosedError,
    TaskClient,
    TaskQueue,
)
from apressure.sync import Queue
from apressure.tasks import Scheduler
from apressure.tasks.engine import waits
from tests.blueque import Release
from tests.integration.tasks.conftest import Blueque, Open, consistent, in_time

EARLY = 0.005
"""Seconds: two clocks are read, and one of them by another process."""

HOUR = 3600.0


@pytest.fixture
def release(blueque_python: Path, url: str, db: redis.Redis) -> Iterator[Callable[[], Release]]:
    """Start processes of the released library."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(Release(blueque_python, url))
    db.flushdb()


async def test_a_delayed_put_is_a_scheduled_task_of_blueque(
    queue: TaskQueue[Any], blueque: Blueque, db: redis.Redis
) -> None:
    at = datetime.now(UTC) + timedelta(hours=1, microseconds=-datetime.now(UTC).microsecond % 1000)
    first, second = await queue.put("at", at=at), await queue.enqueue("delay", delay=60)
    assert await queue.put_many(["a", "b"], delay=2 * HOUR) == 2
    score = db.zscore("blueque_scheduled_tasks_jobs", first)
    assert abs(score - at.timestamp()) < 0.001
    for task_id in (first, second):
        task = blueque.task(task_id)
        assert task["status"] == "scheduled"
        assert float(task["eta"]) == db.zscore("blueque_scheduled_tasks_jobs", task_id)
    assert [task.parameters async for task in queue.tasks("scheduled")] == ["delay", "at", "a", "b"]
    statistics = await queue.statistics()
    assert statistics.delayed == statistics.scheduled == 4
    assert statistics.next_due == pytest.approx(60, abs=5)
    consistent(db)


async def test_many_for_the_same_time_stay_in_order(queue: TaskQueue[Any], db: redis.Redis) -> None:
    at = datetime.now(UTC) + timedelta(seconds=1.5)
    assert await queue.put_many(range(2500), at=at) == 2500
    assert await queue.put_many(range(2500, 2520), delay=2.0) == 20
    assert [task.parameters async for task in queue.tasks("scheduled")] == list(range(2520))
    got: list[Any] = []
    while len(got) < 2520:
        got += await in_time(queue.get_many(1000))
    assert got == list(range(2520))
    assert time.time() > at.timestamp() - EARLY
    consistent(db)


async def test_a_task_that_is_given_back_for_later(
    queue: TaskQueue[Any], client: TaskClient, blueque: Blueque, db: redis.Redis
) -> None:
    task_id = await queue.enqueue("a")
    delivery = await queue.receive()
    await delivery.start()
    await delivery.progress(0.5)
    begun = time.time()
    await delivery.nack(ValueError("not yet"), delay=0.5)
    task = await client.task(task_id)
    assert (task.status, task.attempts, task.fields["failure"]) == ("scheduled", 1, "ValueError\tnot yet")
    assert task.eta is not None
    assert begun + 0.5 - EARLY < task.eta == db.zscore("blueque_scheduled_tasks_jobs", task_id)
    assert task.error is None
    assert (await queue.statistics()).in_flight == (await queue.statistics()).started == 0
    assert not db.exists("apressure:blueque:leases:jobs", f"blueque_reserved_tasks_jobs_{task.node}")
    consistent(db)
    with pytest.raises(RuntimeError, match="settled"):
        await delivery.complete()
    again = await in_time(queue.receive())
    assert time.time() >= task.eta
    assert (again.id, again.attempts, again.task.fields["failure"]) == (task_id, 2, "ValueError\tnot yet")
    assert again.task.progress is None
    await again.complete("done")
    assert (await client.task(task_id)).result == "done"
    consistent(db)


async def test_consumers_give_back_for_later(queue: TaskQueue[Any], db: redis.Redis) -> None:
    await queue.put_many(range(10))
    await queue.close()
    seen: Counter[Any] = Counter()
    async with asyncio.timeout(60), queue.consumer("manual") as consumer:
        async for delivery in consumer:
            seen[delivery.item] += 1
            assert delivery.attempts == seen[delivery.item]
            if seen[delivery.item] < 3:
                await delivery.nack("again", delay=0.05 * (1 + delivery.item % 3))
            else:
                await delivery.complete()
    assert seen == dict.fromkeys(range(10), 3)
    consistent(db)


async def test_the_last_attempt_has_no_delay(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue(max_attempts=1)
    await queue.enqueue("a")
    await (await queue.receive()).nack("broken", delay=HOUR)
    (letter,) = await queue.dead_letters()
    assert (letter.item, letter.attempts, letter.reason) == ("a", 1, "broken")
    assert (await queue.statistics()).dead_lettered_count == 1
    assert not db.exists("blueque_scheduled_tasks_jobs")
    assert await queue.requeue() == 1
    again = await queue.receive(timeout=0)
    assert again.attempts == 1
    await again.ack()
    consistent(db)


async def test_a_task_that_somebody_cancels_while_it_waits_for_its_time(
    queue: TaskQueue[Any], client: TaskClient, db: redis.Redis
) -> None:
    ids = [await queue.enqueue(number) for number in range(2)]
    first, second = await queue.receive_many(2)
    assert not await queue.cancel(ids[0])
    await first.nack(delay=HOUR)
    await second.nack(delay=HOUR)
    assert await queue.cancel(ids[1])
    assert [(task.status, task.error) for task in [await client.task(one) for one in ids]] == [
        ("failed", "cancelled")
    ] * 2
    consistent(db)


async def test_a_claim_that_is_lost_schedules_nothing(queue: TaskQueue[Any], db: redis.Redis) -> None:
    await queue.enqueue("a")
    late = await queue.receive(lease=0.1)
    other = await in_time(queue.receive())
    with pytest.raises(LeaseLostError):
        await late.nack("late", delay=0.1)
    assert not db.exists("blueque_scheduled_tasks_jobs")
    await other.complete()
    consistent(db)


@pytest.mark.parametrize("step", ["put", "complete", "nack", "statistics"])
async def test_each_step_that_writes_enqueues_what_is_due(queue: TaskQueue[Any], db: redis.Redis, step: str) -> None:
    await queue.enqueue("held")
    held = await queue.receive()
    await queue.put_many(range(150), delay=0.1)
    await asyncio.sleep(0.3)
    match step:
        case "put":
            await queue.enqueue("x")
        case "complete":
            await held.complete()
        case "nack":
            await held.nack()
    assert db.zcard("blueque_scheduled_tasks_jobs") == (150 if step == "statistics" else 50)
    assert (await queue.statistics()).next_due == 0
    consistent(db)


async def test_a_usual_case_enqueues_what_is_due(queue: TaskQueue[Any], db: redis.Redis) -> None:
    """A single put, and a task that starts and completes, have scripts of their own."""
    await queue.enqueue("held")
    held = await queue.receive()
    await held.start()
    await queue.enqueue("later", delay=0.1)
    await asyncio.sleep(0.3)
    await held.complete()
    assert await queue.qsize() == 1
    await queue.enqueue("later", delay=0.1)
    await asyncio.sleep(0.3)
    await queue.enqueue("now")
    assert await queue.qsize() == 3
    consistent(db)


async def test_a_consumer_knows_the_time_without_looking(open_queue: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a look each second nor a scheduler: the step says when the next task is due."""
    monkeypatch.setattr(waits, "POLL", 600.0)
    queue, other = await open_queue(), await open_queue()
    await other.enqueue("late", delay=HOUR)
    waiting = [asyncio.create_task(queue.receive()) for _ in range(3)]
    await asyncio.sleep(0.5)  # it listens to the channel by now
    await other.enqueue("second", delay=1.0)
    await other.enqueue("first", delay=0.5)
    await other.enqueue("held")
    deliveries = [await in_time(one) for one in waiting]
    assert sorted(one.item for one in deliveries) == ["first", "held", "second"]
    for delivery in deliveries:
        await delivery.complete()
    again = asyncio.create_task(queue.receive())
    await other.enqueue("retried")
    retried = await in_time(again)
    again = asyncio.create_task(queue.receive())
    await asyncio.sleep(0.1)
    await retried.nack(delay=0.3)
    assert (await in_time(again)).attempts == 2


async def test_purging(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue(bound=5)
    await queue.put_many(range(2))
    await queue.put_many(range(2, 5), delay=HOUR)
    waiting = asyncio.create_task(queue.enqueue("x"))
    while queue._puts._parked is None:
        await asyncio.sleep(0.01)
    assert await queue.purge(older_than=HOUR) == 0
    assert await queue.purge("scheduled") == 3
    await in_time(waiting)
    assert await queue.purge("pending") == 3
    await queue.enqueue("a", delay=HOUR)
    await queue.enqueue("b")
    assert await queue.purge() == 2
    assert (await queue.statistics()).deleted_count == 8
    consistent(db)


async def test_those_that_wait_for_the_end_learn_that_what_was_scheduled_is_gone(open_queue: Open) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.enqueue("a", delay=HOUR)
    await queue.close()
    waiting = asyncio.create_task(queue.receive())
    await asyncio.sleep(0.2)
    assert await other.purge() == 1
    with pytest.raises(QueueClosedError):
        await in_time(waiting)


async def test_without_asyncio(url: str, open_queue: Open) -> None:
    await open_queue()

    def work() -> tuple[int, Any]:
        with Queue(TaskQueue("jobs", url=url)) as queue:
            queue.put("a", delay=0.2)
            delivery = queue.receive(timeout=30)
            delivery.nack("again", delay=0.2)
            again = queue.receive(timeout=30)
            attempts = again.attempts
            again.ack()
            queue.schedule("b", time.time() + HOUR, timeout=0)
            return attempts, queue.purge()

    assert await asyncio.to_thread(work) == (2, 1)


# The released blueque.


async def test_what_the_release_schedules_comes_without_a_scheduler(
    client: TaskClient, release: Callable[[], Release]
) -> None:
    other, queue = release(), client.queue("jobs")
    waiting = asyncio.create_task(queue.receive())
    await asyncio.sleep(0.2)
    eta = time.time() + 1.5
    task_id = other("schedule", "jobs", "x", eta)
    delivery = await in_time(waiting)
    assert delivery.id == task_id
    assert time.time() >= eta
    await delivery.complete("done")
    assert other("task", task_id)["status"] == "complete"


async def test_the_release_sees_a_retry_and_runs_it(
    client: TaskClient, release: Callable[[], Release], db: redis.Redis
) -> None:
    other, queue = release(), client.queue("jobs")
    task_id = other("enqueue", "jobs", "x")
    delivery = await in_time(queue.receive())
    await delivery.start()
    await delivery.nack("again", delay=0.3)
    assert other("task", task_id)["status"] == "scheduled"
    other("enqueue_due_tasks", "jobs")
    assert other("poll", "jobs") is None
    await asyncio.sleep(0.4)
    other("enqueue_due_tasks", "jobs")
    assert other("task", task_id)["status"] == "pending"
    assert other("poll", "jobs")["id"] == task_id
    assert other("start", task_id) == "x"
    other("complete", task_id, "done")
    task = await client.task(task_id)
    assert (task.status, task.result, task.attempts) == ("complete", "done", 1)
    assert not db.exists("blueque_scheduled_tasks_jobs", "blueque_pending_tasks_jobs")


@pytest.mark.timeout(180)
async def test_each_due_task_is_enqueued_once_whoever_looks(
    client: TaskClient, url: str, release: Callable[[], Release], db: redis.Redis
) -> None:
    """Schedulers of the release and ours, and consumers on both sides, while tasks become due."""
    looking, polling = release(), release()
    queue, total = client.queue("jobs"), 300
    run: list[str] = []
    ended = asyncio.Event()
    begun = time.time()

    async def look() -> None:
        while not ended.is_set():
            await asyncio.to_thread(looking, "enqueue_due_tasks", "jobs")

    async def poll() -> None:
        while not ended.is_set():
            if (task := await asyncio.to_thread(polling, "poll", "jobs")) is None:
                await asyncio.sleep(0.01)
                continue
            run.append(json.loads(await asyncio.to_thread(polling, "start", task["id"])))
            await asyncio.to_thread(polling, "complete", task["id"], "done")

    async def consume() -> None:
        async with TaskQueue("jobs", url=url) as own, own.consumer("manual") as consumer:
            async for delivery in consumer:
                if delivery.attempts == 1 and int(delivery.item) % 3 == 0:
                    await delivery.nack("again", delay=0.3)
                    continue
                assert time.time() >= begun + int(delivery.item) / 100
                run.append(str(delivery.item))
                await delivery.complete()

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in (look(), poll(), consume(), Scheduler(client).run())]
        for number in range(total):
            await queue.schedule(str(number), begun + number / 100)
        while len(run) < total:
            await asyncio.sleep(0.05)
        ended.set()
        await asyncio.sleep(0.2)
        for task in tasks[2:]:
            task.cancel()
    assert sorted(run, key=int) == [str(number) for number in range(total)]
    assert not db.exists("blueque_scheduled_tasks_jobs", "blueque_pending_tasks_jobs")
    assert (await queue.statistics()).complete == total
