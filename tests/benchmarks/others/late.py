"""How late delayed jobs of other libraries come: `python -m tests.benchmarks.others.late docket|bullmq URL COUNT`.

As `lateness` in tests/benchmarks/control.py measures ours, with each library's own settings. It prints one line of
JSON: milliseconds from the time when a job is due until its worker has it, the 99th percentile, and the version.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any, Final

NAME: Final = "benchmark"
LONGEST: Final = 2.0
"""Seconds: the longest delay. The shortest is a fifth of a second."""

Done = Callable[[float], None]
"""A job that was due at this time, in seconds since 1970, has begun."""


async def docket(url: str, delays: list[float], done: Done, finished: asyncio.Event) -> None:
    """Put and do delayed jobs with docket."""
    from docket import Docket, Worker

    async def work(due: float) -> None:
        done(due)

    async with Docket(name=NAME, url=url) as queue:
        queue.register(work)
        async with Worker(queue) as worker:
            working = asyncio.ensure_future(worker.run_forever())
            for delay in delays:
                due = time.time() + delay
                await queue.add(work, when=datetime.now(UTC) + timedelta(seconds=delay))(due)
            await finished.wait()
            working.cancel()


async def bullmq(url: str, delays: list[float], done: Done, finished: asyncio.Event) -> None:
    """Put and do delayed jobs with BullMQ."""
    from bullmq import Queue, Worker

    async def work(job: Any, token: str) -> None:
        done(job.data["due"])

    queue = Queue(NAME, {"connection": url})
    worker = Worker(NAME, work, {"connection": url, "autorun": False})
    working = asyncio.ensure_future(worker.run())
    for delay in delays:
        await queue.add("work", {"due": time.time() + delay}, {"delay": round(delay * 1000)})
    await finished.wait()
    working.cancel()


LIBRARIES: Final[dict[str, tuple[Callable[..., Awaitable[None]], str]]] = {
    "docket": (docket, "pydocket"), "bullmq": (bullmq, "bullmq"),
}  # fmt: skip


async def main() -> None:
    """Measure, and print the result."""
    name, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    measure, package = LIBRARIES[name]
    finished, late = asyncio.Event(), []

    def done(due: float) -> None:
        late.append(1000 * (time.time() - due))
        if len(late) == count:
            finished.set()

    await measure(url, [random.uniform(0.2, LONGEST) for _ in range(count)], done, finished)
    print(json.dumps({"late": statistics.quantiles(late, n=100)[-1], "version": version(package)}), flush=True)
    os._exit(0)  # the end of a worker is not measured


if __name__ == "__main__":
    asyncio.run(main())
