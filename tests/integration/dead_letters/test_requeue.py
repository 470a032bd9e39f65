"""requeue: dead letters go back to the end of the queue that they came from."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    ClientClosedError,
    OperationUnblockedError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
    QueueInUseError,
    ScriptingRefusedError,
    ServerError,
)
from apressure.testing.proxy import Proxy, Trouble
from tests.integration.conftest import Opener, blocked, blocking, cancelled, eventually, everything, fails, in_time
from tests.integration.dead_letters.test_dead_letters import lose_one
from tests.reference import ReferenceQueue, connect


async def drained(queue: AsyncQueue[Any]) -> list[bytes]:
    got = []
    while await queue.qsize():
        got += await queue.get_many(1000)
    return got


def items(number: int) -> list[bytes]:
    return [b"%d" % index for index in range(number)]


async def both(open_queue: Opener, dead_letters: int, bound: int = 0) -> tuple[AsyncQueue[Any], AsyncQueue[Any]]:
    """A queue, and its dead-letter queue with so many messages."""
    queue, dead = await open_queue(bound=bound), await open_queue("jobs:dead")
    await dead.put_many(items(dead_letters))
    return queue, dead


async def test_dead_letters_go_to_the_end_and_start_anew(open_queue: Opener) -> None:
    queue = await open_queue(max_attempts=1)
    await queue.put_many([b"1", b"2", b"3"])
    for _ in range(3):
        await (await queue.receive()).nack()
    await queue.put(b"4")
    assert await (await queue.receive()).nack() is None
    assert await queue.requeue() == 3
    dead = await open_queue("jobs:dead", create=False)
    there = await dead.statistics()
    assert (there.length, there.produced_messages, there.consumed_messages, there.consumed_bytes) == (0, 3, 3, 3)
    here = await queue.statistics()
    assert (here.length, here.produced_messages, here.produced_bytes, here.consumed_messages) == (4, 7, 7, 3)
    seen = []
    for _ in range(3):
        delivery = await queue.receive()
        seen.append((delivery.item, delivery.attempts))
        await delivery.ack()
    assert seen == [(b"1", 1), (b"2", 1), (b"3", 1)]
    assert await dead.get_many(5) == [b"4"]


async def test_what_was_tried_in_the_dead_letter_queue_starts_anew_too(open_queue: Opener, db: redis.Redis) -> None:
    queue, dead = await both(open_queue, 2)
    await (await dead.receive()).nack()
    assert await queue.requeue() == 2
    delivery = await queue.receive()
    assert (delivery.item, delivery.attempts) == (b"0", 1)
    await delivery.ack()
    assert not db.keys("apressure:*redelivered")


@pytest.mark.parametrize(("max_items", "moved"), [(None, 5000), (1, 1), (2500, 2500), (6000, 5000)])
async def test_as_many_as_asked_for(open_queue: Opener, max_items: int | None, moved: int) -> None:
    queue, dead = await both(open_queue, 5000)
    await queue.put(b"first")
    assert await queue.requeue(max_items) == moved
    assert (await queue.qsize(), await dead.qsize()) == (moved + 1, 5000 - moved)
    assert await drained(queue) == [b"first", *items(5000)[:moved]]


async def test_without_dead_letters_there_is_nothing_to_do_and_no_role_to_wait_for(open_queue: Opener) -> None:
    queue = await open_queue()
    assert await queue.requeue() == 0
    dead = await open_queue("jobs:dead")
    other = await open_queue(create=False)
    async with dead.consumer(), other.producer(exclusive=True, close=False):
        assert await in_time(queue.requeue()) == 0


async def test_from_another_queue(open_queue: Opener) -> None:
    queue, failed = await open_queue(max_attempts=3, dead_letters="failed"), await open_queue("failed")
    other = await open_queue("jobs:dead")
    await failed.put(b"1")
    await other.put(b"2")
    assert await queue.requeue() == 1
    assert await queue.requeue(source="jobs:dead") == 1
    assert await queue.get_many(5) == [b"1", b"2"]


async def test_it_waits_for_room(open_queue: Opener, db: redis.Redis) -> None:
    queue, dead = await both(open_queue, 5, bound=2)
    other = await open_queue(create=False)
    task = asyncio.create_task(queue.requeue())
    got = []
    for _ in range(3):
        await blocked(db)
        assert await queue.qsize() <= 2
        got.append(await in_time(other.get()))
    assert await in_time(task) == 5
    assert got + await drained(other) == items(5)
    assert await dead.qsize() == 0


@pytest.mark.parametrize("timeout", [0, 0.05])
async def test_a_queue_that_stays_full(open_queue: Opener, timeout: float) -> None:
    queue, dead = await both(open_queue, 5, bound=2)
    raised = await fails(QueueFullError, queue.requeue(timeout=timeout))
    assert (raised.accepted, raised.name) == (2, "jobs")
    assert raised.__notes__ == ["2 dead letters were moved before"]
    assert await queue.get_many(5) + await dead.get_many(5) == items(5)


async def test_cancelled_what_was_moved_stays_moved(open_queue: Opener, db: redis.Redis) -> None:
    queue, dead = await both(open_queue, 5, bound=2)
    await cancelled(await blocking(db, queue.requeue()))
    assert await queue.get_many(5) + await dead.get_many(5) == items(5)
    await in_time(queue.put(b"x"))
    await in_time(dead.put(b"x"))


@pytest.mark.parametrize("turns", range(6))
async def test_cancelled_at_any_moment_nothing_is_lost_or_doubled(open_queue: Opener, turns: int) -> None:
    queue, dead = await both(open_queue, 5)
    task = asyncio.create_task(queue.requeue(2))
    for _ in range(turns):
        await asyncio.sleep(0)
    await cancelled(task)
    moved = await queue.qsize()
    assert moved in (0, 2)
    got = await queue.get_many(5) if moved else []
    assert got + await dead.get_many(5) == items(5)


@pytest.mark.parametrize("how", ["closed", "missing", "damaged"])
async def test_a_queue_that_takes_nothing(open_queue: Opener, db: redis.Redis, how: str) -> None:
    queue, dead = await both(open_queue, 2)
    error: type[Exception] = QueueClosedError
    if how == "closed":
        await queue.close()
    elif how == "missing":
        await queue.delete()
        error = QueueDoesNotExistError
    else:
        db.set("__pressure__:jobs:dead:stats:consumed_bytes", "many")
        error = ServerError
    before = everything(db)
    await fails(error, queue.requeue())
    assert everything(db) == before
    db.set("__pressure__:jobs:dead:stats:consumed_bytes", 0)
    assert await dead.get_many(5) == items(2)


async def test_a_queue_that_is_closed_in_the_middle(open_queue: Opener, db: redis.Redis) -> None:
    queue, dead = await both(open_queue, 5, bound=2)
    task = await blocking(db, queue.requeue())
    await queue.close()
    raised = await fails(QueueClosedError, task)
    assert raised.__notes__ == ["2 dead letters were moved before"]
    assert await queue.get_many(5) + await dead.get_many(5) == items(5)


@pytest.mark.parametrize("plain", [True, False])
async def test_it_waits_for_both_roles(open_queue: Opener, db: redis.Redis, url: str, plain: bool) -> None:
    queue, dead = await both(open_queue, 2)
    base = "__pressure__:jobs"
    holder = await open_queue(create=False, client_id="holder")
    if plain:  # a step-by-step client holds both tokens
        assert db.rpop(f"{base}:producer_free")
        assert db.rpop(f"{base}:dead:consumer_free")
        task = await blocking(db, queue.requeue())
        db.lpush(f"{base}:producer_free", 0)
        await eventually(lambda: db.llen(f"{base}:producer_free") == 1 and db.info("clients")["blocked_clients"])
        assert not task.done()
        db.lpush(f"{base}:dead:consumer_free", 0)
    else:
        async with dead.consumer():
            async with holder.producer(exclusive=True, close=False):
                raised = await fails(QueueInUseError, queue.requeue(timeout=0.05))
                assert (raised.role, raised.name, raised.holder) == ("producer", "jobs", "holder")
            raised = await fails(QueueInUseError, queue.requeue(timeout=0.2))
            assert (raised.role, raised.name) == ("consumer", "jobs:dead")
            assert raised.holder == dead.client.id
            task = await blocking(db, queue.requeue())
            assert not task.done()
    assert await in_time(task) == 2
    with connect(url) as client:
        assert ReferenceQueue(client, "jobs").get(5) == b"0"
        ReferenceQueue(client, "jobs:dead").put(b"x", 5)
    await eventually(lambda: not db.keys("apressure:*claim*"))


async def test_two_at_a_time_share_the_work(open_queue: Opener) -> None:
    queue, dead = await both(open_queue, 5000)
    other = await open_queue(create=False)
    assert sum(await in_time(asyncio.gather(queue.requeue(), other.requeue(), queue.requeue()))) == 5000
    assert await drained(queue) == items(5000)
    assert await dead.qsize() == 0


async def test_what_dies_meanwhile_does_not_go_round_for_ever(open_queue: Opener, db: redis.Redis) -> None:
    queue, dead = await both(open_queue, 20, bound=1)
    consumer = await open_queue(create=False, max_attempts=1)

    async def fail_for_ever() -> None:
        while True:
            await (await consumer.receive()).nack()

    failing = asyncio.create_task(fail_for_ever())
    assert await in_time(queue.requeue()) == 20
    failing.cancel()
    await asyncio.wait((failing,))
    assert await queue.qsize() + await dead.qsize() == 20


@pytest.mark.parametrize("where", ["full", "producer", "consumer"])
@pytest.mark.parametrize("how", ["unblock", "aclose", "delete"])
async def test_what_ends_other_operations_ends_this_one(
    open_queue: Opener, db: redis.Redis, where: str, how: str
) -> None:
    queue, dead = await both(open_queue, 2, bound=1)
    holder = await open_queue(create=False)
    token = {"full": None, "producer": "jobs:producer_free", "consumer": "jobs:dead:consumer_free"}[where]
    if token is None:
        await queue.put(b"x")
    else:
        assert db.rpop(f"__pressure__:{token}")
    task = await blocking(db, queue.requeue())
    if how == "unblock":
        assert await queue.unblock() == 1
    elif how == "aclose":
        await queue.aclose()
    else:
        deleting = asyncio.create_task(queue.delete())
    errors = {"unblock": OperationUnblockedError, "aclose": ClientClosedError, "delete": QueueDoesNotExistError}
    await fails(errors[how], task)
    if token is not None:
        db.lpush(f"__pressure__:{token}", 0)
    if how == "delete":
        await in_time(deleting)
    elif where == "full":
        assert await in_time(holder.get()) == b"x"
    assert await dead.get_many(5) == items(2)


async def test_a_lost_reply_moves_nothing_twice(open_queue: Opener, db: redis.Redis, url: str) -> None:
    watcher, dead = await both(open_queue, 1)
    assert await watcher.requeue() == 1
    await dead.put_many(items(5))
    async with Proxy(url, random.Random(1)) as line, AsyncQueue("jobs", url=line.url) as queue:
        await queue.exists()
        assert await lose_one(line, queue.requeue(3), lambda: db.llen("__pressure__:jobs:dead") == 2) == 3
        await dead.put(b"5")
        assert await lose_one(line, queue.requeue(), lambda: db.llen("__pressure__:jobs:dead") == 0) == 3
    assert await watcher.get_many(10) == [b"0", *items(6)]
    here, there = await watcher.statistics(), await dead.statistics()
    assert (here.produced_messages, there.consumed_messages, there.produced_messages) == (7, 7, 7)


async def test_after_a_lost_reply_it_leaves_what_died_meanwhile(open_queue: Opener, db: redis.Redis, url: str) -> None:
    watcher, dead = await both(open_queue, 0)
    assert await watcher.requeue() == 0  # now the server knows the script
    await dead.put_many(items(3))
    async with Proxy(url, random.Random(1)) as line, AsyncQueue("jobs", url=line.url) as queue:
        await queue.exists()
        line.trouble = Trouble(lose=1.0)
        requeuing = asyncio.create_task(queue.requeue())
        await eventually(lambda: line.cuts and db.llen("__pressure__:jobs:dead") == 0)
        await dead.put(b"new")
        line.trouble = Trouble()
        assert await in_time(requeuing) == 3
    assert await dead.get() == b"new"
    assert await watcher.get_many(10) == items(3)


async def test_it_refuses_what_makes_no_sense(open_queue: Opener) -> None:
    queue = await open_queue()
    with pytest.raises(ValueError, match="at least 1"):
        await queue.requeue(0)
    with pytest.raises(TypeError, match="seconds"):
        await queue.requeue(timeout="1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="share a key"):
        await queue.requeue(source="jobs")
    with pytest.raises(QueueInUseError, match="itself"):
        async with queue.producer(exclusive=True, close=False):
            await queue.requeue()
    plain = await open_queue(create=False, scripting=False)
    with pytest.raises(ScriptingRefusedError, match="requeue"):
        await plain.requeue()


async def test_round_and_round_with_cancellations(open_queue: Opener) -> None:
    rng = random.Random(5)
    queue, dead = await both(open_queue, 0, bound=5)
    workers = [await open_queue(create=False, max_attempts=2) for _ in range(2)]
    requeuers = [await open_queue(create=False) for _ in range(2)]
    seen: list[bytes] = []
    ending = asyncio.Event()

    async def work(own: AsyncQueue[bytes]) -> None:
        while not ending.is_set():
            try:
                delivery = await own.receive(timeout=0.02)
            except (QueueEmptyError, QueueInUseError):
                continue
            if rng.random() < 0.3:
                seen.append(delivery.item)
                await delivery.ack()
            else:
                await delivery.nack()

    async def go_round(own: AsyncQueue[bytes]) -> None:
        while not ending.is_set():
            task = asyncio.create_task(own.requeue(rng.randint(1, 4), timeout=rng.choice([None, 0, 0.01])))
            await asyncio.wait((task,), timeout=rng.choice([0, 0.001, 0.003, 0.01]))
            if task.cancel():
                await asyncio.wait((task,))
            elif not isinstance(task.exception(), (QueueFullError, QueueInUseError, type(None))):
                raise AssertionError from task.exception()
            await asyncio.sleep(0)

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        for own in workers:
            group.create_task(work(own))
        for own in requeuers:
            group.create_task(go_round(own))
        await queue.put_many(items(300))
        while len(seen) < 200:
            await asyncio.sleep(0.01)
        ending.set()
    here, there = await queue.statistics(), await dead.statistics()
    assert here.produced_messages == 300 + there.consumed_messages  # what was requeued was put once more
    assert here.consumed_messages == len(seen) + there.produced_messages
    assert sorted(seen + await drained(queue) + await drained(dead)) == sorted(items(300))
