"""Measure what watching many queues costs the server: `apressure top`, `apressure web` and `apressure metrics` do it.

Usage: python -m tests.benchmarks.watch [--queues N] [--messages N] [--pages N] [--seconds N] [--json FILE]

A third of the queues is of each kind that is on a server. The figures are parts of a core, less what the idle server
needs, and the seconds until each queue has been seen once. With `--pages`, an `apressure web` watches the queues
instead, and so many pages of it are open: half of them show the overview, and half a queue with a day of history. They
do what a browser does, over HTTP: they wait for events, and load themselves again. Where Chromium is installed, it then
loads the overview, for the time until something is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import redis

from apressure import AsyncQueue, Client, EventQueue, TaskQueue
from apressure.core.history import KEPT, Minute
from apressure.embedded import EmbeddedServer
from apressure.monitor.monitor import Monitor
from tests import processes
from tests.benchmarks.__main__ import machine
from tests.integration.commands import COMMAND, environment
from tests.integration.web.browser import browser, is_installed
from tests.servers import admin

_AT_A_TIME = 50

_SETTLES = 10.0
"""Seconds for which pages are open before it measures."""

_LOADS = 21
"""How often the overview is loaded."""

_KINDS = (AsyncQueue, EventQueue, TaskQueue)
_SCHEMES = ("", "events:", "tasks:")
"""Of addresses, in the same order."""


async def fill(url: str, queues: int, messages: int) -> None:
    """Create the queues, each with so many messages, and one keeper of each tenth queue."""
    room = asyncio.Semaphore(_AT_A_TIME)
    item = b"x" * 20

    async with Client(url) as client:

        async def one(number: int) -> None:
            kind = _KINDS[number % 3]
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


async def fill_history(url: str, queues: int) -> None:
    """Give the first queues a day of history each."""
    first = int(time.time()) // 60 * 60 - KEPT * 60
    async with Client(url) as client:
        for number in range(queues):
            queue = _KINDS[number % 3](f"queue-{number}", client=client)  # type: ignore[operator]
            for minute in range(KEPT):
                await queue.write_history(Minute(first + minute * 60, 1000 + minute, 10, 3, 600, 590, 17))


class Pages:
    """Open pages.

    Args:
        base: The URL of `apressure web`.

    Attributes:
        loads: How often they were loaded.
        size: Bytes that were loaded.
    """

    def __init__(self, base: str) -> None:
        self.loads = self.size = 0
        self._http = httpx.AsyncClient(base_url=base, timeout=60, limits=httpx.Limits(max_connections=None))

    async def show(self, path: str) -> None:
        """Keep a page open until this is cancelled."""
        while True:
            async with self._http.stream("GET", "events") as events:
                async for line in events.aiter_lines():
                    if line.startswith("event:"):
                        answer = await self._http.get(path)
                        answer.raise_for_status()
                        self.loads += 1
                        self.size += len(answer.content)

    async def seen(self) -> int:
        """Return how many queues were seen."""
        with contextlib.suppress(httpx.ConnectError):
            found: int = (await self._http.get("?format=json")).json()["watched"]
            return found
        return 0


@contextlib.asynccontextmanager
async def served(url: str) -> AsyncIterator[tuple[psutil.Process, str]]:
    """Run `apressure web` in a process of its own, with its usual options."""
    process = await processes.start(
        *COMMAND, "web", "--port", "0", env=environment(url), stdout=asyncio.subprocess.PIPE
    )
    try:
        said = (await process.stdout.readline()).decode() if process.stdout else ""
        address = re.search(r"http://\S+/", said)
        if address is None:
            raise RuntimeError(f"the page has not started: {said}")
        yield psutil.Process(process.pid), address[0]
    finally:
        process.terminate()
        await process.wait()


async def opened(server: EmbeddedServer, queues: int, pages: int, seconds: float) -> dict[str, Any]:
    """Have pages open."""
    await fill_history(server.url, pages // 2)
    with admin(server) as db:
        idle = cpu(db)
        await asyncio.sleep(seconds / 3)
        idle = (cpu(db) - idle) / (seconds / 3)
        async with served(server.url) as (process, base), asyncio.TaskGroup() as group:
            shown = Pages(base)
            while await shown.seen() < queues:
                await asyncio.sleep(0.5)
            paths = [
                f"queue?at={quote(_SCHEMES[number % 3])}queue-{number}&hours=24" for number in range(pages // 2)
            ] + [f"?page={number + 1}" for number in range(pages - pages // 2)]
            showing = [group.create_task(shown.show(path)) for path in paths]
            await asyncio.sleep(_SETTLES)
            shown.loads, shown.size = 0, 0
            before, own, then = cpu(db), sum(process.cpu_times()[:2]), time.monotonic()
            await asyncio.sleep(seconds)
            passed = time.monotonic() - then
            found = {
                "server, with open pages": (cpu(db) - before) / passed - idle,
                "page's process": (sum(process.cpu_times()[:2]) - own) / passed,
                "loads a second": shown.loads / passed,
                "kB of a load": shown.size / max(1, shown.loads) / 1000,
                "memory of the page's process, MB": process.memory_info().rss / 1e6,
            }
            if is_installed():
                found["ms until the overview is shown"] = await asyncio.to_thread(shown_after, base)
            for one in showing:
                one.cancel()
        return found


def shown_after(page: str) -> float:
    """Return the median of the milliseconds after which Chromium shows something of a page (first contentful paint)."""
    with tempfile.TemporaryDirectory() as home, browser(Path(home)) as chromium:
        found = []
        for _ in range(_LOADS):
            chromium.get("about:blank")
            chromium.get(page)
            paint = "return performance.getEntriesByName('first-contentful-paint').map((one) => one.startTime)[0]"
            while (after := chromium.execute_script(paint)) is None:
                time.sleep(0.02)
            found.append(float(after))
    return statistics.median(found)


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.watch", description=__doc__)
    parser.add_argument("--queues", type=int, default=1000, metavar="N")
    parser.add_argument("--messages", type=int, default=10, metavar="N", help="in each")
    parser.add_argument("--pages", type=int, default=0, metavar="N", help="so many open pages of `apressure web`")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="N", help="for how long it measures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, too")
    options = parser.parse_args()
    with EmbeddedServer() as server:
        asyncio.run(fill(server.url, options.queues, options.messages))
        if options.pages:
            found = asyncio.run(opened(server, options.queues, options.pages, options.seconds))
        else:
            found = asyncio.run(watched(server, options.queues, options.seconds))
    for what, value in found.items():
        print(f"{what:34}{value:10.4f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), **vars(options), **found}, default=str) + "\n")


if __name__ == "__main__":
    main()
