"""What a program does with tasks: enqueue, listen, process, wait; and what the keys say then."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from apressure import (
    DeadLetter,
    DeadlineError,
    Failure,
    LeaseLostError,
    QueueClosedError,
    QueueEmptyError,
    QueueFullError,
    TaskClient,
    TaskDoesNotExistError,
    TaskFailedError,
    TaskQueue,
    TaskStatusError,
    TaskUnfinishedError,
)
from tests.integration.tasks.conftest import HERE, Blueque, Open, consistent, eventually, in_time


async def test_a_task_from_enqueue_to_its_result(client: TaskClient, blueque: Blueque, db: redis.Redis) -> None:
    queue = client.queue("jobs")
    task_id = await queue.enqueue({"file": "a.mov"})
    waiting = await client.task(task_id)
    assert (waiting.status, waiting.queue, waiting.parameters) == ("pending", "jobs", {"file": "a.mov"})
    assert (waiting.node, waiting.pid, waiting.result, waiting.error, waiting.eta) == (None,) * 5
    assert waiting.created is not None
    assert abs(waiting.created - time.time()) < 3600
    assert blueque.ids("pending_tasks") == blueque.ids("tasks") == [task_id]
    assert db.zscore("blueque_queues", "jobs") == 0
    assert await client.queues() == ["jobs"]
    async with client.listener("jobs") as listener:
        assert db.smembers("blueque_listeners_jobs") == {HERE.encode()}
        assert db.zscore("blueque_queues", "jobs") == 1
        task = await in_time(anext(listener))
        assert (task.id, task.status, task.node, task.attempts) == (task_id, "reserved", HERE, 1)
        assert blueque.ids("reserved_tasks", HERE) == [task_id]
        processor = client.processor(task)
        assert await processor.start(os.getpid()) == {"file": "a.mov"}
        assert db.smembers("blueque_started_tasks_jobs") == {f"{HERE} {os.getpid()} {task_id}".encode()}
        await processor.progress(0.4, "half of it")
        running = await task.refresh()
        assert (running.status, running.pid, running.progress) == ("started", os.getpid(), 0.4)
        assert running.progress_message == "half of it"
        consistent(db)
        await processor.complete({"size": 5}, fields={"exit_status": "0"})
        done = await task.refresh()
        assert (done.status, done.result, done.fields["exit_status"]) == ("complete", {"size": 5}, "0")
        assert await done.wait() == {"size": 5}
    assert not db.exists("blueque_listeners_jobs", f"blueque_reserved_tasks_jobs_{HERE}", "blueque_started_tasks_jobs")
    assert db.zscore("blueque_queues", "jobs") == 0
    assert blueque.ids("complete_tasks") == [task_id]
    consistent(db)


async def test_a_listener_without_a_block_ends_with_the_client(
    url: str, queue: TaskQueue[Any], db: redis.Redis
) -> None:
    await queue.put_many(["a", "b"])
    await queue.close()
    async with TaskClient(url) as client:
        async for task in client.listener("jobs"):
            await client.processor(task).complete(task.parameters.upper())
            if task.parameters == "b":
                break
        assert db.exists("blueque_listeners_jobs")
    assert not db.exists("blueque_listeners_jobs")
    assert [task.result async for task in queue.tasks("complete")] == ["B", "A"]


async def test_waiting_for_a_task(client: TaskClient) -> None:
    queue = client.queue("jobs")
    first, second, third = [await client.task(await queue.enqueue(number)) for number in range(3)]
    with pytest.raises(TaskUnfinishedError, match=first.id):
        await first.wait(timeout=0.05)
    waiting = [asyncio.create_task(one.wait()) for one in (first, second, third)]
    changed = asyncio.create_task(first.wait_for_change())
    one, two, three = await queue.receive_many(3)
    assert (await in_time(changed)).status == "reserved"
    await one.complete("done")
    assert await in_time(waiting[0]) == "done"
    await two.fail(ValueError("broken"))
    with pytest.raises(TaskFailedError, match="broken") as raised:
        await in_time(waiting[1])
    assert (raised.value.id, raised.value.error) == (second.id, "ValueError: broken")
    await three.fail("again")
    await queue.delete_task(third.id)
    with pytest.raises((TaskDoesNotExistError, TaskFailedError)):
        await in_time(waiting[2])
    with pytest.raises(TaskDoesNotExistError):
        await third.wait()


async def test_a_claim_that_is_over_changes_nothing(queue: TaskQueue[Any], url: str, db: redis.Redis) -> None:
    """A node that had the task before cannot end it: not the delivery, and no processor made from its snapshot."""
    await queue.enqueue("x")
    first = await queue.receive()
    async with TaskClient(url) as client:
        old, older = client.processor(first.task), client.processor(first.task)
        await first.nack("later")
        second = await queue.receive()
        assert (second.attempts, second.redelivered) == (2, True)
        for operation in (old.start(), old.progress(0.5), old.complete("a"), older.fail("b")):
            with pytest.raises(LeaseLostError):
                await operation
        new = client.processor(await client.task(second.id))
        await new.start()
        await new.complete("done")
        with pytest.raises(LeaseLostError):
            await second.complete("twice")
        with pytest.raises(RuntimeError):
            await new.complete("twice")
    consistent(db)


async def test_deliveries(queue: TaskQueue[Any], db: redis.Redis) -> None:
    await queue.put_many([1, "text", None])
    one, two, three = await queue.receive_many(5)
    assert [each.item for each in (one, two, three)] == [1, "text", None]
    assert [each.raw for each in (one, two, three)] == [b"1", b"text", b"null"]
    assert 10 < one.lease_left <= 15
    await one.extend(100)
    assert one.lease_left > 90
    await one.start()
    await one.complete()
    assert (await one.task.refresh()).result is None
    await two.fail("why")
    await three.nack()
    assert (await queue.statistics()).dead_letters == 1
    again = await queue.receive()
    assert (again.id, again.attempts) == (three.id, 2)
    with pytest.raises(TypeError):
        await again.complete(object())
    assert not again.settled
    with pytest.raises(ValueError, match="between 0 and 1"):
        await again.progress(2)
    with pytest.raises(ValueError, match="status"):
        await again.progress(fields={"status": "complete"})
    with pytest.raises(TypeError):
        await again.progress(fields={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="at most 100 fields"):
        await again.progress(fields={str(number): "" for number in range(101)})
    await again.progress(fields={str(number): "" for number in range(100)})
    await again.ack()
    consistent(db)


async def test_scheduling(queue: TaskQueue[Any], blueque: Blueque, db: redis.Redis) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    task_id = await queue.schedule("later", later)
    assert blueque.task(task_id)["status"] == "scheduled"
    assert (
        float(blueque.task(task_id)["eta"]) == later.timestamp() == db.zscore("blueque_scheduled_tasks_jobs", task_id)
    )
    now = await queue.schedule("now", time.time() - 5)
    assert blueque.task(now)["status"] == "pending"
    for bad in (datetime(2030, 1, 1), float("nan"), float("inf"), 60):  # noqa: DTZ001 (that is what is refused)
        with pytest.raises(ValueError, match="eta"):
            await queue.schedule("x", bad)
    with pytest.raises(TypeError):
        await queue.schedule("x", "tomorrow")  # type: ignore[arg-type]
    assert [task.id async for task in queue.tasks("scheduled")] == [task_id]
    consistent(db)


async def test_a_closed_queue_waits_for_scheduled_tasks(queue: TaskQueue[Any]) -> None:
    await queue.schedule("x", time.time() + 3600)
    await queue.close()
    with pytest.raises(QueueClosedError):
        await queue.enqueue("y")
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    assert await queue.purge("scheduled") == 1
    with pytest.raises(QueueClosedError):
        await queue.receive(timeout=0)


async def test_takers_that_leave_in_the_turn_of_the_answer_give_back_in_order(queue: TaskQueue[Any]) -> None:
    await queue.put_many([1, 2, 3])
    await queue.listener()  # from now on, a receive asks at once
    first, second, third = (asyncio.create_task(queue.receive_many(most, timeout=5)) for most in (1, 1, 2))
    lane, answered = queue._reservations, queue._reservations._answered

    def leave(answer: Any) -> None:
        third.cancel()  # what comes for it goes back at once,
        answered(answer)
        second.cancel()  # and what this one has got when its task runs

    await asyncio.sleep(0)
    lane._answered = leave  # type: ignore[method-assign]
    await first  # the step of the first one is on its way; the next one is for both others
    for task in (second, third):
        with pytest.raises(asyncio.CancelledError):
            await task
    del lane._answered  # type: ignore[attr-defined]
    assert [delivery.item for delivery in await queue.receive_many(5, timeout=5)] == [2, 3]


async def test_what_a_cancelled_iteration_has_reserved_does_not_wait_behind_a_long_task(queue: TaskQueue[Any]) -> None:
    async with queue.consumer("manual") as consumer:
        await queue.put_many(range(15))
        for _ in range(15):  # so it reserves more and more at a time
            (await in_time(anext(consumer))).ack_soon()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):  # longer than it takes for slowness to show
                await anext(consumer)
        await queue.put_many(range(40))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):  # while the step is on its way
                await anext(consumer)
        long = await in_time(anext(consumer))

        async def others_went_back() -> bool:
            return (await queue.statistics()).in_flight == 1

        await eventually(others_went_back)
        await long.ack()


async def test_cancelling_tasks(queue: TaskQueue[Any], client: TaskClient, db: redis.Redis) -> None:
    waiting, scheduled = await queue.enqueue("a"), await queue.schedule("b", time.time() + 3600)
    for task_id in (waiting, scheduled):
        assert await queue.cancel(task_id) is True
        task = await client.task(task_id)
        assert (task.status, task.error) == ("failed", "cancelled")
    with pytest.raises(TaskStatusError, match="failed"):
        await queue.cancel(waiting)
    running = await queue.enqueue("c")
    async with queue.consumer("manual", lease=3) as consumer:
        delivery = await in_time(anext(consumer))
        asked = asyncio.Event()
        delivery.on_cancel(asked.set)
        await delivery.start()
        assert await queue.cancel(running) is False
        await in_time(asked.wait())  # a renewal has found it
        assert delivery.cancel_requested
        assert (await client.task(running)).cancel_requested
        await delivery.fail("cancelled")
    with pytest.raises(TaskDoesNotExistError):
        await queue.cancel("none")
    with pytest.raises(TaskDoesNotExistError, match="jobs"):
        await client.queue("other").cancel(running)
    consistent(db)


async def test_retrying_and_deleting_tasks(open_queue: Open, client: TaskClient, db: redis.Redis) -> None:
    queue = await open_queue(bound=1)
    task_id = await queue.enqueue("a")
    with pytest.raises(TaskStatusError, match="pending"):
        await queue.retry(task_id)
    with pytest.raises(TaskStatusError, match="pending"):
        await queue.delete_task(task_id)
    await (await queue.receive()).fail("why")
    await queue.enqueue("b")
    retrying = asyncio.create_task(queue.retry(task_id))
    await (await queue.receive()).complete()
    await in_time(retrying)
    task = await client.task(task_id)
    assert (task.status, task.error, task.attempts) == ("pending", None, 0)
    await (await queue.receive()).complete("done")
    await queue.delete_task(task_id)
    with pytest.raises(TaskDoesNotExistError):
        await queue.delete_task(task_id)
    consistent(db)


async def test_listings(queue: TaskQueue[Any], db: redis.Redis) -> None:
    assert await queue.put_many(range(250)) == 250
    numbers = [task.parameters async for task in queue.tasks()]
    assert numbers == list(range(250))
    held = await queue.receive_many(3)
    await held[0].start()
    await held[1].complete()
    assert [task.parameters async for task in queue.tasks("reserved")] == [2]
    assert [task.parameters async for task in queue.tasks("started")] == [0]
    assert [task.parameters async for task in queue.tasks("complete")] == [1]
    assert len([task async for task in queue.tasks()]) == 250
    with pytest.raises(ValueError, match="status"):
        [task async for task in queue.tasks("succeeded")]
    assert db.llen("blueque_tasks_jobs") == 250
    assert await queue.purge() == 247
    assert db.llen("blueque_tasks_jobs") < 100  # what was deleted has left that list, too


async def test_results_expire(open_queue: Open, db: redis.Redis, client: TaskClient) -> None:
    queue = await open_queue(result_ttl=60)
    old, new = await queue.enqueue("a"), await queue.enqueue("b")
    await (await queue.receive()).complete("old")
    db.hset(f"blueque_task_{old}", "updated", time.time() - 61)
    await (await queue.receive()).complete("new")
    with pytest.raises(TaskDoesNotExistError):
        await client.task(old)
    assert await (await client.task(new)).wait() == "new"
    assert db.llen("blueque_complete_tasks_jobs") == 1
    consistent(db)


async def test_an_added_dead_letter_expires_after_it_was_added(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue(result_ttl=60)
    old = [
        DeadLetter(text, text.encode(), 2, Failure("E", "bad", 2), float(when), bytes)
        for when, text in enumerate("abcd")
    ]
    assert await queue.add_dead_letters(old) == 4
    await queue.put_many(range(3))
    await (await queue.receive()).complete()
    found = await queue.dead_letters()
    assert [(one.raw, one.when) for one in found] == [(one.raw, one.when) for one in old]
    assert await queue.discard([found[0]]) == await queue.requeue(ids=[found[1]]) == 1
    await (await queue.receive()).fail("again")
    assert (await queue.dead_letters())[-1].when == pytest.approx(time.time(), abs=3600)
    db.hset(f"blueque_task_{found[2].id}", "updated", time.time() - 61)
    await (await queue.receive()).complete()
    assert found[2].id not in [one.id for one in await queue.dead_letters()]
    assert (await queue.dead_letters())[0].when == 3.0
    consistent(db)


async def test_purging(queue: TaskQueue[Any], db: redis.Redis) -> None:
    await queue.put_many(range(2500))
    for delivery in await queue.receive_many(1000):
        delivery.ack_soon()
    for delivery in await queue.receive_many(500):
        await delivery.fail("x")
    await eventually(lambda: db.llen("blueque_complete_tasks_jobs") == 1000)
    assert await queue.purge("complete", older_than=3600) == 0
    seen: list[int] = []
    assert await queue.purge("complete", on_progress=seen.append) == 1000
    assert seen == [250, 500, 750, 1000]
    assert await queue.purge("failed") == 500
    assert await queue.purge() == 1000
    assert db.keys("blueque_task_*") == []
    with pytest.raises(ValueError, match="status"):
        await queue.purge("started")  # type: ignore[arg-type]
    assert await queue.exists()


async def test_deleting_a_queue_leaves_nothing(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue("gone", bound=0)
    await queue.put_many(range(30))
    await queue.schedule("x", time.time() + 3600)
    held = await queue.receive_many(4)
    await held[0].complete()
    await held[1].fail("x")
    await held[2].start()
    await queue.delete()
    assert [key for key in db.keys("*") if not key.startswith(b"apressure:blueque:op:")] == []
    with pytest.raises(TaskDoesNotExistError):
        await held[2].complete()


@pytest.mark.parametrize("by", ["receive", "consumer"])
async def test_deleting_a_queue_of_which_a_consumer_has_left(open_queue: Open, db: redis.Redis, by: str) -> None:
    """One of two consumers of a process leaves, while the other one has a task in hand."""
    queue = await open_queue("gone", bound=0)
    await queue.put_many(range(3))
    with pytest.raises(TaskDoesNotExistError):
        async with contextlib.AsyncExitStack() as stack:
            if by == "receive":
                delivery = await queue.receive()
            else:
                await anext(await stack.enter_async_context(queue.consumer()))
            async with queue.consumer():
                pass
            await queue.delete()
            if by == "receive":
                await delivery.ack()
    assert [key for key in db.keys("*") if not key.startswith(b"apressure:blueque:op:")] == []


async def test_a_consumer_of_a_deleted_queue_leaves_nothing(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue("gone", bound=0)
    async with queue.consumer():
        await queue.delete()
    assert [key for key in db.keys("*") if not key.startswith(b"apressure:blueque:op:")] == []


async def test_a_latency_of_milliseconds(open_queue: Open) -> None:
    """A waiting listener is told of a task: it does not find it by looking every second."""
    queue, other = await open_queue(), await open_queue()
    await other.put_many([0])
    await (await queue.receive()).ack()
    waits = []
    for number in range(20):
        waiting = asyncio.create_task(queue.receive())
        while not (await queue.statistics()).waiting_receivers:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        begun = time.perf_counter()
        await other.enqueue(number)
        delivery = await in_time(waiting)
        waits.append(time.perf_counter() - begun)
        await delivery.ack()
    assert sorted(waits)[10] < 0.5  # milliseconds on a machine that has nothing else to do


async def test_what_the_release_enqueues_is_found_within_a_second(queue: TaskQueue[Any], blueque: Blueque) -> None:
    waiting = asyncio.create_task(queue.receive())
    await asyncio.sleep(0.2)
    blueque.enqueue("a", '{"file": "b.mov"}')
    delivery = await in_time(waiting)
    assert (delivery.id, delivery.item) == ("a", {"file": "b.mov"})
    await delivery.complete("done")


async def test_scheduling_waits_for_room(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue(bound=2)
    await queue.schedule("later", time.time() + 3600)
    await queue.enqueue("a")
    with pytest.raises(QueueFullError):
        await queue.schedule("b", time.time() + 3600, timeout=0)
    waiting = asyncio.create_task(queue.schedule("b", time.time() + 3600))
    while queue._puts._parked is None:
        await asyncio.sleep(0.01)
    await (await queue.receive()).complete()
    await in_time(waiting)
    assert (await queue.statistics()).scheduled == 2
    assert await queue.purge("scheduled") == 2
    await queue.put_many(range(2), timeout=0)
    consistent(db)


async def test_deadlines(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue(bound=1)
    assert await queue.enqueue("a", deadline=60)
    with pytest.raises(DeadlineError):
        await queue.enqueue("b", deadline=0.05)
    with pytest.raises(DeadlineError) as raised:
        await queue.put_many(["b", "c"], deadline=0.05)
    assert raised.value.accepted == 0
    assert (await queue.receive(deadline=60)).item == "a"
    for operation in (
        queue.receive(deadline=0.05),
        queue.receive_many(3, deadline=0),
        queue.put_nowait("x", deadline=0),
    ):
        with pytest.raises(DeadlineError):
            await operation
    with pytest.raises(ValueError):
        await queue.schedule("x", time.time(), deadline=-1)
    consistent(db)
