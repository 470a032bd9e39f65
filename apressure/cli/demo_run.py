"""A run of the demo: a server, a queue, two workers, and somebody who looks on; and all of it gone at the end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from apressure import AsyncQueue, Client, nycflights
from apressure.cli import demo_screen as screens
from apressure.cli.demo_crew import Worker
from apressure.cli.demo_worker import Orders
from apressure.cli.exits import message_of
from apressure.cli.options import Common, complain
from apressure.embedded import EmbeddedServer
from apressure.embedded.configuration import ConfigValue
from apressure.exceptions import PressureError, QueueDoesNotExistError, ServerUnavailableError

_CLEANING: Final = 6.0
"""Seconds that it may take to delete the queue."""

_LOOK_EVERY: Final = 0.1
"""Seconds between two looks at the queue."""


async def run_demo(common: Common, rows: int, bound: int, screen: screens.Screen[screens.Picture]) -> dict[str, Any]:
    """Run feeder and consumer to the end and return the result; whatever happens, nothing is left running."""
    nycflights.data_directory()  # first of all, since without data there is nothing to start
    name = f"apressure-demo-{secrets.token_hex(4)}"
    with screen:
        screen.show(screens.Picture(total=rows, bound=bound))
        async with (
            serving(common) as server,
            AsyncQueue(name, url=server.url, prefix=common.prefix, settle_timeout=1.0) as queue,
            _created(queue, bound, server),
        ):
            orders = Orders(role="feeder", url=server.url, prefix=common.prefix, queue=name, rows=rows)
            consumer = Worker(dataclasses.replace(orders, role="consumer"))
            feeder = Worker(orders)
            async with consumer, feeder:
                watch = Watch(server, queue, feeder, consumer, rows, bound, screen)
                await all_of(feeder.follow(), consumer.follow(), watch.keep_looking(), watch.check_the_server())
    return {"server": server.description, **_result(feeder, consumer, rows, bound, watch)}


@dataclasses.dataclass(frozen=True)
class Server:
    """Where the demo, or the pipeline, runs.

    Attributes:
        url: Its address, for the workers too.
        description: What it is, for people.
        ours: The server, if it is our own.
    """

    url: str
    description: str
    ours: EmbeddedServer | None = None

    def check(self) -> None:
        """Raise if our own server has died; no use in waiting for its answers.

        Raises:
            ServerUnavailableError: It has.
        """
        if self.ours is not None and not self.ours.running:
            raise ServerUnavailableError("the embedded server has died")


class Watch:
    """Looks at the queue and at the workers, and shows what it sees.

    Attributes:
        peak: The most rows that were in the queue at any look.
    """

    def __init__(
        self,
        server: Server,
        queue: AsyncQueue[bytes],
        feeder: Worker,
        consumer: Worker,
        rows: int,
        bound: int,
        screen: screens.Screen[screens.Picture],
    ) -> None:
        self._server = server
        self._queue = queue
        self._feeder = feeder
        self._consumer = consumer
        self._rows = rows
        self._bound = bound
        self._screen = screen
        self._began = time.monotonic()
        self._rate = screens.Rate()
        self._waiting = {feeder: screens.Waiting(), consumer: screens.Waiting()}
        self.peak = 0

    async def keep_looking(self) -> None:
        """Look until both are done."""
        while not (self._feeder.result and self._consumer.result):
            await self._look()
            await asyncio.sleep(_LOOK_EVERY)
        await self._look()

    async def check_the_server(self) -> None:
        """Look after the demo's own server, beside the operations that may be waiting for it."""
        while not (self._feeder.result and self._consumer.result):
            self._server.check()
            await asyncio.sleep(_LOOK_EVERY)

    async def _look(self) -> None:
        statistics = await self._queue.statistics()
        self.peak = max(self.peak, statistics.length)
        self._screen.show(
            screens.Picture(
                total=self._rows,
                bound=self._bound,
                sent=self._feeder.rows,
                received=self._consumer.rows,
                rate=self._rate.of(self._consumer.rows),
                seconds=time.monotonic() - self._began,
                depth=statistics.length,
                in_flight=statistics.in_flight,
                feeder=self._state(self._feeder),
                consumer=self._state(self._consumer),
            )
        )

    def _state(self, worker: Worker) -> screens.WorkerState:
        waiting = self._waiting[worker].of(worker.waited)
        if worker.result is not None:
            return "done"
        if not worker.started:
            return "starting"
        return "waiting" if waiting else "working"


@contextlib.asynccontextmanager
async def serving(
    common: Common, default: str = "embedded://", config: Mapping[str, ConfigValue] | None = None
) -> AsyncIterator[Server]:
    """The server that was asked for, or one of our own, with this configuration."""
    url = common.url or default
    client = Client(url)  # checks the address, and connects to nothing
    if not client.settings.embedded:
        yield Server(url, client.server.address)
        return
    server = EmbeddedServer(directory=client.settings.embedded_directory, config=config)
    try:
        await asyncio.to_thread(server.start)
        yield Server(server.url, f"{server.software} {server.version}, embedded", server)
    finally:
        # Not in a thread: this must happen also where a second cancellation would end an await. It takes moments.
        server.stop()


@contextlib.asynccontextmanager
async def _created(queue: AsyncQueue[bytes], bound: int, server: Server) -> AsyncIterator[None]:
    """Create the queue, and leave nothing of it on the server."""
    try:
        await queue.create(bound)
        yield
    finally:
        # What is on a server of our own ends with it, unless it keeps its data.
        if server.ours is None or (server.ours.directory is not None and server.ours.running):
            try:
                async with asyncio.timeout(_CLEANING):
                    await queue.delete(timeout=_CLEANING / 2)
            except QueueDoesNotExistError:
                pass
            except (PressureError, TimeoutError) as error:
                complain(f"apressure: the demo's queue {queue.name} could not be deleted: {message_of(error)}")


async def all_of(*coroutines: Any) -> None:
    """Run them until all are done, or until the first fails."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _result(feeder: Worker, consumer: Worker, rows: int, bound: int, watch: Watch) -> dict[str, Any]:
    sent, received = feeder.result, consumer.result
    assert sent is not None and received is not None  # noqa: PT018 - follow() has seen to it
    seconds = max(received["ended"] - sent["began"], 1e-6)
    in_order = received["out_of_order"] == 0
    return {
        "rows_sent": sent["rows"],
        "rows_received": received["rows"],
        "in_order": in_order,
        "first_error": received["first_error"],
        "sha256_sent": sent["sha256"],
        "sha256_received": received["sha256"],
        "proven": sent["rows"] == received["rows"] == rows and in_order and sent["sha256"] == received["sha256"],
        "seconds": round(seconds, 3),
        "rows_per_second": round(received["rows"] / seconds),
        "bound": bound,
        # The feeder that found it full knows better than who looks ten times a second.
        "peak_depth": bound if sent["times_waited"] else watch.peak,
        "feeder_waited_seconds": round(sent["waited"], 3),
        "feeder_waits": sent["times_waited"],
        "consumer_waited_seconds": round(received["waited"], 3),
        "consumer_waits": received["times_waited"],
        "carriers": received["carriers"],
    }
