"""Queues of tasks for tests; everything that a queue has is deleted at the end of each test."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

import pytest
import redis

from apressure import QueueDoesNotExistError, TaskClient, TaskQueue
from apressure.tasks.nodes import processes

PATIENCE = 90.0
"""Seconds after which an operation that should have ended has failed."""

HERE = f"{processes.host()}_{os.getpid()}"
"""The listener that this process is."""


class Open(Protocol):
    """`await open_queue("jobs", bound=2)`: an open queue; each has a client of its own."""

    async def __call__(self, name: str = "jobs", *, bound: int | None = None, **options: Any) -> TaskQueue[Any]: ...


class Blueque:
    """Writes what the released blueque 1.0.1 writes, command by command, and looks at the keys.

    Args:
        db: A plain client.
        name: The queue's name.
    """

    def __init__(self, db: redis.Redis, name: str = "jobs") -> None:
        self.db = db
        self.name = name

    def key(self, word: str, *more: str) -> str:
        return "_".join(("blueque", word, self.name, *more))

    def task(self, task_id: str) -> dict[str, str]:
        found = self.db.hgetall(f"blueque_task_{task_id}")
        return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in found.items()}

    def ids(self, word: str, *more: str) -> list[str]:
        return [one.decode() for one in self.db.lrange(self.key(word, *more), 0, -1)]

    def enqueue(self, task_id: str, parameters: str = "x", **fields: Any) -> str:
        now = time.time()
        common = {"queue": self.name, "parameters": parameters, "created": now, "updated": now}
        with self.db.pipeline() as pipe:
            pipe.hset(f"blueque_task_{task_id}", mapping={"status": "pending", **common, **fields})
            pipe.zincrby("blueque_queues", 0, self.name)
            pipe.lpush(self.key("pending_tasks"), task_id)
            pipe.execute()
        return task_id

    def schedule(self, task_id: str, eta: float) -> str:
        now = time.time()
        common = {"queue": self.name, "parameters": "x", "created": now, "updated": now}
        with self.db.pipeline() as pipe:
            pipe.hset(f"blueque_task_{task_id}", mapping={"status": "scheduled", **common, "eta": eta})
            pipe.zincrby("blueque_queues", 0, self.name)
            pipe.zadd(self.key("scheduled_tasks"), {task_id: eta})
            pipe.execute()
        return task_id

    def listen(self, listener: str) -> None:
        self.db.sadd(self.key("listeners"), listener)
        self.db.zincrby("blueque_queues", 1, self.name)

    def dequeue(self, listener: str, updated: float | None = None) -> str | None:
        found = self.db.rpoplpush(self.key("pending_tasks"), self.key("reserved_tasks", listener))
        if found is None:
            return None
        mapping = {"status": "reserved", "node": listener, "updated": updated or time.time()}
        self.db.hset(f"blueque_task_{found.decode()}", mapping=mapping)
        return str(found.decode())

    def start(self, task_id: str, listener: str, pid: int, updated: float | None = None) -> None:
        with self.db.pipeline() as pipe:
            pipe.sadd(self.key("started_tasks"), f"{listener} {pid} {task_id}")
            mapping = {"status": "started", "pid": pid, "updated": updated or time.time()}
            pipe.hset(f"blueque_task_{task_id}", mapping=mapping)
            pipe.execute()

    def complete(self, task_id: str, listener: str, pid: int, result: str) -> None:
        with self.db.pipeline() as pipe:
            pipe.lrem(self.key("reserved_tasks", listener), 1, task_id)
            pipe.srem(self.key("started_tasks"), f"{listener} {pid} {task_id}")
            mapping = {"status": "complete", "result": result, "updated": time.time()}
            pipe.hset(f"blueque_task_{task_id}", mapping=mapping)
            pipe.lpush(self.key("complete_tasks"), task_id)
            pipe.execute()


@pytest.fixture
def db(url: str) -> Iterator[redis.Redis]:
    """A plain client, to look at the keys and to change them."""
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture
def blueque(db: redis.Redis) -> Blueque:
    return Blueque(db)


@pytest.fixture
async def open_queue(url: str, db: redis.Redis) -> AsyncIterator[Open]:
    names = set()
    async with contextlib.AsyncExitStack() as stack:

        async def opener(name: str = "jobs", *, bound: int | None = None, **options: Any) -> TaskQueue[Any]:
            names.add(name)
            place = {} if "client" in options else {"url": url}
            queue: TaskQueue[Any] = TaskQueue(name, **{**place, **options})
            await stack.enter_async_context(queue)
            if bound is not None:
                await queue.create(bound)
            return queue

        yield opener
    for name in names:
        await wipe(url, db, name)


async def wipe(url: str, db: redis.Redis, name: str = "jobs") -> None:
    """Delete a queue, and listeners that a test has made up."""
    async with TaskQueue(name, url=url) as queue:
        with contextlib.suppress(QueueDoesNotExistError):
            await queue.delete()
    db.delete(f"blueque_listeners_{name}", f"apressure:blueque:nodes:{name}")
    db.zrem("blueque_queues", name)


@pytest.fixture
async def queue(open_queue: Open) -> TaskQueue[Any]:
    return await open_queue()


@pytest.fixture
async def client(url: str, db: redis.Redis) -> AsyncIterator[TaskClient]:
    async with TaskClient(url) as made:
        yield made
    await wipe(url, db)


async def in_time(operation: Any) -> Any:
    """Return the result of an operation that has to end."""
    async with asyncio.timeout(PATIENCE):
        return await operation


async def eventually(condition: Any) -> None:
    """Wait until a condition comes true."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = condition()
            if await answer if inspect.isawaitable(answer) else answer:
                return
            await asyncio.sleep(0.01)


def consistent(db: redis.Redis, name: str = "jobs") -> None:
    """Check that each task is in the one list that its status says, and each lease belongs to a task in hand."""
    found = Blueque(db, name)
    waiting = found.ids("pending_tasks")
    assert len(set(waiting)) == len(waiting)
    held = [one.decode() for key in db.scan_iter(f"blueque_reserved_tasks_{name}_*") for one in db.lrange(key, 0, -1)]
    ended = [*found.ids("complete_tasks"), *found.ids("failed_tasks")]
    scheduled = [one.decode() for one in db.zrange(found.key("scheduled_tasks"), 0, -1)]
    places = {"pending": waiting, "scheduled": scheduled, "reserved": held, "started": held}
    places |= {"complete": found.ids("complete_tasks"), "failed": found.ids("failed_tasks")}
    for task_id in (*waiting, *held, *ended, *scheduled):
        status = found.task(task_id).get("status", "")
        assert task_id in places[status], (task_id, status)
    everything = [*waiting, *held, *ended, *scheduled]
    assert len(set(everything)) == len(everything)
    leases = {one.decode() for one in db.zrange(f"apressure:blueque:leases:{name}", 0, -1)}
    assert leases <= {*held, *ended}  # the released blueque ends tasks, and leaves their leases
    assert {one.decode() for one in db.smembers(found.key("started_tasks"))} == {
        f"{task['node']} {task['pid']} {task_id}"
        for task_id in held
        if (task := found.task(task_id)).get("status") == "started"
    }
