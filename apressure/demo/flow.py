"""Rows that flow from a feeder process over a queue to a reader process: the server, both processes, the figures."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from apressure import AsyncQueue, Client
from apressure.demo.screen import Screen
from apressure.demo.worker import Worker
from apressure.embedded import ConfigValue, EmbeddedServer
from apressure.exceptions import PressureError, ServerUnavailableError
from apressure.pressure.statistics import QueueStatistics

_LOOK_EVERY: Final = 0.1
"""Seconds between two looks at the queue."""
_FULL: Final = 0.9
"""The share of its bound from which on a queue counts as full: the reader takes several rows at a time."""


@dataclasses.dataclass(frozen=True)
class Server:
    """Where the queue is; `embedded` is None for a server that was there before."""

    url: str
    description: str
    embedded: EmbeddedServer | None = None

    def check(self) -> None:
        """Raise ServerUnavailableError if the embedded server has died."""
        if self.embedded is not None and not self.embedded.running:
            why = ""
            if "No space left on device" in self.embedded.log_tail():
                why = f": the disk of {self.embedded.directory} is full. Make room there"
            raise ServerUnavailableError(f"the embedded server has died{why}")


@contextlib.asynccontextmanager
async def serving(url: str, config: Mapping[str, ConfigValue] | None = None) -> AsyncIterator[Server]:
    """Yield the server at `url`; an embedded one runs with this configuration while the block lasts."""
    client = Client(url)  # checks the address, and connects to nothing
    if not client.settings.embedded:
        yield Server(url, client.server.address)
        return
    server = EmbeddedServer(directory=client.settings.embedded_directory, config=config)
    try:
        await asyncio.to_thread(server.start)
        made = Server(server.url, f"{server.software} {server.version}, embedded", server)
        try:
            yield made
        except PressureError:
            made.check()  # if the server has died, this error says so
            raise
    finally:
        # Not in a thread: it must also happen where a second cancellation would end an await. It takes moments.
        server.stop()


async def run_flow(
    server: Server,
    queue: AsyncQueue[Any],
    feeder: Worker,
    reader: Worker,
    rows: int,
    screen: Screen,
    progress: Callable[[QueueStatistics], tuple[int | None, str]],
) -> dict[str, Any]:
    """Run a feeder and a reader until they are done, show how the rows flow, and return what was seen of the queue.

    `progress` returns how many rows the reader is done with (None while it starts), and details to show.

    Raises:
        WorkerDiedError, ServerUnavailableError: A process, or the embedded server, died.
        PressureError: As for `statistics`.
    """
    bound = await queue.bound()
    peak, full_seconds, looked = 0, 0.0, time.monotonic()

    async def look() -> None:
        nonlocal peak, full_seconds, looked
        now, before, looked = await queue.statistics(), looked, time.monotonic()
        full, peak = now.length >= _FULL * bound, max(peak, now.length)
        full_seconds += (looked - before) * full
        fed, (done, details) = now.produced_messages, progress(now)
        puts = "is done" if now.closed else "waits: the queue is full" if full else "works" if fed else "starts"
        if done is None:
            reads = "starts"
        elif now.closed and not now.length:
            reads = "is done" if reader.result else "finishes"
        else:
            reads = "works" if done < fed else "waits: the queue is empty"
        screen.show(fed, puts, now.length, done or 0, reads, details)

    async def keep_looking() -> None:
        while not (feeder.result and reader.result):
            await look()
            await asyncio.sleep(_LOOK_EVERY)

    async def watch_server() -> None:  # beside `look`, which tries for seconds to reach a server that has died
        while not (feeder.result and reader.result):
            server.check()
            await asyncio.sleep(_LOOK_EVERY)

    screen.begin(rows, bound)
    with screen:
        coroutines = (feeder.run(), reader.run(), keep_looking(), watch_server())
        tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await look()
    return {
        "bound": bound,
        "peak_depth": peak,
        "queue_full_seconds": round(full_seconds, 3),
        "server": server.description,
    }
