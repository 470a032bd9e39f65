"""Delayed messages and retries, as far as an AsyncQueue is special: roles, permits, statistics, and attempts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import time
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    QueueFullError,
    QueueInUseError,
    ScriptingRefusedError,
    ServerError,
    recovery,
)
from apressure.embedded import EmbeddedServer
from apressure.exceptions import QueueEmptyError
from apressure.pressure.engine import keys as spelling
from apressure.pressure.engine.keys import Keys
from apressure.testing.proxy import Proxy, Trouble
from tests.integration.conftest import Opener, blocked, blocking, eventually, fails, in_time, open_two
from tests.integration.deaths import each_trouble
from tests.reference import ReferenceQueue

KEYS = Keys("__pressure__", "jobs")


async def taken(queue: AsyncQueue[Any], most: int = 100) -> list[tuple[bytes, int]]:
    """Receive and acknowledge what waits now: each message, and its attempts."""
    found = []
    with contextlib.suppress(QueueEmptyError):
        while len(found) < most:
            delivery = await queue.receive(timeout=0)
            found.append((delivery.raw, delivery.attempts))
            await delivery.ack()
    return found


async def put_off(queue: AsyncQueue[Any], delay: float) -> None:
    await (await in_time(queue.receive())).nack(delay=delay)


# Waiting, with nothing that polls


@pytest.mark.usefixtures("long_slices")
@pytest.mark.parametrize("way", ["get", "receive", "exclusive", "shared"])
async def test_one_that_waits_learns_of_a_message_that_is_due_earlier(
    open_queue: Opener, db: redis.Redis, way: str
) -> None:
    queue, other = await open_two(open_queue)
    await other.put(b"late", delay=600)

    async def consume() -> Any:
        if way == "get":
            return await queue.get()
        if way == "receive":
            delivery = await queue.receive()
            await delivery.ack()
            return delivery.raw
        async with queue.consumer(shared=way == "shared") as consumer:
            return await anext(consumer)

    waiting = await blocking(db, consume())
    for delay in (60, 0.2):
        await other.put(b"%d" % delay, delay=delay)
        await asyncio.sleep(0.05)
        assert not waiting.done()
    assert await in_time(waiting) == b"0"
    assert (await other.statistics()).delayed == 2


@pytest.mark.usefixtures("long_slices")
@pytest.mark.parametrize("shared", [False, True])
async def test_a_consumer_that_waits_for_the_end_gets_what_its_own_handler_puts_off(
    open_queue: Opener, shared: bool
) -> None:
    queue = await open_queue(max_attempts=3)
    await queue.put_many([b"1", b"2"])
    await queue.close()
    got = []

    async def consume() -> None:
        async with queue.consumer(ack="manual", shared=shared) as consumer:
            async for delivery in consumer:
                got.append((delivery.raw, delivery.attempts))
                if delivery.raw == b"1" and delivery.attempts < 3:
                    await delivery.nack(ValueError("later"), delay=0.2)
                else:
                    await delivery.ack()

    await in_time(consume())
    assert got == [(b"1", 1), (b"2", 1), (b"1", 2), (b"1", 3)]


@pytest.mark.usefixtures("long_slices")
async def test_a_put_waits_for_the_room_that_delayed_messages_take_and_other_clients_do_not(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue, other = await open_two(open_queue, bound=2)
    original = ReferenceQueue(db, "jobs")
    await queue.put(b"1", delay=600)
    await queue.put(b"2", delay=600)
    await fails(QueueFullError, queue.put_nowait(b"3"))
    original.put_nowait(b"original")  # it does not see them, and is not blocked
    waiting = [await blocking(db, queue.put(b"4")), await blocking(db, queue.put(b"5", delay=600), 2)]
    assert original.get_nowait() == b"original"
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    assert await other.purge() == 2
    await in_time(asyncio.gather(*waiting))
    assert await in_time(other.get()) == b"4"
    assert original.length() == 0
    assert (await queue.statistics()).delayed == 1


# Roles, permits and statistics


async def test_an_exclusive_producer_delays_under_its_lease(open_queue: Opener) -> None:
    queue, other = await open_two(open_queue)
    async with queue.producer(exclusive=True) as producer:
        await fails(QueueInUseError, other.put(b"no", 0, delay=1))
        await producer.put(b"1", delay=0.1)
        assert await producer.put_many([b"2", b"3"], delay=0.2) == 2
    assert (await queue.statistics()).delayed == 3
    assert [await in_time(other.get()) for _ in range(3)] == [b"1", b"2", b"3"]


async def test_a_forced_put_for_later_ignores_the_bound(open_queue: Opener) -> None:
    queue = await open_queue(bound=1)
    await queue.put(b"1", delay=600)
    await fails(QueueFullError, queue.put(b"2", 0, delay=1))
    await queue.put(b"3", 0, True, delay=0.05)
    assert await queue.put_many([b"4", b"5"], 0, True, delay=0.1) == 2
    assert [await in_time(queue.get()) for _ in range(3)] == [b"3", b"4", b"5"]


async def test_what_was_produced_and_not_consumed_is_in_the_queue(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()

    async def counted() -> tuple[int, int, int, int]:
        found = await queue.statistics()
        return found.produced_messages, found.produced_bytes, found.consumed_messages, found.consumed_bytes

    await queue.put(b"abc", delay=0.1)
    await queue.put(b"defg", delay=600)
    assert await counted() == (0, 0, 0, 0)
    await put_off(queue, 0.1)
    assert await counted() == (1, 3, 0, 0)
    await put_off(queue, 600)
    assert await counted() == (1, 3, 0, 0)
    assert await queue.purge() == 2  # one was produced, the other was not
    assert await counted() == (1, 3, 1, 3)
    assert not db.exists(KEYS.delayed)


async def test_without_scripts_nothing_is_delayed_and_it_is_counted(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put(b"later", delay=600)
    plain = await open_queue(create=False, scripting=False)
    await fails(ScriptingRefusedError, plain.put(b"1", delay=1), "a delayed put needs scripts")
    await fails(ScriptingRefusedError, plain.put_many([b"1"], delay=1))
    async with plain.producer(close=False) as producer:
        await fails(ScriptingRefusedError, producer.put(b"1", delay=1))
    await plain.put(b"now")
    assert await plain.get() == b"now"
    statistics = await plain.statistics()
    assert statistics.delayed == 1
    assert statistics.next_due is not None
    assert 500 < statistics.next_due < 601


async def test_dead_letters_and_pipes_leave_room_for_what_is_delayed(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(bound=2, max_attempts=1)
    await queue.put_many([b"1", b"2"])
    for _ in range(2):
        await (await queue.receive()).nack("no", delay=600)  # its last attempt: no delay
    await fails(QueueEmptyError, queue.receive(timeout=0))
    assert [letter.raw for letter in await queue.dead_letters()] == [b"1", b"2"]
    await queue.put(b"later", delay=600)
    await fails(QueueFullError, queue.requeue(timeout=0.05))
    assert await queue.qsize() == 1
    source = await open_queue("source")
    await source.put(b"result")
    mover = await source.mover(queue)
    delivery = await source.receive()
    moving = await blocking(db, mover.move([([delivery], [b"result"])]))
    assert await queue.purge() == 2
    await in_time(moving)
    assert await queue.get() == b"result"
    for name in ("jobs:dead",):
        async with AsyncQueue(name, client=queue.client) as dead:
            await dead.delete()


# Attempts


async def test_a_retry_behind_messages_with_the_same_content_keeps_its_attempts(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put(b"same")
    await put_off(queue, 0.1)
    await queue.put_many([b"same", b"other", b"same"])
    await asyncio.sleep(0.2)
    await queue.put(b"same")
    assert await taken(queue) == [(b"same", 1), (b"other", 1), (b"same", 1), (b"same", 2), (b"same", 1)]


async def test_attempts_stay_exact_among_gets_and_messages_that_come_back(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many([b"a", b"a"])
    await put_off(queue, 0.05)
    await put_off(queue, 0.1)
    await queue.put_many([b"a", b"a", b"a"])
    await asyncio.sleep(0.2)
    assert await queue.get() == b"a"
    delivery = await queue.receive()
    assert delivery.attempts == 1
    await delivery.nack()
    assert await taken(queue, 1) == [(b"a", 2)]
    assert await taken(queue, 2) == [(b"a", 1), (b"a", 2)]
    await put_off(queue, 0.05)
    await asyncio.sleep(0.1)
    await queue.put(b"a")
    assert await taken(queue) == [(b"a", 3), (b"a", 1)]


async def test_a_retry_that_another_client_took_does_not_pass_its_attempts_on(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue = await open_queue()
    original = ReferenceQueue(db, "jobs")
    await queue.put_many([b"a", b"b"])
    await put_off(queue, 0.05)
    await put_off(queue, 0.1)
    await asyncio.sleep(0.2)
    await queue.put_many([b"x", b"a"])
    assert await queue.qsize() == 4
    assert original.get_nowait() == b"a"
    assert await taken(queue) == [(b"b", 2), (b"x", 1), (b"a", 1)]


async def test_another_client_ahead_of_a_retry_costs_no_attempts(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    original = ReferenceQueue(db, "jobs")
    await queue.put(b"retry")
    await put_off(queue, 0.05)
    await queue.put_many([b"1", b"2", b"3"])
    await asyncio.sleep(0.1)
    assert await taken(queue, 1) == [(b"1", 1)]
    assert original.get_nowait() == b"2"
    original.put_nowait(b"4")
    assert await taken(queue) == [(b"3", 1), (b"retry", 2), (b"4", 1)]


@pytest.mark.parametrize("shared", [False, True])
async def test_the_end_of_a_block_settles_what_was_put_off_just_before(open_queue: Opener, shared: bool) -> None:
    queue = await open_queue(max_attempts=2)
    await queue.put_many([b"1", b"2"])
    async with queue.consumer(ack="manual", shared=shared) as consumer:
        first = await in_time(anext(consumer))
        second = await in_time(anext(consumer))
        nacking = [asyncio.create_task(first.nack("why", delay=0.1)), asyncio.create_task(second.nack())]
        await asyncio.sleep(0)
    await in_time(asyncio.gather(*nacking, return_exceptions=True))
    assert await taken(queue) == [(b"2", 2)]
    delivery = await in_time(queue.receive())
    assert (delivery.raw, delivery.attempts) == (b"1", 2)
    await delivery.ack()


# Deaths, restarts, trouble

WORKER = """
import asyncio, sys
from apressure import AsyncQueue

async def main():
    async with AsyncQueue("jobs", url=sys.argv[1]) as queue:
        async with queue.consumer(ack="manual", shared=sys.argv[2] == "shared") as consumer:
            async for delivery in consumer:
                await delivery.nack("not yet", delay=float(sys.argv[3]))
                print(delivery.raw.decode(), delivery.attempts, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("shared", ["shared", "alone"])
async def test_a_killed_process_neither_loses_a_retry_nor_hurries_it(open_queue: Opener, url: str, shared: str) -> None:
    queue = await open_queue()
    await queue.put_many([b"%d" % number for number in range(20)])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, url, shared, "1.0", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    for number in range(20):
        assert await in_time(process.stdout.readline()) == b"%d 1\n" % number
    put_off_at = time.time()
    process.send_signal(signal.SIGKILL)
    await process.wait()
    assert (await queue.statistics()).delayed == 20
    delivery = await in_time(queue.receive())
    assert time.time() - put_off_at > 0.5
    assert (delivery.raw, delivery.attempts) == (b"0", 2)
    await delivery.ack()
    found = []
    while len(found) < 19:
        delivery = await in_time(queue.receive())
        found.append((delivery.raw, delivery.attempts))
        await delivery.ack()
    assert found == [(b"%d" % number, 2) for number in range(1, 20)]


async def test_a_restart_of_the_server_keeps_what_is_delayed(own: EmbeddedServer) -> None:
    own._config |= {"appendonly": "yes", "appendfsync": "always"}
    own.stop()
    own.start()
    async with AsyncQueue("jobs", url=own.url) as queue:
        await queue.create()
        await queue.put(b"1")
        await queue.put(b"2", delay=2)
        put_off_at = time.time()
        await put_off(queue, 1.5)
        waiting = asyncio.create_task(queue.receive())
        await asyncio.sleep(0.1)
        own.stop()
        own.start()
        delivery = await in_time(waiting)
        assert time.time() - put_off_at > 1.49
        assert (delivery.raw, delivery.attempts) == (b"1", 2)
        await delivery.ack()
        assert await in_time(queue.get()) == b"2"
        await queue.delete()


async def test_flushall_ends_those_that_wait_for_a_time(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put(b"1", delay=600)
    waiting = await blocking(db, queue.get())
    db.flushall()
    with pytest.raises(Exception, match="does not exist"):
        await in_time(waiting)
    await queue.create()
    assert (await queue.statistics()).delayed == 0


async def test_a_full_server_delays_nothing_new_and_delivers_what_is_due(make_server: Any) -> None:
    server = make_server("valkey", config={"maxmemory-policy": "noeviction"})
    async with AsyncQueue("jobs", url=server.url) as queue:
        await queue.create()
        await queue.put(b"retry")
        await queue.put(b"due", delay=0.2)
        await put_off(queue, 0.1)
        with redis.Redis.from_url(server.url) as db:
            db.config_set("maxmemory", 1)
            await fails(ServerError, queue.put(b"2", delay=1))
            assert [await in_time(queue.get()) for _ in range(2)] == [b"retry", b"due"]
            db.config_set("maxmemory", 0)
        assert (await queue.statistics()).delayed == 0
        await queue.delete()


@each_trouble
async def test_lost_replies_neither_lose_nor_double(open_queue: Opener, url: str, trouble: Trouble) -> None:
    queue = await open_queue()
    async with Proxy(url, random.Random(1)) as line:
        settings = {"response_timeout": 1.0, "connect_timeout": 1.0, "retry_timeout": 60.0}
        async with AsyncQueue("jobs", url=line.url, **settings) as shaky:  # type: ignore[arg-type]
            line.trouble = trouble
            for number in range(60):
                await in_time(shaky.put(b"%d" % number, delay=0.01))
            got = []
            while len(got) < 60:
                delivery = await in_time(shaky.receive(lease=600))
                if delivery.attempts == 1:
                    await in_time(delivery.nack(delay=0.01))
                else:
                    got.append((int(delivery.raw), delivery.attempts))
                    await in_time(delivery.ack())
            line.trouble = Trouble()
    assert {number for number, _ in got} == set(range(60))
    assert await queue.qsize() == 0


# Damage, and the doctor


async def test_the_doctor_knows_delayed_messages(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(bound=5)
    await queue.put(b"1")
    await put_off(queue, 600)
    await queue.put_many([b"2", b"3"], delay=600)
    assert (await recovery.examine(queue, 0.05)).findings == ()
    assert spelling.names_among("__pressure__", db.keys()) == ["jobs"]
    db.zadd(KEYS.delayed, {b"strange": 9e15})
    (finding,) = (await recovery.examine(queue, 0.05)).findings
    assert (finding.kind, "last in line" in finding.advice) == ("foreign_entry", True)
    done = (await recovery.repair(queue, patience=0.05)).done
    assert [action.kind for action in done] == ["foreign_entry"]
    assert await in_time(queue.get()) == b"strange"
    assert (await queue.statistics()).delayed == 3
    assert (await recovery.examine(queue, 0.05)).findings == ()


async def test_a_key_that_another_program_overwrote_is_a_clear_error_and_loses_nothing(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue = await open_queue()
    await queue.put(b"1")
    db.set(KEYS.delayed, "x")
    for operation in (queue.put(b"2"), queue.put(b"2", delay=1), queue.get(0), queue.receive(0)):
        await fails(ServerError, operation)
    done = (await recovery.repair(queue, patience=0.05)).done
    assert [action.kind for action in done] == ["wrong_type"]
    assert await taken(queue) == [(b"1", 1)]
    for key in db.keys("*damaged*"):
        db.delete(key)
    await queue.put(b"3", delay=0.01)
    await queue.put(b"4")
    await put_off(queue, 0.01)
    await asyncio.sleep(0.05)
    await queue.put(b"5")
    db.rpush(KEYS.popped + b"x", "")
    db.rename(KEYS.popped + b"x", KEYS.popped)
    assert [message for message, _ in await taken(queue)] == [b"3", b"4", b"5"]


async def test_a_broken_statistic_of_the_producers_keeps_what_is_due(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put(b"1", delay=0.01)
    await asyncio.sleep(0.05)
    db.set(KEYS.messages_count("producer"), "x")
    assert "stats:produced_messages" in str(await fails(ServerError, queue.get(0)))
    db.set(KEYS.messages_count("producer"), "0")
    assert await in_time(queue.get()) == b"1"


async def test_several_that_receive_by_hand_wait_for_the_same_times(open_queue: Opener, db: redis.Redis) -> None:
    queues = [await open_queue(create=not number) for number in range(3)]
    await queues[0].put(b"late", delay=600)
    waiting = [asyncio.create_task(queue.receive()) for queue in queues[:2]]
    await blocked(db, 2)
    await queues[2].put_many([b"1", b"2"], delay=0.2)
    found = []

    async def settle(task: asyncio.Task[Any]) -> None:
        delivery = await task
        found.append(delivery.raw)
        await delivery.ack()

    await in_time(asyncio.gather(*map(settle, waiting)))
    assert sorted(found) == [b"1", b"2"]
    await eventually(lambda: db.zcard(KEYS.delayed) == 1)
