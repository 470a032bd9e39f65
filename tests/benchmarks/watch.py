"""Measure what watching many queues costs the server: `apressure top`, `apressure web` and `apressure metrics` do it.

Usage: python -m tests.benchmarks.watch [--queues N] [--messages N] [--seconds N] [--json FILE]

A third of the queues is of each kind that is on a server. The figures are parts of a core, less what the idle server
needs, and the seconds until each queue has been seen once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

import psutil
import redis

from apressure import AsyncQueue, Client, EventQueue, TaskQueue
from apressure.embedded import EmbeddedServer
from apressure.monitor.monitor import Monitor
from tests.benchmarks.__main__ import machine
from tests.servers import admin

_AT_A_TIME = 50


async def fill(url: str, queues: int, messages: int) -> None:
    """Create the queues, each with so many messages, and one keeper of each tenth queue."""
    room = asyncio.Semaphore(_AT_A_TIME)
    item = b"x" * 20

    async with Client(url) as client:

        async def one(number: int) -> None:
            kind = (AsyncQueue, EventQueue, TaskQueue)[number % 3]
            async with room, kind(f"queue-{number}", client=client, codec="raw") as queue:  # type: ignore[operator]
                await queue.create()
                await queue.put_many([item] * messages)

        for first in range(0, queues, 1000):
            await asyncio.gather(*map(one, range(first, min(queues, first + 1000))))


def cpu(db: redis.Redis) -> float:
    """Return the seconds of processor time that the server has taken."""
    info = db.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


async def watched(server: EmbeddedServer, queues: int, seconds: float) -> dict[str, Any]:
    """Watch the queues."""
    with admin(server) as db:
        idle = cpu(db)
        await asyncio.sleep(seconds / 3)
        idle = (cpu(db) - idle) / (seconds / 3)
        own, began, before = time.process_time(), time.monotonic(), cpu(db)
        async with Monitor(url=server.url) as monitor:
            while len(monitor.seen()) < queues:
                await asyncio.sleep(0.5)
            first = time.monotonic() - began
            searching = (cpu(db) - before) / first - idle
            before, then = cpu(db), time.monotonic()
            own_before = time.process_time()
            await asyncio.sleep(seconds)
            passed = time.monotonic() - then
            return {
                "seconds until all were seen": first,
                "server, until then": searching,
                "server, afterwards": (cpu(db) - before) / passed - idle,
                "watcher, until all were seen": (own_before - own) / first,
                "watcher, afterwards": (time.process_time() - own_before) / passed,
                "memory of the watcher, MB": psutil.Process().memory_info().rss / 1e6,
            }


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.watch", description=__doc__)
    parser.add_argument("--queues", type=int, default=1000, metavar="N")
    parser.add_argument("--messages", type=int, default=10, metavar="N", help="in each")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="N", help="for how long it measures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, too")
    options = parser.parse_args()
    with EmbeddedServer() as server:
        asyncio.run(fill(server.url, options.queues, options.messages))
        found = asyncio.run(watched(server, options.queues, options.seconds))
    for what, value in found.items():
        print(f"{what:32}{value:10.4f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), **vars(options), **found}, default=str) + "\n")


if __name__ == "__main__":
    main()
