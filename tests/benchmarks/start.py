"""Measure the start of a program: imports, the first put, and the memory of an idle service.

Usage: python -m tests.benchmarks.start [--repetitions N]

Programs run in fresh interpreters, in turn. Their figure is processor time (user and system), which other programs
disturb least. All run from compiled bytecode, as an installed package does, even if the environment forbids writing
bytecode. A service's memory is its resident set two seconds after it began to wait. It is without OpenTelemetry, whose
SDK redis-py loads where it is installed, as it is beside the tests: that takes 3 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from apressure import AsyncQueue
from apressure.embedded import EmbeddedServer
from tests.benchmarks import show
from tests.benchmarks.cases import LIST, NAME
from tests.benchmarks.figures import Figure, figure

IDLE = f"{NAME}-idle"

PUT = f"""
import asyncio, sys
from apressure import AsyncQueue

async def main():
    async with AsyncQueue({NAME!r}, url=sys.argv[1]) as queue:
        await queue.put(b"x")

asyncio.run(main())
"""

LPUSH = f"""
import asyncio, sys
import redis.asyncio

async def main():
    async with redis.asyncio.Redis.from_url(sys.argv[1]) as client:
        await client.lpush({LIST!r}, b"x")

asyncio.run(main())
"""

SERVICE = f"""
import asyncio, sys

sys.modules["opentelemetry"] = None

from apressure import AsyncQueue, serve

async def handle(item):
    pass

asyncio.run(serve(handle, AsyncQueue({IDLE!r}, url=sys.argv[1])))
"""

CASES = (
    ("import apressure", "import apressure", "import asyncio", "import asyncio", 1.5),
    (
        "from apressure import AsyncQueue", "from apressure import AsyncQueue",
        "import redis.asyncio", "import redis.asyncio", 1.0,
    ),
    ("a program with one put", PUT, "redis.asyncio with one lpush", LPUSH, 1.3),
)  # fmt: skip
"""What is measured and the other side, each with its program, and the goal."""

MEMORY_GOAL = 40.0
"""Megabytes."""


def seconds(program: str, url: str, environment: dict[str, str]) -> float:
    """Return the processor time of a fresh interpreter that runs a program."""
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program, url], env=environment, check=True)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime


def measure(url: str, repetitions: int) -> Iterator[Figure]:
    """Run both programs of each case in turn. The queue exists."""
    with compiled() as environment:
        for name, ours, other, theirs, goal in CASES:
            pairs = [
                (seconds(ours, url, environment), seconds(theirs, url, environment)) for _ in range(repetitions + 1)
            ]
            yield figure("", name, other, "", "s", goal, pairs[1:])  # the first one compiles


async def idle_memory(url: str) -> float:
    """Return the megabytes of a service that waits in an empty queue. A first service compiles."""
    with compiled() as environment:
        for _ in range(2):
            service = subprocess.Popen([sys.executable, "-c", SERVICE, url], env=environment)
            try:
                async with AsyncQueue(IDLE, url=url) as queue:
                    while not (await queue.statistics()).workers:
                        if service.poll() is not None:
                            raise RuntimeError("the service has ended")
                        await asyncio.sleep(0.1)
                    await asyncio.sleep(2)
                memory = psutil.Process(service.pid).memory_info().rss / 1e6
            finally:
                service.terminate()
                service.wait()
    return memory


@contextmanager
def compiled() -> Iterator[dict[str, str]]:
    """Provide an environment in which programs keep and use bytecode."""
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        yield {**environment, "PYTHONPYCACHEPREFIX": bytecode}


async def create(url: str) -> None:
    """Make the queue that programs put into, and the empty one of the service."""
    for name in (NAME, IDLE):
        async with AsyncQueue(name, url=url) as queue:
            await queue.create()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.start", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=15, metavar="N")
    options = parser.parse_args()
    with EmbeddedServer(tcp=True) as server:
        asyncio.run(create(server.url))
        for one in measure(server.url, options.repetitions):
            print(show.line(one), flush=True)
        memory = asyncio.run(idle_memory(server.url))
    mark = "" if memory <= MEMORY_GOAL else "  not reached"
    print(f"  {'an idle service, resident memory':51} {memory:20,.1f} MB  (goal <= {MEMORY_GOAL:g}){mark}")


if __name__ == "__main__":
    main()
