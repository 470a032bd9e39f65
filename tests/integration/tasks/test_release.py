"""The released blueque 1.0.1 at the other end, in each role, and dying between its steps."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from apressure import TaskFailedError, TaskStatusError
from apressure.tasks import Listener, Scheduler, Task, TaskClient
from apressure.tasks.codec import decoded
from apressure.tasks.nodes.consumer import TaskConsumer
from tests.blueque import Release
from tests.integration.commands import environment, running
from tests.integration.tasks.conftest import HERE, eventually

pytestmark = [
    pytest.mark.leaves_keys("blueque_*", "apressure:blueque:*"),
    pytest.mark.parametrize("server", ["valkey"], indirect=True),  # the release does not tell them apart
]

PATIENCE = 60.0

QUEUES = ("jobs", "video.encode", "a_b:c {d} ü 🎬", "jobs_complete", "_")
TEXTS = ("", "x", "plain text", "1", "null", '"quoted"', '{"a": [1, 2]}', "ünïcödé 🎬\n\t\x00", "[broken", "NaN", "-0")

Start = Callable[[], Release]


@pytest.fixture
def start(blueque_python: Path, url: str) -> Iterator[Start]:
    """Start processes of the released library."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(Release(blueque_python, url))


@pytest.fixture
def release(start: Start) -> Release:
    return start()


async def aside(release: Release, command: str, *arguments: Any) -> Any:
    """Have the release do something while our event loop runs."""
    return await asyncio.to_thread(release, command, *arguments)


async def reserve(listener: Listener) -> Task:
    """The next task of a listener of ours."""
    async with asyncio.timeout(PATIENCE):
        return await anext(listener)


def lists(db: redis.Redis, queue: str) -> dict[str, list[str]]:
    """What is in the lists, sets and sorted sets of a queue, except the list of all tasks."""
    found = {}
    for kind in ("pending", "scheduled", "started", "complete", "failed"):
        key = f"blueque_{kind}_tasks_{queue}"
        found[kind] = {
            b"none": lambda key: [],
            b"list": lambda key: db.lrange(key, 0, -1),
            b"set": db.smembers,
            b"zset": lambda key: db.zrange(key, 0, -1),
        }[db.type(key)](key)
    for key in db.scan_iter(f"blueque_reserved_tasks_{queue}_*", count=1000):
        found.setdefault("reserved", []).extend(db.lrange(key, 0, -1))
    return {kind: sorted(each.decode() for each in items) for kind, items in found.items() if items}


class Role:
    """Either side, with the same words."""

    def __init__(self, client: TaskClient, release: Release, queue: str, ours: bool) -> None:
        self.client, self.release, self.queue, self.ours = client, release, queue, ours

    async def enqueue(self, text: str) -> str:
        if self.ours:
            return await self.client.queue(self.queue).enqueue(text)
        return str(self.release("enqueue", self.queue, text))

    async def listen(self, listener: Listener) -> str:
        if self.ours:
            return (await reserve(listener)).id
        return str((await aside(self.release, "listen", self.queue))["id"])

    async def process(self, task_id: str, fail: bool) -> None:
        if self.ours:
            processor = self.client.processor(await self.client.task(task_id))
            assert await processor.start(os.getpid()) == "plain text"
            assert (await self.client.task(task_id)).status == "started"
            await (processor.fail("why ü") if fail else processor.complete("done ü"))
        else:
            assert self.release("start", task_id) == "plain text"
            assert self.release("task", task_id)["status"] == "started"
            self.release("fail" if fail else "complete", task_id, "why ü" if fail else "done ü")

    async def delete(self, task_id: str) -> None:
        if self.ours:
            await self.client.queue(self.queue).delete_task(task_id)
        else:
            self.release("delete_task", self.queue, task_id)


@pytest.mark.parametrize("fail", [False, True], ids=["complete", "fail"])
@pytest.mark.parametrize("processes", [True, False], ids=["ours processes", "release processes"])
@pytest.mark.parametrize("listens", [True, False], ids=["ours listens", "release listens"])
@pytest.mark.parametrize("enqueues", [True, False], ids=["ours enqueues", "release enqueues"])
async def test_either_side_in_each_role(
    client: TaskClient, release: Release, db: redis.Redis, enqueues: bool, listens: bool, processes: bool, fail: bool
) -> None:
    queue = "a_b:c {d} ü 🎬"

    def role(ours: bool) -> Role:
        return Role(client, release, queue, ours)

    async with client.listener(queue) as listener:
        for deletes in (True, False):
            task_id = await role(enqueues).enqueue("plain text")
            assert lists(db, queue) == {"pending": [task_id]}
            assert await role(listens).listen(listener) == task_id
            assert lists(db, queue) == {"reserved": [task_id]}
            theirs, ours = release("task", task_id), await client.task(task_id)
            assert theirs["status"] == ours.status == "reserved"
            assert theirs["node"] == ours.node == (HERE if listens else release.node)
            await role(processes).process(task_id, fail)
            assert lists(db, queue) == {"failed" if fail else "complete": [task_id]}
            theirs, ours = release("task", task_id), await client.task(task_id)
            assert theirs["status"] == ours.status == ("failed" if fail else "complete")
            assert theirs["pid"] == ours.pid == (os.getpid() if processes else release.pid)
            assert theirs["error" if fail else "result"] == ("why ü" if fail else "done ü")
            assert (ours.error if fail else ours.result) == ("why ü" if fail else "done ü")
            assert (theirs["created"], theirs["updated"]) == (ours.created, ours.updated)
            await role(deletes).delete(task_id)
            assert lists(db, queue) == {}
            assert not db.exists(f"blueque_task_{task_id}")
            assert release("task", task_id)["status"] is None


async def test_texts_and_names_pass_unchanged(client: TaskClient, release: Release) -> None:
    """Ours writes a string that is JSON as a JSON string, and reads JSON of the release as what it stands for."""
    for queue in QUEUES:
        for text in TEXTS:
            theirs = release("enqueue", queue, text)
            ours = await client.queue(queue).enqueue(text)
            assert (release("poll", queue)["id"], release("poll", queue)["id"]) == (theirs, ours)
            task = await client.task(theirs)
            assert (task.queue, task.fields["parameters"], task.parameters) == (queue, text, decoded(text))
            seen = release("task", ours)
            assert seen["queue"] == queue
            assert seen["parameters"] in (text, json.dumps(text, ensure_ascii=False))
            assert (await client.task(ours)).parameters == text
            for task_id in (theirs, ours):
                release("start", task_id)
                release("complete", task_id, text)
                await client.queue(queue).delete_task(task_id)
    assert sorted(await client.queues()) == sorted(QUEUES)


async def test_the_release_reads_our_parameters_and_results_as_json(client: TaskClient, release: Release) -> None:
    parameters = {"file": "a ü.mov", "sizes": [1, 2.5, None, True]}
    task_id = await client.queue("jobs").enqueue(parameters)
    assert json.loads(release("poll", "jobs")["parameters"]) == parameters
    processor = client.processor(await client.task(task_id))
    assert await processor.start(os.getpid()) == parameters
    await processor.complete([parameters])
    assert json.loads(release("task", task_id)["result"]) == [parameters]


@pytest.mark.parametrize("ours", [True, False], ids=["ours schedules", "release schedules"])
async def test_either_side_enqueues_what_the_other_one_scheduled(
    client: TaskClient, release: Release, db: redis.Redis, ours: bool
) -> None:
    queue, eta = client.queue("jobs"), time.time() + 1.5
    task_id = await queue.schedule("x", eta) if ours else release("schedule", "jobs", "x", eta)
    assert lists(db, "jobs") == {"scheduled": [task_id]}
    task = await client.task(task_id)
    assert (task.status, task.eta) == ("scheduled", pytest.approx(eta))
    assert release("task", task_id)["status"] == "scheduled"
    if ours:
        release("enqueue_due_tasks", "jobs")
        assert lists(db, "jobs") == {"scheduled": [task_id]}
        await asyncio.sleep(max(0.0, eta - time.time()))
        release("enqueue_due_tasks", "jobs")
    else:
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            scheduling = group.create_task(Scheduler(client).run())
            while (await client.task(task_id)).status == "scheduled":
                await asyncio.sleep(0.05)
            scheduling.cancel()
    assert time.time() >= eta
    assert lists(db, "jobs") == {"pending": [task_id]}
    assert (await client.task(task_id)).status == release("task", task_id)["status"] == "pending"


async def test_a_waiting_listener_finds_what_the_release_enqueues(client: TaskClient, release: Release) -> None:
    """The release publishes nothing."""
    async with client.listener("jobs") as listener:
        waiting = asyncio.create_task(reserve(listener))
        await asyncio.sleep(0.3)
        task_id = release("enqueue", "jobs", "x")
        assert (await waiting).id == task_id


async def test_the_counts_of_nodes(client: TaskClient, start: Start, db: redis.Redis) -> None:
    def nodes() -> tuple[float | None, set[str]]:
        return db.zscore("blueque_queues", "jobs"), {each.decode() for each in db.smembers("blueque_listeners_jobs")}

    first = start()
    first("register", "jobs")
    async with client.listener("jobs"):
        assert nodes() == (2, {first.node, HERE})
        assert HERE.rpartition("_")[0] == first.node.rpartition("_")[0]
        second = start()
        assert second("claim_orphan", "jobs") is None  # both of us are alive
        assert nodes() == (3, {first.node, second.node, HERE})
    assert nodes() == (2, {first.node, second.node})
    first.kill()
    async with client.listener("jobs"):
        await eventually(lambda: nodes() == (2, {second.node, HERE}))
    assert nodes() == (1, {second.node})


async def test_a_hundred_tasks_in_all_directions(client: TaskClient, start: Start, db: redis.Redis) -> None:
    """Two listeners of the release and two of ours, while both sides enqueue: each task is run once."""
    releases, queue = [start(), start()], client.queue("jobs")
    total, done = 100, asyncio.Event()
    run: list[str] = []

    def finished() -> None:
        if len(run) == total:
            done.set()

    async def enqueue() -> None:
        for number in range(total // 2):
            await aside(releases[0], "enqueue", "jobs", f"theirs {number}")
            await queue.enqueue(f"ours {number}")

    async def theirs(release: Release) -> None:
        while not done.is_set():
            task = await aside(release, "poll", "jobs")
            if task is None:
                await asyncio.sleep(0.01)
                continue
            run.append(await aside(release, "start", task["id"]))
            await aside(release, "complete", task["id"], "done")
            finished()

    async def ours() -> None:
        async with client.listener("jobs") as listener:
            async for task in listener:
                processor = client.processor(task)
                run.append(await processor.start(os.getpid()))
                await processor.complete("done")
                finished()

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        listening = [group.create_task(ours()) for _ in range(2)]
        group.create_task(enqueue())
        asking = [group.create_task(theirs(releases[1]))]
        await done.wait()
        await asyncio.wait(asking)
        for task in listening:
            task.cancel()
    assert sorted(run) == sorted(f"{side} {number}" for side in ("ours", "theirs") for number in range(total // 2))
    assert {kind: len(items) for kind, items in lists(db, "jobs").items()} == {"complete": total}


def killed_node(url: str, queue: str, tasks: int, started: int = 0) -> Any:
    """Have a node of ours reserve tasks, and kill it."""
    command = [sys.executable, "-m", "tests.integration.tasks.nodes", url, queue, str(tasks), str(started)]
    with running(command, env=environment()) as process:
        assert process.stdout is not None
        return json.loads(process.stdout.readline())


async def finish(client: TaskClient, listener: Listener, *expected: str) -> None:
    """Our listener gets these tasks, in any order, and completes them."""
    left = set(expected)
    while left:
        task = await reserve(listener)
        assert task.id in left
        left.remove(task.id)
        processor = client.processor(task)
        await processor.start(os.getpid())
        await processor.complete("done")
        assert (await client.task(task.id)).status == "complete"


async def test_it_dies_after_it_popped_a_task(client: TaskClient, start: Start, db: redis.Redis) -> None:
    """The task is in its list, and says that it is pending."""
    dying = start()
    task_id = dying("enqueue", "jobs", "x")
    dying("stand_still_before", "HSET")
    assert dying("poll", "jobs") == "stands still"
    dying.kill()
    assert lists(db, "jobs") == {"reserved": [task_id]}
    assert (await client.task(task_id)).status == "pending"
    async with client.listener("jobs") as listener:
        await finish(client, listener, task_id)
    assert lists(db, "jobs") == {"complete": [task_id]}


async def test_it_is_slow_after_it_popped_a_task(client: TaskClient, start: Start, db: redis.Redis) -> None:
    """It lives: its task is its own."""
    slow = start()
    task_id = slow("enqueue", "jobs", "x")
    slow("stand_still_before", "HSET")
    assert slow("poll", "jobs") == "stands still"
    async with client.listener("jobs") as listener:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await anext(listener)
        assert lists(db, "jobs") == {"reserved": [task_id]}


async def test_a_listener_dies_with_several_tasks(client: TaskClient, start: Start, db: redis.Redis) -> None:
    """It claims one task of a listener that died, and forgets the others. Ours claims all of them."""
    dying = start()
    tasks = [dying("enqueue", "jobs", f"{number}") for number in range(5)]
    for _ in tasks:
        dying("poll", "jobs")
    dying.kill()
    assert lists(db, "jobs") == {"reserved": sorted(tasks)}
    async with client.listener("jobs") as listener:
        await finish(client, listener, *tasks)
    assert lists(db, "jobs") == {"complete": sorted(tasks)}


async def test_what_it_leaves_behind_when_it_claims(client: TaskClient, start: Start, db: redis.Redis) -> None:
    """A listener with three tasks dies. Another one claims the newest, and completes it; ours gets the others."""
    dying, claiming = start(), start()
    tasks = [dying("enqueue", "jobs", f"{number}") for number in range(3)]
    for _ in tasks:
        dying("poll", "jobs")
    dying.kill()
    claimed = claiming("claim_orphan", "jobs")["id"]
    assert claiming("claim_orphan", "jobs") is None
    async with client.listener("jobs") as listener:
        await finish(client, listener, *(set(tasks) - {claimed}))
        claiming("start", claimed)
        claiming("complete", claimed, "done")
    assert lists(db, "jobs") == {"complete": sorted(tasks)}
    assert await client.queue("jobs").qsize() == 0


@pytest.mark.parametrize("command", ["ZINCRBY", "HSET"])
async def test_it_dies_while_it_claims(client: TaskClient, start: Start, db: redis.Redis, command: str) -> None:
    """It has taken the dead listener out of the set: it will never look at that one's tasks again."""
    dying, claiming = start(), start()
    task_id = dying("enqueue", "jobs", "x")
    dying("poll", "jobs")
    dying.kill()
    claiming("register", "jobs")
    claiming("stand_still_before", command)
    assert claiming("claim_orphan", "jobs") == "stands still"
    claiming.kill()
    assert dying.node.encode() not in db.smembers("blueque_listeners_jobs")
    async with client.listener("jobs") as listener:
        await finish(client, listener, task_id)
    assert lists(db, "jobs") == {"complete": [task_id]}


async def test_a_forked_child_is_killed(client: TaskClient, start: Start, db: redis.Redis) -> None:
    """Its runner goes on as if nothing had happened. When that dies, ours runs the task again."""
    runner = start()
    task_id = runner("enqueue", "jobs", "hold")
    runner("run", "jobs")
    started, child = await asyncio.to_thread(runner.answer)
    assert started == task_id
    task = await client.task(task_id)
    assert (task.status, task.node, task.pid) == ("started", runner.node, child)
    os.kill(child, signal.SIGKILL)
    other = await client.queue("jobs").enqueue("x")
    async with asyncio.timeout(PATIENCE):
        assert await (await client.task(other)).wait() == "ran x"
    runner.kill()
    async with client.listener("jobs") as listener:
        await finish(client, listener, task_id)
    assert lists(db, "jobs") == {"complete": sorted((task_id, other))}


async def test_a_runner_is_killed_and_its_child_lives(
    client: TaskClient, start: Start, db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours waits for the child, and runs the task again only when that is dead."""
    monkeypatch.setattr(TaskConsumer, "_heartbeat", 0.2)
    runner = start()
    task_id = runner("enqueue", "jobs", "hold")
    runner("run", "jobs")
    _, child = await asyncio.to_thread(runner.answer)
    runner.kill()
    async with client.listener("jobs") as listener:
        getting = asyncio.create_task(reserve(listener))
        try:
            await asyncio.sleep(1)
            assert not getting.done()
            assert psutil.pid_exists(child)
            assert lists(db, "jobs")["reserved"] == [task_id]
        finally:
            os.kill(child, signal.SIGKILL)
        task = await getting
        assert task.id == task_id
        processor = client.processor(task)
        await processor.start(os.getpid())
        await processor.complete("done")
    assert lists(db, "jobs") == {"complete": [task_id]}


async def test_its_runner_runs_our_tasks(client: TaskClient, start: Start) -> None:
    queue = client.queue("jobs")
    runner = start()
    runner("run", "jobs")
    async with asyncio.timeout(PATIENCE):
        assert await (await client.task(await queue.enqueue("x"))).wait() == "ran x"
        with pytest.raises(TaskFailedError, match="raised"):
            await (await client.task(await queue.enqueue("raise"))).wait()


async def test_it_claims_the_newest_task_of_our_dead_listener(
    url: str, client: TaskClient, release: Release, db: redis.Redis
) -> None:
    """Ours runs the others when their leases end, and leaves the one that the release has claimed alone."""
    queue = client.queue("jobs")
    tasks = [await queue.enqueue(f"task {number}") for number in range(3)]
    dead = killed_node(url, "jobs", 3)
    assert sorted(dead["tasks"]) == sorted(tasks)
    claimed = release("claim_orphan", "jobs")["id"]
    assert claimed == dead["tasks"][-1]
    assert dead["node"].encode() not in db.smembers("blueque_listeners_jobs")
    async with client.listener("jobs") as listener:
        await finish(client, listener, *(set(tasks) - {claimed}))
        assert release("start", claimed) == "task 2"
        release("complete", claimed, "done by the release")
    assert lists(db, "jobs") == {"complete": sorted(tasks)}
    assert (await client.task(claimed)).result == "done by the release"


async def test_it_completes_a_started_task_of_our_dead_listener(
    url: str, client: TaskClient, release: Release, db: redis.Redis
) -> None:
    """It leaves the entry of the dead one among the started tasks. Our next look removes it."""
    task_id = await client.queue("jobs").enqueue("x")
    dead = killed_node(url, "jobs", 1, started=1)
    assert (await client.queue("jobs").statistics()).started == 1
    assert release("claim_orphan", "jobs")["id"] == task_id
    release("start", task_id)
    assert (await client.queue("jobs").statistics()).started == 1  # two entries, one task that runs
    release("complete", task_id, "done")
    assert [entry.split()[0] for entry in lists(db, "jobs")["started"]] == [dead["node"]]
    assert (await client.queue("jobs").statistics()).started == 0
    async with client.queue("jobs").consumer():
        await eventually(lambda: lists(db, "jobs") == {"complete": [task_id]})


async def test_its_runner_runs_what_our_dead_listener_reserved(
    url: str, client: TaskClient, start: Start, db: redis.Redis
) -> None:
    task_id = await client.queue("jobs").enqueue("x")
    killed_node(url, "jobs", 1)
    runner = start()
    runner("run", "jobs")
    async with asyncio.timeout(PATIENCE):
        assert await (await client.task(task_id)).wait() == "ran x"
    assert lists(db, "jobs") == {"complete": [task_id]}


async def test_what_the_release_deletes_meanwhile(client: TaskClient, release: Release, db: redis.Redis) -> None:
    """A task without a hash is dropped, and the others go on."""
    queue = client.queue("jobs")
    gone, there = await queue.enqueue("gone"), await queue.enqueue("there")
    db.delete(f"blueque_task_{gone}")
    async with client.listener("jobs") as listener:
        await finish(client, listener, there)
    assert release("delete_task", "jobs", there) is None
    assert [task.id async for task in queue.tasks()] == []
    assert lists(db, "jobs") == {}


async def test_it_refuses_to_delete_what_is_not_finished(client: TaskClient, release: Release) -> None:
    """So do we."""
    queue = client.queue("jobs")
    task_id = await queue.enqueue("x")
    assert "status pending" in release("delete_task", "jobs", task_id)["error"]
    with pytest.raises(TaskStatusError, match="pending"):
        await queue.delete_task(task_id)
