"""The benchmarks: pairs of coroutines that do the same work, ours and code by hand.

Each returns a rate (higher is better) or a latency in seconds (lower is better).
"""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import redis.asyncio

from apressure import AsyncQueue, EventQueue
from apressure.events import EventDelivery
from tests.benchmarks.figures import RATE

MESSAGE = b"x" * 100
BATCH = [MESSAGE] * 1000
NAME = "benchmark"
LIST = "benchmark-by-hand"


@dataclasses.dataclass
class Bench:
    """The client and the queue of a benchmark."""

    url: str
    queue: AsyncQueue[bytes]
    redis: redis.asyncio.Redis
    scale: float

    def times(self, count: int) -> int:
        """Return a number of repetitions, smaller for a quick run."""
        return max(1, int(count * self.scale))


Measure = Callable[[Bench], Awaitable[list[float]]]
Put = Callable[[bytes], Awaitable[object]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A comparison.

    Attributes:
        name: The measured operation.
        other: What it is compared with.
        ours: Our figures.
        by_hand: The other's.
        unit: The unit of the figures; see `figures`.
        goal: The ratio to reach, for each figure.
        one_process: Whether everything runs on the event loop of this process.
    """

    name: str
    other: str
    ours: Measure
    by_hand: Measure
    unit: tuple[str, ...]
    goal: tuple[float, ...]
    one_process: bool = True


async def rate(count: int, work: Callable[[], Awaitable[object]], each: int = 1) -> list[float]:
    """Return messages a second: `work` moves `each` messages, and is called `count` times."""
    begin = time.perf_counter()
    for _ in range(count):
        await work()
    return [count * each / (time.perf_counter() - begin)]


async def put_one(bench: Bench) -> list[float]:
    return await rate(bench.times(5000), lambda: bench.queue.put(MESSAGE))


async def lpush_one(bench: Bench) -> list[float]:
    return await rate(bench.times(5000), lambda: bench.redis.lpush(LIST, MESSAGE))


async def get_one(bench: Bench) -> list[float]:
    count = bench.times(5000)
    await bench.queue.put_many([MESSAGE] * count)
    return await rate(count, bench.queue.get)


async def brpop_one(bench: Bench) -> list[float]:
    count = bench.times(5000)
    await bench.redis.lpush(LIST, *[MESSAGE] * count)
    return await rate(count, lambda: bench.redis.brpop(LIST, 0))


async def put_tasks(bench: Bench) -> list[float]:
    each = bench.times(1000)

    async def feed() -> None:
        for _ in range(each):
            await bench.queue.put(MESSAGE)

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(64):
            group.create_task(feed())
    return [64 * each / (time.perf_counter() - begin)]


async def lpush_pipeline(bench: Bench) -> list[float]:
    async def pipeline() -> None:
        async with bench.redis.pipeline(transaction=False) as commands:
            for _ in range(1000):
                commands.lpush(LIST, MESSAGE)
            await commands.execute()

    return await rate(bench.times(50), pipeline, 1000)


async def put_batch(bench: Bench) -> list[float]:
    return await rate(bench.times(100), lambda: bench.queue.put_many(BATCH), 1000)


async def lpush_batch(bench: Bench) -> list[float]:
    return await rate(bench.times(100), lambda: bench.redis.lpush(LIST, *BATCH), 1000)


async def get_batch(bench: Bench) -> list[float]:
    count = bench.times(100)
    await bench.queue.put_many([MESSAGE] * (1000 * count))
    return await rate(count, lambda: bench.queue.get_many(1000), 1000)


async def rpop_batch(bench: Bench) -> list[float]:
    count = bench.times(100)
    for _ in range(count):
        await bench.redis.lpush(LIST, *BATCH)
    return await rate(count, lambda: bench.redis.rpop(LIST, 1000), 1000)


async def consume(bench: Bench) -> list[float]:
    """Consume at-least-once, until the last message is acknowledged."""
    count = bench.times(100_000)
    async with bench.queue.producer() as producer:
        await producer.put_many([MESSAGE] * count)
    begin = time.perf_counter()
    async with bench.queue.consumer() as items:
        received = await length(items)
    assert received == count, received
    return [count / (time.perf_counter() - begin)]


async def length(items: AsyncIterator[bytes]) -> int:
    """Count the items until the end."""
    received = 0
    async for _ in items:
        received += 1
    return received


async def read_group(bench: Bench) -> list[float]:
    count = bench.times(100_000)
    fill = "for _ = 1, ARGV[2] do redis.call('XADD', KEYS[1], '*', 'message', ARGV[1]) end"
    await bench.redis.eval(fill, 1, LIST, MESSAGE, count)
    await bench.redis.xgroup_create(LIST, "group", id="0")
    received = 0
    begin = time.perf_counter()
    while received < count:
        reply: Any = await bench.redis.xreadgroup("group", "consumer", {LIST: ">"}, count=100)
        ((_, entries),) = reply.items() if isinstance(reply, dict) else reply  # RESP3 or RESP2
        ids = [entry_id for entry_id, _ in entries]
        received += len(ids)
        await bench.redis.xack(LIST, "group", *ids)
    return [count / (time.perf_counter() - begin)]


async def wake_up(bench: Bench) -> list[float]:
    """Measure from a put to the return of a get that was blocked before, with a client of its own."""
    latencies = []
    async with AsyncQueue(NAME, url=bench.url) as getter:
        for _ in range(bench.times(400)):
            blocked = asyncio.ensure_future(getter.get())
            await asyncio.sleep(0.002)
            begin = time.perf_counter()
            await bench.queue.put(MESSAGE)
            await blocked
            latencies.append(time.perf_counter() - begin)
    return percentiles(latencies)


async def wake_up_brpop(bench: Bench) -> list[float]:
    latencies = []
    for _ in range(bench.times(400)):
        blocked = asyncio.ensure_future(bench.redis.brpop(LIST, 0))
        await asyncio.sleep(0.002)
        begin = time.perf_counter()
        await bench.redis.lpush(LIST, MESSAGE)
        await blocked
        latencies.append(time.perf_counter() - begin)
    return percentiles(latencies)


async def woken(bench: Bench, put: Put, take: Callable[[], Awaitable[object]]) -> list[float]:
    """The same for others that wait, in the task that has called this."""
    latencies, begin = [], 0.0

    async def put_soon() -> None:
        nonlocal begin
        await asyncio.sleep(0.002)
        begin = time.perf_counter()
        await put(MESSAGE)

    for _ in range(bench.times(400)):
        putting = asyncio.ensure_future(put_soon())
        taken = await take()
        await putting
        latencies.append(time.perf_counter() - begin)
        if isinstance(taken, EventDelivery):
            await taken.ack()
    return percentiles(latencies)


async def wake_up_consumer(bench: Bench, shared: bool = False) -> list[float]:
    async with AsyncQueue(NAME, url=bench.url) as getter, getter.consumer(shared=shared) as consumer:
        return await woken(bench, bench.queue.put, consumer.__anext__)


async def wake_up_member(bench: Bench) -> list[float]:
    return await wake_up_consumer(bench, shared=True)


async def wake_up_events(bench: Bench) -> list[float]:
    async with (
        EventQueue(NAME, url=bench.url) as queue,
        EventQueue(NAME, url=bench.url) as getter,
        getter.consumer() as consumer,
    ):
        return await woken(bench, queue.put, consumer.__anext__)


async def wake_up_receive(bench: Bench) -> list[float]:
    async with EventQueue(NAME, url=bench.url) as queue, EventQueue(NAME, url=bench.url) as getter:
        return await woken(bench, queue.put, getter.receive)


def percentiles(latencies: list[float]) -> list[float]:
    """Return the median and the 99th percentile."""
    latencies.sort()
    return [latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]]


async def between_processes(bench: Bench, count: int, *workers: str) -> list[float]:
    """Return messages a second from a producer process to a consumer process, from the first message to the last."""
    await bench.queue.delete()
    await bench.queue.create(bound=1000)
    command = [sys.executable, "-m", "tests.benchmarks.worker", bench.url, NAME, str(count)]
    processes = [subprocess.Popen([*command, worker], stdout=subprocess.PIPE) for worker in workers]
    try:
        times = [float((await asyncio.to_thread(process.communicate))[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    await bench.queue.delete()
    await bench.queue.create()
    return [count / (times[1] - times[0])]


async def many_between_processes(bench: Bench) -> list[float]:
    return await between_processes(bench, bench.times(300_000), "put_many", "consumer")


async def one_by_one_between_processes(bench: Bench) -> list[float]:
    return await between_processes(bench, bench.times(30_000), "put", "consumer")


async def reference_between_processes(bench: Bench) -> list[float]:
    return await between_processes(bench, bench.times(1500), "reference_put", "reference_get")


CASES = (
    Case("put one by one", "redis-py lpush", put_one, lpush_one, (RATE,), (1.0,)),
    Case("get one by one", "redis-py brpop", get_one, brpop_one, (RATE,), (1.0,)),
    Case("64 tasks putting", "pipelines of 1,000 lpush", put_tasks, lpush_pipeline, (RATE,), (2.0,)),
    Case("put_many 1,000", "lpush of 1,000", put_batch, lpush_batch, (RATE,), (0.85,)),
    Case("get_many 1,000", "rpop with count 1,000", get_batch, rpop_batch, (RATE,), (0.6,)),
    Case("async for item in consumer", "xreadgroup 100, xack", consume, read_group, (RATE,), (2.0,)),
    Case("wake-up of a blocked get", "lpush to brpop", wake_up, wake_up_brpop, ("s p50", "s p99"), (1.2, 1.5)),
    *(
        Case(f"wake-up of {what}", "lpush to brpop", measure, wake_up_brpop, ("s p50", "s p99"), (1.2, 1.5))
        for what, measure in (
            ("a consumer", wake_up_consumer), ("a member", wake_up_member),
            ("an EventQueue's consumer", wake_up_events), ("an EventQueue's receive", wake_up_receive),
        )
    ),
    Case("processes, put_many and consumer", "reference", many_between_processes, reference_between_processes,
         (RATE,), (200.0,), one_process=False),
    Case("processes, put and consumer", "reference", one_by_one_between_processes, reference_between_processes,
         (RATE,), (8.0,), one_process=False),
)  # fmt: skip
