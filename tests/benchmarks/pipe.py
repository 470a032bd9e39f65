"""Compare a stage that changes nothing with a loop that puts each item before it takes the next one.

Usage: python -m tests.benchmarks.pipe [--messages N] [--repetitions N] [--concurrency N] [--shared]

Both move messages of 100 bytes between two queues of one server, in turn, in one process; the ratio is that of the
medians. The loop moves a thirtieth of the messages. Processor time, of this process and of the server, is what other
programs on the machine disturb least.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import redis

from apressure import AsyncQueue, Client, pipe
from apressure.embedded import EmbeddedServer
from tests.benchmarks.cases import MESSAGE
from tests.servers import KINDS, CannotRun, admin, binary_of

GOAL = 20
Queue = AsyncQueue[bytes]


async def same(item: bytes) -> bytes:
    return item


async def loop(source: Queue, destination: Queue) -> None:
    """Put each item before the next one is asked for, which acknowledges it."""
    async with source.consumer() as consumer:
        async for item in consumer:
            await destination.put(item)


async def measure(
    client: Client, db: redis.Redis, count: int, move: Callable[[Queue, Queue], Awaitable[object]]
) -> tuple[float, float]:
    """Return messages a second, and microseconds of processor time for each."""

    def processor() -> float:
        server = db.info("cpu")
        return float(time.process_time() + server["used_cpu_user"] + server["used_cpu_sys"])

    source, destination = Queue("benchmark-in", client=client), Queue("benchmark-out", client=client)
    for queue in (source, destination):
        await queue.create()
    await source.put_many([MESSAGE] * count)
    await source.close()
    used, begin = processor(), time.perf_counter()
    await move(source, destination)
    seconds, used = time.perf_counter() - begin, processor() - used
    assert await destination.qsize() == count
    for queue in (source, destination):
        await queue.delete()
    return count / seconds, 1e6 * used / count


async def compare(server: EmbeddedServer, messages: int, repetitions: int, **how: Any) -> None:
    stages, loops = [], []
    async with Client(server.url) as client:
        with admin(server) as db:
            for _ in range(repetitions):
                stages.append(await measure(client, db, messages, lambda here, there: pipe(here, same, there, **how)))
                loops.append(await measure(client, db, messages // 30, loop))
    (rate, work), (slow, slow_work) = (
        [statistics.median(figures) for figures in zip(*side, strict=True)] for side in (stages, loops)
    )
    print(
        f"{server.software} {server.version}: pipe {rate:,.0f}/s, loop {slow:,.0f}/s: {rate / slow:.1f} times "
        f"(goal {GOAL}); processor {work:.1f} and {slow_work:.1f} µs a message: {slow_work / work:.1f} times"
    )


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.pipe", description=__doc__)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--shared", action="store_true", help="the stage shares its source, though with no other")
    options = parser.parse_args()
    for kind in KINDS:
        try:
            program = binary_of(kind)
        except CannotRun as missing:
            print(f"left out: {missing}")
            continue
        with EmbeddedServer(binary=program, tcp=True) as server:
            asyncio.run(
                compare(
                    server,
                    options.messages,
                    options.repetitions,
                    concurrency=options.concurrency,
                    shared=options.shared,
                )
            )


if __name__ == "__main__":
    main()
