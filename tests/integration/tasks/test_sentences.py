"""Sentences of Blueque's document that no other test shows by itself."""

from __future__ import annotations

import os
import uuid
from collections.abc import Awaitable
from typing import Any

import pytest
import redis

from apressure import TaskClient, TaskQueue
from apressure.tasks.nodes import processes
from tests.integration.tasks.conftest import HERE, Blueque, Open, in_time


@pytest.mark.parametrize("fields", [None, {"exit_status": "0"}], ids=["usual case", "full step"])
async def test_every_change_of_a_task_moves_updated_and_leaves_created(
    client: TaskClient, blueque: Blueque, db: redis.Redis, fields: dict[str, str] | None
) -> None:
    queue = client.queue("jobs")
    task_id = await queue.enqueue("x")
    assert uuid.UUID(task_id).version
    created = blueque.task(task_id)["created"]
    assert abs(float(created) - float(blueque.task(task_id)["updated"])) < 60

    async def changes(operation: Awaitable[Any]) -> Any:
        db.hset(f"blueque_task_{task_id}", "updated", "1.0")
        result = await operation
        seen = blueque.task(task_id)
        assert (seen["updated"] != "1.0", seen["created"]) == (True, created)
        return result

    await changes((await changes(queue.receive())).nack("later"))
    await changes((await changes(queue.receive())).fail("why"))
    await changes(queue.retry(task_id))
    processor = client.processor((await changes(queue.receive())).task)
    await changes(processor.start(os.getpid()))
    await changes(processor.progress(0.5))
    await changes(processor.complete("done", fields=fields))


async def test_fields_are_set_no_earlier_than_the_document_says(client: TaskClient, blueque: Blueque) -> None:
    queue = client.queue("jobs")
    good, bad = await queue.enqueue("a"), await queue.enqueue("b")
    assert not {"node", "pid", "result", "error", "eta"} & set(blueque.task(good))
    first, second = await queue.receive_many(2)
    assert blueque.task(good)["node"] == HERE
    assert not {"pid", "result", "error", "eta"} & set(blueque.task(good))
    await first.start()
    assert not {"result", "error", "eta"} & set(blueque.task(good))
    await first.complete("done")
    await second.fail("broken")
    assert (blueque.task(good)["result"], "error" in blueque.task(good)) == ("done", False)
    assert (blueque.task(bad)["error"], "result" in blueque.task(bad)) == ("broken", False)


async def test_tasks_are_pushed_left_and_popped_right(queue: TaskQueue[Any], blueque: Blueque) -> None:
    tasks = [await queue.enqueue(number) for number in range(3)]
    assert blueque.ids("pending_tasks") == tasks[::-1]
    assert (await queue.receive()).id == tasks[0]
    assert blueque.ids("reserved_tasks", HERE) == tasks[:1]
    assert blueque.ids("pending_tasks") == tasks[:0:-1]


async def test_several_queues_have_lists_of_their_own(client: TaskClient, open_queue: Open, db: redis.Redis) -> None:
    one, other = await open_queue("one"), await open_queue("other")
    first, second = await one.enqueue("1"), await other.enqueue("2")
    assert [db.lrange(f"blueque_pending_tasks_{name}", 0, -1) for name in ("one", "other")] == [
        [first.encode()], [second.encode()],
    ]  # fmt: skip
    assert db.zrange("blueque_queues", 0, -1, withscores=True) == [(b"one", 0.0), (b"other", 0.0)]
    async with client.listener("other") as listener:
        assert (await in_time(anext(listener))).id == second
        assert db.zscore("blueque_queues", "other") == 1
        assert db.zscore("blueque_queues", "one") == 0
    assert (await one.receive()).id == first


async def test_a_listener_is_called_by_its_host_and_its_process(client: TaskClient, db: redis.Redis) -> None:
    async with client.listener("jobs"):
        assert db.smembers("blueque_listeners_jobs") == {f"{processes.host()}_{os.getpid()}".encode()}


async def test_messages_of_the_channel_name_no_task(queue: TaskQueue[Any], db: redis.Redis) -> None:
    with db.pubsub(ignore_subscribe_messages=True) as listening:
        listening.subscribe("blueque_channel_jobs")
        listening.get_message(timeout=5)
        task_id = await queue.enqueue("x")
        while (message := listening.get_message(timeout=30)) is None:
            pass
    assert task_id.encode() not in message["data"]
