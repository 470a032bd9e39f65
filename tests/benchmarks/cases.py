"""What is measured: pairs of coroutines that do the same work, ours and the one by hand.

Each returns a rate (higher is better) or a latency in seconds (lower is better).
"""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import redis.asyncio

from apressure import AsyncQueue

MESSAGE = b"x" * 100
BATCH = [MESSAGE] * 1000
NAME = "benchmark"
LIST = "benchmark-by-hand"


@dataclasses.dataclass
class Bench:
    """What a case works with."""

    url: str
    queue: AsyncQueue[bytes]
    redis: redis.asyncio.Redis
    scale: float

    def times(self, count: int) -> int:
        """A number of repetitions, smaller for a quick run."""
        return max(1, int(count * self.scale))


Measure = Callable[[Bench], Awaitable[list[float]]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A comparison.

    Attributes:
        name: What is measured.
        ours: Our figures.
        by_hand: The other's.
        unit: `"/s"` (higher is better), or the names of latencies in seconds (lower is better).
        goal: The ratio that we want to reach, for each figure.
    """

    name: str
    ours: Measure
    by_hand: Measure
    unit: tuple[str, ...]
    goal: tuple[float, ...]


async def rate(count: int, work: Callable[[], Awaitable[object]], each: int = 1) -> list[float]:
    """How many messages a second, when `work` moves `each` of them and is done `count` times."""
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


async def wake_up(bench: Bench) -> list[float]:
    """From the put to the return of a get that was blocked before; on connections and a client of its own."""
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


def percentiles(latencies: list[float]) -> list[float]:
    """The median and the 99th percentile."""
    latencies.sort()
    return [latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]]


async def between_processes(bench: Bench, count: int, *workers: str) -> list[float]:
    """Messages a second from a producer process to a consumer process, from the first message to the last."""
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
    Case("put one by one / redis-py lpush", put_one, lpush_one, ("/s",), (1.0,)),
    Case("get one by one / redis-py brpop", get_one, brpop_one, ("/s",), (1.0,)),
    Case("64 tasks putting / pipelines of 1,000 lpush", put_tasks, lpush_pipeline, ("/s",), (2.0,)),
    Case("put_many 1,000 / lpush of 1,000", put_batch, lpush_batch, ("/s",), (0.85,)),
    Case("get_many 1,000 / rpop with count 1,000", get_batch, rpop_batch, ("/s",), (0.6,)),
    Case("processes, put_many and consumer / reference", many_between_processes, reference_between_processes,
         ("/s",), (200.0,)),
    Case("processes, put and consumer / reference", one_by_one_between_processes, reference_between_processes,
         ("/s",), (8.0,)),
    Case("wake-up of a blocked get / lpush to brpop", wake_up, wake_up_brpop, ("s p50", "s p99"), (1.2, 1.5)),
)  # fmt: skip
