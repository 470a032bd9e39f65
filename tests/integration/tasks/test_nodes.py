"""Listeners that die, and nodes of the released blueque beside ours: every task goes on, at one node at a time."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import pytest
import redis

from apressure import LeaseLostError, QueueEmptyError, TaskClient, TaskQueue
from apressure.tasks.nodes import orphans, processes
from apressure.tasks.nodes.consumer import TaskConsumer
from apressure.tasks.nodes.orphans import Orphans
from tests.integration.deaths import start
from tests.integration.tasks.conftest import HERE, Blueque, Open, consistent, eventually, in_time
from tests.processes import Popen

HOST = processes.host()


def ended_process() -> int:
    """The number of a process that has ended."""
    done = Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


@pytest.fixture
def child() -> Any:
    """A process that runs."""
    running = Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    yield running
    running.kill()
    running.wait()


async def test_a_lease_that_ends_gives_the_task_to_another_node(open_queue: Open, db: redis.Redis) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put_many(["a", "b"])
    first = await queue.receive(lease=0.2)
    await first.start()
    again = await in_time(other.receive_many(2))
    if len(again) == 1:  # "b", before the lease of "a" had ended
        again += await in_time(other.receive_many(1))
    assert sorted(one.item for one in again) == ["a", "b"]
    taken = next(one for one in again if one.item == "a")
    assert (taken.id, taken.attempts) == (first.id, 2)
    for operation in (first.complete("late"), first.extend(5)):
        with pytest.raises((LeaseLostError, RuntimeError)):
            await operation
    consistent(db)
    for one in again:
        await one.complete("done")
    assert not db.exists("blueque_started_tasks_jobs")


@pytest.mark.parametrize("options", [{"on_orphan": "fail"}, {"max_attempts": 1}], ids=["policy", "attempts"])
async def test_a_task_of_a_dead_node_fails_where_that_is_asked_for(
    open_queue: Open, client: TaskClient, options: Any, db: redis.Redis
) -> None:
    queue, other = await open_queue(**options), await open_queue()
    await queue.enqueue("a")
    first = await queue.receive(lease=0.1)
    waiting = asyncio.create_task(other.receive())
    with pytest.raises(Exception, match="died"):
        await in_time((await client.task(first.id)).wait())
    waiting.cancel()
    (letter,) = await queue.dead_letters()
    assert "died" in letter.reason
    consistent(db)


async def test_a_consumer_renews_its_leases_while_the_loop_is_blocked(open_queue: Open) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.enqueue("a")
    async with queue.consumer("manual", lease=0.5) as consuming:
        delivery = await in_time(anext(consuming))
        time.sleep(2)
        status = await other.statistics()
        assert status.in_flight == 1
        await delivery.complete("done")


async def test_a_block_gives_back_what_it_has(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many(range(6))
    async with queue.consumer("manual", prefetch=5) as consuming:
        first, second = await in_time(anext(consuming)), await in_time(anext(consuming))
        await first.complete()
    assert [task.parameters async for task in queue.tasks("pending")] == [1, 2, 3, 4, 5]
    again = await queue.receive()
    assert (again.id, again.attempts) == (second.id, 2)
    untouched = await queue.receive()
    assert untouched.attempts == 1
    for one in (again, untouched):
        await one.complete()
    consistent(db)


async def test_tasks_that_were_reserved_ahead_go_back_when_one_takes_long(open_queue: Open, db: redis.Redis) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put_many(range(300))
    done = 0
    async with queue.consumer("manual") as consuming:
        async for delivery in consuming:
            if db.zcard("apressure:blueque:leases:jobs") > 5:
                break  # it reserves ahead by now, and this task takes long
            await delivery.complete()
            done += 1
        await eventually(lambda: db.zcard("apressure:blueque:leases:jobs") == 1)
        following = await in_time(other.receive())
        assert (following.item, following.attempts) == (done + 1, 1)
        await delivery.complete()
        await following.complete()
    consistent(db)


async def test_a_killed_listener_is_replaced_on_its_host(
    open_queue: Open, url: str, db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is gone, so its task goes on before the lease ends; so does a task whose process it had started."""
    monkeypatch.setattr(TaskConsumer, "_heartbeat", 0.2)
    queue = await open_queue()
    task_id = await queue.enqueue("a")
    worker = await start("hold", url, "1", "tasks")
    await worker.ready()
    await eventually(lambda: worker.noted("began") == [task_id])
    db.zadd("apressure:blueque:leases:jobs", {task_id: 1e15})  # only its death can end this lease
    async with queue.consumer("manual") as consuming:
        waiting = asyncio.ensure_future(anext(consuming))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await worker.kill()
        delivery = await in_time(waiting)
        assert (delivery.id, delivery.attempts) == (task_id, 2)
        await delivery.complete("done")
        assert db.smembers("blueque_listeners_jobs") == {HERE.encode()}
    assert db.zscore("blueque_queues", "jobs") == 0
    consistent(db)


async def test_all_orphans_of_a_released_listener_go_on(
    queue: TaskQueue[Any], blueque: Blueque, db: redis.Redis
) -> None:
    dead = f"{HOST}_{ended_process()}"
    blueque.listen(dead)
    for name in "abcd":
        blueque.enqueue(name, name)
    assert [blueque.dequeue(dead) for _ in range(3)] == ["a", "b", "c"]
    blueque.start("b", dead, ended_process())
    # One that it had popped when it died, and not noted:
    db.rpoplpush("blueque_pending_tasks_jobs", blueque.key("reserved_tasks", dead))
    async with queue.consumer("manual", prefetch=9) as consuming:
        got = [await in_time(anext(consuming)) for _ in range(4)]
        assert sorted(one.item for one in got) == ["a", "b", "c", "d"]
        assert dead.encode() not in db.smembers("blueque_listeners_jobs")
        assert db.zscore("blueque_queues", "jobs") == 1
        for one in got:
            await one.complete()
    consistent(db)


async def in_order(queue: TaskQueue[Any], count: int) -> list[str]:
    """The ids of the tasks that are received, one by one; they are completed."""
    got = []
    for _ in range(count):
        delivery = await in_time(queue.receive())
        got.append(delivery.id)
        await delivery.complete()
    return got


@pytest.mark.parametrize("at_a_time", [1000, 2])
async def test_tasks_of_a_dead_listener_keep_their_order(
    queue: TaskQueue[Any], blueque: Blueque, db: redis.Redis, monkeypatch: pytest.MonkeyPatch, at_a_time: int
) -> None:
    monkeypatch.setattr(orphans, "MAX_TASKS", at_a_time)
    dead = f"{HOST}_{ended_process()}"
    blueque.listen(dead)
    for name in "abcdef":
        blueque.enqueue(name, name)
    assert [blueque.dequeue(dead) for _ in range(5)] == ["a", "b", "c", "d", "e"]
    blueque.start("b", dead, ended_process())
    assert await Orphans(queue).claim() == 5
    assert await in_order(queue, 6) == ["a", "b", "c", "d", "e", "f"]
    consistent(db)


@pytest.mark.parametrize("how", ["listener", "leases"])
async def test_tasks_that_fail_with_their_node_are_requeued_in_their_order(
    open_queue: Open, blueque: Blueque, db: redis.Redis, how: str
) -> None:
    queue = await open_queue(on_orphan="fail")
    await queue.put_many(list("abcde"))
    ids = [one.id for one in await queue.receive_many(5)]
    if how == "listener":
        dead = f"{HOST}_{ended_process()}"
        blueque.listen(dead)
        db.rename(blueque.key("reserved_tasks", HERE), blueque.key("reserved_tasks", dead))
        for task_id in ids:
            db.hset(f"blueque_task_{task_id}", "node", dead)
        assert await Orphans(queue).claim() == 5
    else:
        db.zadd("apressure:blueque:leases:jobs", {task_id: number for number, task_id in enumerate(ids)})
        await queue.steps.tend(time.time(), 0)
    assert await queue.requeue() == 5
    assert await in_order(queue, 5) == ids
    consistent(db)


async def test_tasks_whose_leases_end_keep_their_order(open_queue: Open, db: redis.Redis) -> None:
    """More of them than one step takes back."""
    queue, other = await open_queue(), await open_queue()
    await queue.put_many(range(250))
    ids = [one.id for one in await queue.receive_many(240)]
    db.zadd("apressure:blueque:leases:jobs", {task_id: number for number, task_id in enumerate(ids)})
    got = [await in_time(other.receive()) for _ in range(250)]
    assert [one.item for one in got] == list(range(250))


@pytest.mark.parametrize("how", ["nack", "release", "block"])
async def test_tasks_that_a_node_gives_back_keep_their_order(queue: TaskQueue[Any], db: redis.Redis, how: str) -> None:
    await queue.put_many(range(9))
    if how == "block":
        async with queue.consumer("manual", prefetch=6) as consuming:
            _ = [await in_time(anext(consuming)) for _ in range(3)]
    else:
        for delivery in reversed(await queue.receive_many(6)):
            await getattr(delivery, how)()
    assert [task.parameters async for task in queue.tasks("pending")] == list(range(9))
    consistent(db)


async def test_what_no_longer_runs_is_not_started(
    queue: TaskQueue[Any], blueque: Blueque, child: Popen[bytes], db: redis.Redis
) -> None:
    """A node of the release that completes a started task of a dead node leaves that one's entry."""
    started = blueque.key("started_tasks")
    running = f"{HOST}_{child.pid} {child.pid} runs"
    blueque.listen(f"{HOST}_{child.pid}")
    for name in ("runs", "again", "completes", "gone"):
        blueque.enqueue(name)
        blueque.dequeue(f"{HOST}_{child.pid}")
        blueque.start(name, f"{HOST}_{child.pid}", child.pid)
    left = {f"{HOST}_{child.pid} {child.pid} {name}" for name in ("again", "completes", "gone")}
    blueque.start("again", f"{HOST}_{child.pid}", 2)  # by another process
    blueque.start("completes", f"{HOST}_{child.pid}", 2)
    blueque.complete("completes", f"{HOST}_{child.pid}", 2, "done")
    db.delete("blueque_task_gone")
    db.sadd(started, "not an entry")
    assert {one.decode() for one in db.smembers(started)} > left
    assert (await queue.statistics()).started == 3
    assert db.scard(started) == 6  # statistics change nothing
    await queue.steps.tend(time.time(), 0)
    assert {one.decode() for one in db.smembers(started)} == {
        running, f"{HOST}_{child.pid} 2 again", "not an entry",
    }  # fmt: skip
    assert (await queue.statistics()).started == 3
    db.srem(started, "not an entry")


async def test_a_node_looks_for_what_no_longer_runs(
    queue: TaskQueue[Any], blueque: Blueque, db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than one look finds: each is bounded."""
    monkeypatch.setattr(TaskConsumer, "_heartbeat", 0.05)
    started = blueque.key("started_tasks")
    db.sadd(started, *(f"far_away_5 7 {number}" for number in range(450)))
    async with queue.consumer():
        await eventually(lambda: not db.exists(started))
    assert (await queue.statistics()).started == 0


async def test_listeners_that_live_keep_their_tasks(
    queue: TaskQueue[Any], blueque: Blueque, child: Popen[bytes], db: redis.Redis
) -> None:
    """Those of other hosts may live; a process of this host does."""
    listeners = ("another_host.example_4711", f"{HOST}_{child.pid}", "no number", "x_99999999999999999999")
    for listener in listeners:
        blueque.listen(listener)
        blueque.enqueue(listener, listener)
        assert blueque.dequeue(listener) == listener
    assert await Orphans(queue).claim() == 0
    assert (await queue.statistics()).in_flight == 4
    assert (await queue.statistics()).length == 0
    await queue.delete()
    assert not any(db.exists(blueque.key("reserved_tasks", listener)) for listener in listeners)


async def test_a_number_that_was_used_again_is_another_process(
    queue: TaskQueue[Any], blueque: Blueque, child: Popen[bytes], db: redis.Redis
) -> None:
    """The listener had this number, and so had the task's process: both ended before the process of today began."""
    began = processes.started_at(child.pid)
    assert began is not None
    listener = f"{HOST}_{child.pid}"
    blueque.listen(listener)
    blueque.enqueue("a")
    blueque.dequeue(listener, updated=began - 60)
    blueque.start("a", listener, child.pid, updated=began - 60)
    assert await Orphans(queue).claim() == 1
    delivery = await queue.receive()
    assert delivery.id == "a"
    await delivery.complete()
    consistent(db)


async def test_a_node_that_has_the_number_of_its_dead_predecessor(
    queue: TaskQueue[Any], blueque: Blueque, db: redis.Redis
) -> None:
    """As in containers, where each process is number 1. It stays registered, and what was leased keeps its lease."""
    leased = await queue.enqueue("leased")
    await queue.receive()
    began = processes.started_at(os.getpid())
    assert began is not None
    blueque.listen(HERE)
    for name in ("reserved", "started"):
        blueque.enqueue(name, name)
        blueque.dequeue(HERE, updated=began - 60)
    blueque.start("started", HERE, os.getpid(), updated=began - 60)
    async with queue.consumer("manual", prefetch=9) as consuming:
        assert db.smembers("blueque_listeners_jobs") == {HERE.encode()}
        assert db.zscore("blueque_queues", "jobs") == 1
        assert db.zcard("apressure:blueque:nodes:jobs") == 1
        got = [await in_time(anext(consuming)) for _ in range(2)]
        assert sorted(one.item for one in got) == ["reserved", "started"]
        for one in got:
            await one.complete()
    assert db.zrange("apressure:blueque:leases:jobs", 0, -1) == [leased.encode()]
    consistent(db)


async def test_what_was_reserved_again_while_a_node_looked_at_orphans_stays(
    queue: TaskQueue[Any], db: redis.Redis
) -> None:
    """A process that got the number of the dead one has reserved the task meanwhile."""
    task_id = await queue.enqueue("a")
    before = await queue.receive()
    await before.release()
    now = await queue.receive()
    assert now.claim.node == before.claim.node
    moved = await queue.steps.adopt(
        now.claim.node, "retry", 15.0, True, [(task_id.encode(), False, before.claim.token)]
    )
    assert moved == (0, 0)
    await now.complete("done")
    consistent(db)


@pytest.mark.parametrize("how", ["lease", "nack", "release"])
async def test_a_task_that_is_to_be_cancelled_does_not_run_again(
    queue: TaskQueue[Any], client: TaskClient, db: redis.Redis, how: str
) -> None:
    await queue.enqueue("a")
    delivery = await queue.receive()
    await queue.cancel(delivery.id)
    if how == "lease":
        db.zadd("apressure:blueque:leases:jobs", {delivery.id: 0})
    else:
        await getattr(delivery, how)()
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    task = await client.task(delivery.id)
    assert (task.status, task.error) == ("failed", "cancelled")
    consistent(db)
    await queue.retry(delivery.id)
    await (await queue.receive()).nack()
    assert (await queue.receive()).id == delivery.id


async def test_an_orphan_that_runs_is_waited_for(
    queue: TaskQueue[Any], blueque: Blueque, child: Popen[bytes], db: redis.Redis
) -> None:
    dead = f"{HOST}_{ended_process()}"
    blueque.listen(dead)
    for name in "ab":
        blueque.enqueue(name, name)
        blueque.dequeue(dead)
        blueque.start(name, dead, child.pid)
    assert await Orphans(queue).claim() == 0
    assert (await queue.statistics()).length == 0
    blueque.complete("a", dead, child.pid, "done")
    child.kill()
    child.wait()
    assert await Orphans(queue).claim() == 1
    delivery = await queue.receive()
    assert delivery.id == "b"
    await delivery.complete()
    consistent(db)


async def test_only_its_own_host_takes_a_task_whose_process_was_watched(
    queue: TaskQueue[Any], blueque: Blueque, child: Popen[bytes], db: redis.Redis
) -> None:
    """The node of ours that waited for the process of the release dies, too: no other host runs the task beside it."""
    dead = f"{HOST}_{ended_process()}"
    blueque.enqueue("a")
    blueque.dequeue(dead)
    blueque.start("a", dead, child.pid)
    blueque.listen(dead)
    await Orphans(queue).claim()
    db.zadd("apressure:blueque:leases:jobs", {"a": 0})  # nobody has looked since then
    await queue.steps.tend(time.time(), 0)
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    assert (blueque.task("a")["status"], blueque.ids("reserved_tasks", dead)) == ("started", ["a"])
    child.kill()
    child.wait()
    async with queue.consumer("manual") as consuming:  # on its host
        await (await in_time(anext(consuming))).complete()
        assert "watched" not in blueque.task("a")
        assert db.smembers("blueque_listeners_jobs") == {HERE.encode()}
    consistent(db)


async def test_a_task_that_the_release_has_reclaimed_is_left_to_it(
    queue: TaskQueue[Any], blueque: Blueque, db: redis.Redis
) -> None:
    """A released node notes that it runs a task of ours, and does not move it: while that node is there, it has it."""
    await queue.enqueue("a")
    delivery = await queue.receive(lease=0.1)
    blueque.listen("other_1")
    db.hset(f"blueque_task_{delivery.id}", "reclaimed_node", "other_1")
    await asyncio.sleep(0.3)
    assert (await queue.statistics()).in_flight == 1
    with pytest.raises(Exception, match="empty"):
        await queue.receive(timeout=1.5)
    with pytest.raises(LeaseLostError):
        await delivery.complete("late")
    db.srem("blueque_listeners_jobs", "other_1")  # it has died, and somebody noticed
    db.zadd("apressure:blueque:leases:jobs", {delivery.id: 0})
    again = await in_time(queue.receive())
    assert (again.id, again.attempts) == (delivery.id, 2)
    await again.complete("done")
    consistent(db)


async def test_what_the_release_does_with_tasks_of_ours(
    queue: TaskQueue[Any], client: TaskClient, blueque: Blueque, db: redis.Redis
) -> None:
    """It lists, processes and deletes them; a processor of ours ends what it has reserved."""
    first, second = [await client.task(await queue.enqueue(name)) for name in "ab"]
    assert blueque.dequeue("host_1") == first.id
    blueque.start(first.id, "host_1", 5)
    blueque.complete(first.id, "host_1", 5, "theirs")
    assert await in_time(first.wait()) == "theirs"
    assert blueque.dequeue("host_1") == second.id
    processor = client.processor(await second.refresh())
    await processor.start(7)
    await processor.complete("ours")
    assert blueque.task(second.id)["result"] == "ours"
    assert blueque.ids("reserved_tasks", "host_1") == []
    # One that it completes although we have it:
    third = await client.task(await queue.enqueue("c"))
    async with queue.consumer("manual", lease=1) as consuming:
        delivery = await in_time(anext(consuming))
        blueque.complete(third.id, HERE, 5, "theirs")
        assert await in_time(third.wait()) == "theirs"
        with pytest.raises(LeaseLostError):
            await delivery.complete("ours")
    db.delete(f"blueque_task_{third.id}")
    await queue.purge("complete")
    await eventually(lambda: reclaimed(queue, db))


async def reclaimed(queue: TaskQueue[Any], db: redis.Redis) -> bool:
    await queue.steps.tend(time.time(), 0)
    return db.zcard("apressure:blueque:leases:jobs") == 0


async def test_several_blocks_of_a_process_are_one_listener(open_queue: Open, db: redis.Redis) -> None:
    queue, other = await open_queue(), await open_queue()
    async with queue.consumer():
        async with other.consumer():
            assert db.smembers("blueque_listeners_jobs") == {HERE.encode()}
            assert db.zscore("blueque_queues", "jobs") == 1
        assert db.smembers("blueque_listeners_jobs") == {HERE.encode()}
    assert not db.exists("blueque_listeners_jobs")
    assert db.zscore("blueque_queues", "jobs") == 0


async def test_listeners_of_ours_that_vanished_are_forgotten(queue: TaskQueue[Any], db: redis.Redis) -> None:
    """On another host, so that no process of this one tells."""
    await queue.steps.register(b"far_away_5", b"block", 0.05)
    await asyncio.sleep(0.2)
    assert db.zscore("blueque_queues", "jobs") == 1
    await queue.steps.tend(time.time(), 0)
    assert not db.exists("blueque_listeners_jobs")
    assert db.zscore("blueque_queues", "jobs") == 0


async def test_a_listener_that_left_before_its_task_ended_is_forgotten(queue: TaskQueue[Any], db: redis.Redis) -> None:
    await queue.enqueue("a")
    async with queue.consumer():
        delivery = await queue.receive()
    for _ in range(2):
        assert db.smembers("blueque_listeners_jobs") == {HERE.encode()}
        for member in db.zrange("apressure:blueque:nodes:jobs", 0, -1):
            db.zadd("apressure:blueque:nodes:jobs", {member: 0})
        await queue.steps.tend(time.time(), 0)  # its task has not ended
    await delivery.complete()
    db.zadd("apressure:blueque:nodes:jobs", {db.zrange("apressure:blueque:nodes:jobs", 0, -1)[0]: 0})
    await queue.steps.tend(time.time(), 0)
    assert not db.exists("blueque_listeners_jobs", "apressure:blueque:nodes:jobs")
    assert db.zscore("blueque_queues", "jobs") == 0


def test_processes_of_this_host() -> None:
    began = processes.started_at(os.getpid())
    assert began is not None
    assert 0 <= time.time() - began < 7200
    assert processes.is_same(os.getpid(), began, None)
    assert not processes.is_same(os.getpid(), began - 60, None)
    assert not processes.is_same(os.getpid(), None, began - 60)
    assert processes.is_same(os.getpid(), None, time.time())
    gone = ended_process()
    assert not processes.running(gone)
    assert processes.started_at(gone) is None
    assert not processes.running(0)
    assert processes.parse("a_b.example_12") == ("a_b.example", 12)
    assert processes.parse("nothing") is processes.parse("a_x") is processes.parse("_5") is None
