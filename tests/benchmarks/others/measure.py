"""The command line of all libraries: `python -m tests.benchmarks.others.NAME enqueue|consume URL COUNT [TERMS]`.

It prints one line of JSON: jobs a second, and the versions. A fifth of COUNT more jobs warm up first, so the figure
excludes the start of the process, its first connection and a cold JIT compiler.

With TERMS, which tests/benchmarks/peers.py describes, jobs are enqueued one at a time, and 32 are done at a time.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from typing import Any, Final

NAME = "benchmark"
PAYLOAD = "x" * 100
BULK = 1000
"""How many jobs go into one call of a bulk API. All of them do well with it, and hardly better with more."""

CONCURRENCY: Final = 32
"""How many jobs are done at a time with terms. docket has too few connections for 100."""

NEVER_REACHED: Final = 1_000_000
"""Jobs a second: a rate that limits nothing."""


class Stopwatch:
    """Takes the time from the end of the warm-up to the last job.

    Args:
        count: How many jobs are measured.

    Attributes:
        jobs: How many jobs there are, with the warm-up.
        finished: Set after the last job.
    """

    def __init__(self, count: int) -> None:
        self.finished = asyncio.Event()
        self.jobs = warm_up(count) + count
        self._count = count
        self._done = 0
        self._begin = self._end = 0.0

    def job(self) -> None:
        """Do the work of a job: count."""
        self._done += 1
        if self._done == self.jobs - self._count:
            self._begin = time.perf_counter()
        elif self._done == self.jobs:
            self._end = time.perf_counter()
            self.finished.set()

    def rate(self) -> float:
        """Return jobs a second."""
        return self._count / (self._end - self._begin)


Put = Callable[[int], Awaitable[None]]
Producer = Callable[..., AbstractAsyncContextManager[Put]]
"""Of a URL, and of terms if there are any, a context with a function that enqueues so many jobs."""
Consume = Callable[..., Coroutine[Any, Any, None]]
"""Runs a worker of a URL whose jobs tell the stopwatch, until it is cancelled or has nothing left to do."""


def main(producer: Producer, consume: Consume, *packages: str) -> None:
    """Measure, and print the result with the versions of the packages."""
    what, url, jobs, *terms = sys.argv[1:]
    count = int(jobs)
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        rate = runner.run(
            enqueued(producer, url, count, *terms) if what == "enqueue" else consumed(consume, url, count, *terms)
        )
        print(json.dumps({"rate": rate, "versions": {name: version(name) for name in packages}}), flush=True)
        os._exit(0)  # the end of a worker is not measured


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop if it is installed: it makes all libraries faster, and ours."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def enqueued(producer: Producer, url: str, count: int, *terms: str) -> float:
    """Return enqueued jobs a second."""
    async with producer(url, *terms) as put:
        await put(warm_up(count))
        begin = time.perf_counter()
        await put(count)
        return count / (time.perf_counter() - begin)


async def consumed(consume: Consume, url: str, count: int, *terms: str) -> float:
    """Return jobs done a second, from a filled queue."""
    watch = Stopwatch(count)
    worker = asyncio.create_task(consume(url, watch, *terms))
    finished = asyncio.create_task(watch.finished.wait())
    await asyncio.wait([worker, finished], return_when=asyncio.FIRST_COMPLETED)
    if not watch.finished.is_set():
        await worker
        raise RuntimeError("the worker ended before it had done its jobs")
    return watch.rate()


async def concurrently(tasks: int, count: int, enqueue: Callable[[], Awaitable[object]]) -> None:
    """Enqueue one job a call from several tasks, for libraries that have no call for many jobs."""
    left = iter(range(count))

    async def feed() -> None:
        for _ in left:
            await enqueue()

    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(feed())


def order(terms: str) -> str | None:
    """Return the id of the next job that is enqueued: one of its own, that of all the others, or none."""
    return {"once": f"order-{time.perf_counter_ns()}", "again": "order"}.get(terms)


def customer() -> str:
    """Return one of 10,000 keys, as `keyed` in tests/benchmarks/control.py."""
    return f"customer-{random.randrange(10_000)}"


def bulks(count: int) -> list[int]:
    """Return the sizes of the bulks for a number of jobs."""
    sizes = [BULK] * (count // BULK)
    return [*sizes, count % BULK] if count % BULK else sizes


def warm_up(count: int) -> int:
    """Return the number of warm-up jobs."""
    return max(1, count // 5)
