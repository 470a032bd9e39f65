"""Killed processes, lost replies, servers that fail over: no task is lost, and none is ended twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis

from apressure import ClientClosedError, LeaseLostError, PressureError, TaskClient, TaskQueue
from apressure.concurrency.backoff import Backoff
from apressure.connection.wire import reconnecting
from apressure.embedded import EmbeddedServer
from apressure.tasks import Scheduler
from apressure.tasks.engine import waits
from apressure.testing.proxy import Proxy, Trouble
from tests.integration.deaths import each_trouble, killed_at_random, url_of
from tests.integration.tasks.conftest import Open, consistent, eventually, in_time
from tests.servers import SERVERS
from tests.topologies import must_be_empty, replicated, sentinel

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("server", ["redis"], indirect=True)  # the chaos test kills nodes on each
async def test_killed_processes_lose_nothing(open_queue: Open, url: str, db: redis.Redis) -> None:
    """Producers and listeners are killed at random times: each task that was put completes, and once."""
    queue = await open_queue(bound=20)
    dead = await killed_at_random(("put", "process"), 8, url, "tasks")
    await queue.close()
    left = []
    async with asyncio.timeout(90), queue.consumer("manual") as consumer:
        async for delivery in consumer:
            left.append(delivery.id)
            await delivery.complete("at last")
    put = {task for worker in dead for task in worker.noted("put")}
    done = [task for worker in dead for task in worker.noted("done")]
    assert len(put) > 20
    assert max(Counter(done).values(), default=1) == 1
    assert not set(done) & set(left)
    completed = [task.id async for task in queue.tasks("complete")]
    assert put <= set(completed)
    assert len(set(completed)) == len(completed)
    assert set(done) | set(left) <= set(completed)
    consistent(db)


@each_trouble
async def test_a_bad_line(open_queue: Open, db: redis.Redis, trouble: Trouble, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are sent again, and are not carried out twice."""
    monkeypatch.setattr(waits, "POLL", 0.1)  # messages are lost, too
    monkeypatch.setattr(reconnecting, "RECONNECT_BACKOFF", Backoff(0.01, 0.05))
    rng = random.Random()
    queue = await open_queue(bound=10)
    settings: Any = {"response_timeout": 1.0, "connect_timeout": 1.0, "retry_timeout": 60.0}
    handed: Counter[str] = Counter()
    done: Counter[str] = Counter()
    async with Proxy(url_of(db), rng) as line, contextlib.AsyncExitStack() as stack:
        putting, receiving = [
            await stack.enter_async_context(TaskQueue("jobs", url=line.url, **settings)) for _ in range(2)
        ]
        line.trouble = trouble

        async def put() -> None:
            for number in range(60):
                await putting.enqueue(number)
            assert await putting.put_many(range(60, 100)) == 40

        async def receive() -> None:
            while sum(done.values()) < 100:
                for delivery in await receiving.receive_many(3, lease=600):
                    handed[delivery.item] += 1
                    assert delivery.attempts == handed[delivery.item]
                    await delivery.start()
                    if rng.random() < 0.2:
                        await delivery.nack()
                    else:
                        await delivery.complete(delivery.item)
                        done[delivery.item] += 1

        async with asyncio.timeout(90), asyncio.TaskGroup() as group:
            group.create_task(put())
            group.create_task(receive())
        line.trouble = Trouble()
        assert line.cuts > 0
    assert sorted(done, key=int) == list(range(100))
    assert max(done.values()) == 1
    assert await queue.qsize() == 0
    assert (await queue.statistics()).in_flight == 0
    assert (await queue.statistics()).complete == 100
    consistent(db)


async def test_a_repeated_nack_succeeds_though_another_node_has_the_task(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.enqueue("a")
    async with Proxy(url_of(db)) as line, TaskQueue("jobs", url=line.url) as behind:
        await (await behind.receive()).nack()  # the server knows the script from here on
        delivery = await behind.receive(lease=600)
        line.trouble = Trouble(down=True, lose_next=1)
        giving_back = asyncio.create_task(delivery.nack())
        other = await in_time(queue.receive(lease=600))
        await eventually(lambda: line.cuts == 1)  # the reply is lost, however quickly the other node was woken
        line.trouble = Trouble()
        await in_time(giving_back)
    assert other.attempts == 3
    await other.complete()
    consistent(db)


async def test_a_queue_that_is_closed_while_a_loop_receives_keeps_nothing(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many(range(20))
    async with Proxy(url_of(db)) as line:
        slow = TaskQueue("jobs", url=line.url, settle_timeout=2.0)
        async with slow, slow.consumer("manual", lease=600, prefetch=5) as consumer:
            line.trouble.lag = 0.1
            receiving = asyncio.create_task(anext(consumer))
            await asyncio.sleep(0)  # the step leaves
            await in_time(slow.aclose())
            with pytest.raises(ClientClosedError):
                await in_time(receiving)
    assert (await queue.statistics()).in_flight == 0
    assert await queue.qsize() == 20


async def test_a_callback_that_raises_ends_nothing_else(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many(range(3))
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def fail(_: Exception) -> None:
        raise ZeroDivisionError

    async def consume() -> None:
        async with queue.consumer("manual", prefetch=3) as consumer:
            consumer.on_lost(fail)
            held = [await anext(consumer) for _ in range(3)]
            db.hset(f"blueque_task_{held[0].id}", "token", "of another node")
            for delivery in held:
                delivery.ack_soon()

    with pytest.raises(LeaseLostError):
        await in_time(consume())
    await eventually(lambda: failures)
    assert [type(failure) for failure in failures] == [ZeroDivisionError]
    assert (await queue.statistics()).complete == 2


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_failover_with_wait_loses_nothing(kind: str) -> None:
    with replicated(kind, lag=0.02) as pair:
        put: list[str] = []
        done: Counter[str] = Counter()
        stop = asyncio.Event()

        async def produce() -> None:
            async with TaskQueue("jobs", url=pair.url, durability=1, retry_timeout=60.0) as queue:
                while not stop.is_set():
                    with contextlib.suppress(PressureError):
                        put.append(await queue.enqueue("x"))

        async def process() -> None:
            async with TaskQueue("jobs", url=pair.url, durability=1, retry_timeout=60.0) as queue:
                while not stop.is_set():
                    with contextlib.suppress(PressureError, LeaseLostError):
                        delivery = await queue.receive(timeout=0.5, lease=2)
                        await delivery.complete()
                        done[delivery.id] += 1

        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            for work in (produce(), process()):
                group.create_task(work)
            for promoted in range(3):
                begun = len(put), len(done)
                await eventually(lambda begun=begun: len(put) > begun[0] + 20 and len(done) > begun[1] + 20)
                if promoted < 2:
                    await asyncio.to_thread(pair.promote)
            stop.set()
        async with TaskQueue("jobs", url=pair.url) as queue:
            await queue.close()
            async with asyncio.timeout(60), queue.consumer("manual") as consumer:
                async for delivery in consumer:
                    await delivery.complete()
            completed = [task.id async for task in queue.tasks("complete")]
            await queue.delete()
        assert len(put) > 10
        assert set(put) <= set(completed)
        assert max(done.values()) == 1
        assert len(set(completed)) == len(completed)


@pytest.mark.parametrize("kind", SERVERS)
async def test_sentinels(kind: str) -> None:
    """Those that wait, a listener with a task in hand, and those that wait for its result, go on at the new primary."""
    with sentinel(kind) as watched:
        options: dict[str, Any] = {"durability": 1, "retry_timeout": 60.0}
        async with TaskClient(watched.url, **options) as client, TaskClient(watched.url, **options) as other:
            queue = client.queue("jobs")
            first = await client.task(await queue.enqueue(1))
            async with client.listener("jobs", lease=60) as listener:
                task = await anext(listener)
                waiting = asyncio.create_task(other.queue("jobs").receive(lease=60))
                result = asyncio.create_task(first.wait())
                await asyncio.sleep(0.5)
                await asyncio.to_thread(watched.failover)
                second = await queue.enqueue(2)
                again = await in_time(waiting)
                assert (again.id, task.id) == (second, first.id)
                await client.processor(task).complete("done")
                assert await in_time(result) == "done"
                await again.complete()
            assert (await queue.statistics()).in_flight == 0
            await queue.delete()
        must_be_empty(watched.primary)


async def test_cancellations_lose_nothing(open_queue: Open, db: redis.Redis) -> None:
    """Operations are cancelled at every moment: tasks are where the keys say, and each completes once."""
    chosen = random.Random()
    # A cancelled operation learns its outcome: none of them waits for as long as this.
    queue, other = await open_queue(bound=30, settle_timeout=600), await open_queue(settle_timeout=600)
    done: Counter[int] = Counter()

    async def put(number: int) -> None:
        await queue.enqueue(number)

    async def process() -> None:
        delivery = await other.receive(timeout=0)
        await delivery.start()
        await delivery.progress(0.5)
        await chosen.choice([delivery.complete, delivery.nack, delivery.complete])()

    async def consume() -> None:
        async with other.consumer(lease=5) as consumer:
            async for _ in consumer:
                await asyncio.sleep(0)

    for number in range(80):
        tasks = [asyncio.create_task(work) for work in (put(number), process(), consume())]
        for _ in range(chosen.randrange(12)):
            await asyncio.sleep(0)
        if number % 7 == 0:
            await asyncio.sleep(chosen.uniform(0, 0.01))
        for task in tasks:
            task.cancel()
        await in_time(asyncio.wait(tasks))
        for task in tasks:
            error = None if task.cancelled() else task.exception()
            assert error is None or isinstance(error, PressureError)
            assert not isinstance(error, LeaseLostError)
    # What a cancelled `process` had started stays in its hands until its lease ends.
    leases = queue.steps.keys.leases
    for task_id in db.zrange(leases, 0, -1):
        db.zadd(leases, {task_id: 0})
    await queue.close()
    async with asyncio.timeout(90), queue.consumer("manual") as consumer:
        async for delivery in consumer:
            done[delivery.item] += 1
            await delivery.complete()
    consistent(db)
    completed = [task.parameters async for task in queue.tasks("complete")]
    assert len(set(completed)) == len(completed)
    assert (await queue.statistics()).in_flight == 0


async def test_a_hundred_thousand_tasks(make_server: Callable[..., EmbeddedServer]) -> None:
    """Enqueued, scheduled, moved, and drained: in order, and none is left."""
    server = make_server()
    async with TaskQueue("jobs", url=server.url) as queue:
        await drain_a_hundred_thousand(queue)
    with redis.Redis.from_url(server.url) as db:
        assert db.keys("blueque_task_*") == []


async def drain_a_hundred_thousand(queue: TaskQueue[Any]) -> None:
    assert await queue.put_many(range(50_000)) == 50_000
    now = 4e9  # by a clock of the test: in the future for the server

    async def schedule(begin: int) -> None:
        for number in range(begin, 100_000, 100):
            await queue.schedule(number, now + number / 1000)

    async with asyncio.TaskGroup() as group:
        for begin in range(50_000, 50_100):
            group.create_task(schedule(begin))
    assert (await queue.statistics()).scheduled == 50_000
    scheduler = Scheduler(queue.client, ["jobs"], clock=lambda: now + 1e6)
    while await scheduler.round() == 0:
        pass
    assert await queue.qsize() == 100_000
    got: list[int] = []
    while len(got) < 100_000:
        deliveries = await queue.receive_many(1000)
        got += [delivery.item for delivery in deliveries]
        for delivery in deliveries:
            delivery.ack_soon()
    await queue.settler.flushed()
    assert got == list(range(100_000))
    assert (await queue.statistics()).complete == 100_000
    assert await queue.purge("complete") == 100_000
