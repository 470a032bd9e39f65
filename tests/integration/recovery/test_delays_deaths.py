"""Delayed messages of an AsyncQueue through deaths, restarts, bad lines, full servers, and damage."""

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
    ServerError,
    recovery,
)
from apressure.embedded import EmbeddedServer
from apressure.exceptions import QueueEmptyError
from apressure.pressure.engine import keys as spelling
from apressure.pressure.engine.keys import Keys
from apressure.testing.proxy import Proxy, Trouble
from tests import processes
from tests.integration.conftest import Opener, blocked, blocking, eventually, fails, in_time
from tests.integration.deaths import each_trouble

KEYS = Keys("__pressure__", "jobs")
POPPED = KEYS.ours[11]


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
    process = await processes.start(sys.executable, "-c", WORKER, url, shared, "1.0", stdout=asyncio.subprocess.PIPE)
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
    db.rpush(POPPED + b"x", "")
    db.rename(POPPED + b"x", POPPED)
    assert sorted(message for message, _ in await taken(queue)) == [b"3", b"4", b"5"]


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
