"""Processes that are killed, replies that get lost, servers that fail over: nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from typing import Any

import pytest
import redis

from apressure import EventQueue, LeaseLostError, OutcomeUnknownError, PressureError
from apressure.testing.proxy import Proxy, Trouble
from tests.integration.deaths import each_trouble, killed_at_random, start, url_of, workers
from tests.integration.events.conftest import Open, consistent, in_time
from tests.servers import SERVERS
from tests.topologies import cluster, must_be_empty, replicated, sentinel

pytestmark = pytest.mark.timeout(180)


async def test_killed_processes_lose_nothing(open_queue: Open, url: str, db: redis.Redis) -> None:
    """Producers and consumers are killed at random times: each put that returned is acknowledged, or still there."""
    queue = await open_queue(bound=20)

    def look() -> None:
        assert db.llen("queue:{jobs}") <= 20 + 24 * 3  # what the dead had is given back, also past the bound

    dead = await killed_at_random(("put", "consume"), 24, url, "events", look)
    await asyncio.sleep(2)
    await queue.close()
    left = []
    async with queue.consumer("manual") as consumer:
        async for delivery in consumer:
            left.append(delivery.id)
            await delivery.ack()
    put = {event for worker in dead for event in worker.noted("put")}
    acked = [event for worker in dead for event in worker.noted("acked")]
    assert len(put) > 20
    assert max(Counter(acked).values(), default=1) == 1
    assert not set(acked) & set(left)
    got = {event for worker in dead for event in worker.noted("got")}
    assert put <= set(acked) | set(left) | got
    # What was handed out, and neither acknowledged nor left, was acknowledged by a consumer that died before its note.
    assert len(put - set(acked) - set(left)) <= len(dead)
    assert consistent(db)


async def test_the_bound_is_never_exceeded(open_queue: Open, url: str, db: redis.Redis) -> None:
    await open_queue(bound=5)
    async with workers() as running:
        for number in range(16):
            running[str(number)] = await start(("put", "consume")[number % 2], url, str(number), "events")
        for worker in running.values():
            await worker.ready()
        most = 0
        loop = asyncio.get_running_loop()
        until = loop.time() + 3
        while loop.time() < until:
            for _ in range(50):
                most = max(most, db.llen("queue:{jobs}"))
            await asyncio.sleep(0)
        for worker in running.values():
            await worker.kill()
    got = Counter(event for worker in running.values() for event in worker.noted("got"))
    assert len(got) > 50
    assert 1 <= most <= 5


@each_trouble
async def test_a_bad_line(open_queue: Open, url: str, db: redis.Redis, trouble: Trouble) -> None:
    """Steps are sent again, and are not carried out twice."""
    rng = random.Random()
    queue = await open_queue(bound=10)
    settings = {"response_timeout": 1.0, "connect_timeout": 1.0, "retry_timeout": 60.0}
    handed: Counter[str] = Counter()
    acked: Counter[str] = Counter()
    async with Proxy(url_of(db), rng) as line, contextlib.AsyncExitStack() as stack:
        putting, receiving = [
            await stack.enter_async_context(EventQueue("jobs", url=line.url, **settings)) for _ in range(2)
        ]
        line.trouble = trouble

        async def put() -> None:
            for number in range(60):
                await putting.put(b"x", id=str(number))
            assert await putting.put_many([b"y"] * 40) == 40

        async def receive() -> None:
            while sum(acked.values()) < 100:
                for delivery in await receiving.receive_many(3, lease=600):
                    handed[delivery.id] += 1
                    if rng.random() < 0.2:
                        await delivery.nack()
                    else:
                        await delivery.ack()
                        acked[delivery.id] += 1

        async with asyncio.timeout(90), asyncio.TaskGroup() as group:
            group.create_task(put())
            group.create_task(receive())
        line.trouble = Trouble()
        assert line.cuts > 0
    assert len(acked) == 100
    assert max(acked.values()) == 1
    assert await queue.qsize() == 0
    assert (await queue.statistics()).in_flight == 0
    assert consistent(db)


async def test_a_get_whose_reply_is_lost_is_not_repeated(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    async with Proxy(url_of(db), random.Random()) as line, EventQueue("jobs", url=line.url) as getting:
        assert await getting.get() == b"1"
        line.trouble = Trouble(lose=1.0)
        task = asyncio.create_task(getting.get())
        with pytest.raises(OutcomeUnknownError):
            await in_time(task)
        line.trouble = Trouble()
    assert await queue.qsize() == 0


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_failover_with_wait_loses_nothing(kind: str) -> None:
    with replicated(kind, lag=0.02) as pair:
        put: list[str] = []
        got: Counter[str] = Counter()
        stop = asyncio.Event()

        async def produce() -> None:
            async with EventQueue("jobs", url=pair.url, durability=1, retry_timeout=60.0) as queue:
                number = 0
                while not stop.is_set():
                    with contextlib.suppress(PressureError):
                        await queue.put(b"x", id=str(number))
                        put.append(str(number))
                    number += 1

        async def receive() -> None:
            async with EventQueue("jobs", url=pair.url, durability=1, retry_timeout=60.0) as queue:
                while not stop.is_set():
                    with contextlib.suppress(PressureError, LeaseLostError):
                        delivery = await queue.receive(timeout=0.5, lease=2)
                        await delivery.ack()
                        got[delivery.id] += 1

        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            for work in (produce(), receive()):
                group.create_task(work)
            for _ in range(2):
                await asyncio.sleep(1)
                await asyncio.to_thread(pair.promote)
            await asyncio.sleep(1)
            stop.set()
        async with EventQueue("jobs", url=pair.url) as queue:
            await asyncio.sleep(2.5)
            left = []
            await queue.close()
            async with queue.consumer("manual") as consumer:
                async for delivery in consumer:
                    left.append(delivery.id)
                    await delivery.ack()
            await queue.delete()
        assert len(put) > 10
        assert set(put) <= set(got) | set(left)
        assert max(got.values()) == 1
        assert not set(got) & set(left)


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_cluster(kind: str) -> None:
    """All keys of a queue are on one node, whatever its name; several queues on several nodes at once."""
    with cluster(kind, nodes=3) as nodes:
        names = ["one", "two", "with:colon", "three"]
        async with contextlib.AsyncExitStack() as stack:
            queues = [await stack.enter_async_context(EventQueue(name, url=nodes.url)) for name in names]
            for queue in queues:
                await queue.create(2)
                await queue.put(queue.name.encode())
                await queue.put(b"x")
                assert (await queue.statistics()).length == 2
                await (await queue.receive(lease=60)).nack()
                await queue.close()
            found = []
            async with EventQueue.consume(*names, url=nodes.url) as consumer:
                async for delivery in consumer:
                    found.append((consumer.name, delivery.raw))
                    await delivery.ack()
            assert sorted(found) == sorted(
                [*((name, b"x") for name in names), *((name, name.encode()) for name in names)]
            )
            for queue in queues:
                await queue.delete()
        must_be_empty(*nodes.servers)


@pytest.mark.parametrize("kind", SERVERS)
async def test_sentinels(kind: str) -> None:
    """Clients that wait, and a consumer with an event in hand, go on at the new primary."""
    with sentinel(kind) as watched:
        options: dict[str, Any] = {"url": watched.url, "durability": 1, "retry_timeout": 60.0}
        async with EventQueue("jobs", **options) as queue, EventQueue("jobs", **options) as other:
            await queue.put(b"1", id="a")
            async with queue.consumer("manual", lease=60) as consumer:
                delivery = await anext(consumer)
                waiting = asyncio.create_task(other.receive(lease=60))
                await asyncio.sleep(0.5)
                await asyncio.to_thread(watched.failover)
                await queue.put(b"2", id="b")
                again = await in_time(waiting)
                assert (again.id, delivery.id) == ("b", "a")
                await delivery.ack()
                await again.ack()
            assert (await queue.statistics()).in_flight == 0
        must_be_empty(watched.primary)
