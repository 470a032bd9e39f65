"""`apressure metrics`: an exporter of queues' metrics for Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import math
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from apressure import AsyncQueue, EventQueue, FileQueue
from apressure.cli.exits import Exit, UsageError
from apressure.cli.options import Common
from apressure.cli.show import answer, print_json
from apressure.events.engine.steps import active_queues
from apressure.events.remote.address import is_okq
from apressure.exceptions import PressureError
from apressure.telemetry import Metrics

_REST: Final = 30.0
"""Seconds between two searches for queues that match a pattern: a search looks at all keys of the server."""


def _names(option: str, help: str, metavar: str = "NAME") -> Any:
    return typer.Option(option, metavar=metavar, help=help, show_default=False)


async def metrics(
    common: Common,
    queues: Annotated[list[str] | None, typer.Argument(metavar="QUEUE", help="The queues.", show_default=False)] = None,
    events: Annotated[list[str] | None, _names("--events", "An event queue. May be repeated.")] = None,
    tasks: Annotated[list[str] | None, _names("--tasks", "A queue of tasks. May be repeated.")] = None,
    files: Annotated[
        list[Path] | None, _names("--files", "The directory of a file queue. May be repeated.", "PATH")
    ] = None,
    pattern: Annotated[
        bool,
        typer.Option("--pattern", help="The names are patterns, such as 'orders*'. New queues are found every 30 s."),
    ] = False,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Where to listen; 0 for a free port.")] = 9100,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="The address. 0.0.0.0 opens it to other machines.")
    ] = "127.0.0.1",
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.05, max=3600, help="Time between two looks.")
    ] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="Print the metrics once, and end.")] = False,
) -> None:
    """Serve the metrics of queues to Prometheus, at /metrics, until Ctrl-C. /healthz says whether it runs.

    While a server cannot be reached, apressure_up is 0 for its queues. With --once, the exit code is 7 in that case.
    """
    if not (queues or events or tasks or files):
        raise UsageError("nothing to show: name a queue, or give --events, --tasks or --files")
    async with contextlib.AsyncExitStack() as stack:
        shown = Metrics(interval=interval, port=None if once else port, host=host, local=False)
        exporter = _Exporter(common, shown, stack, pattern=pattern)
        await exporter.show(queues or (), events or (), tasks or (), files or ())
        if once:
            await _print(shown, common, twice=pattern)
            return
        await stack.enter_async_context(shown)
        if common.json or not sys.stderr.isatty():  # otherwise the log says so
            url = f"http://{f'[{host}]' if ':' in host else host}:{shown.port}/metrics"
            answer({"url": url}, f"metrics are at {url}", as_json=common.json)
        await asyncio.Event().wait()


async def _print(shown: Metrics, common: Common, *, twice: bool) -> None:
    """Print the metrics once."""
    await shown.sample()
    if twice:  # the queues that were found
        await shown.sample()
    readings = shown.readings()
    if common.json:
        print_json(
            [
                {
                    "name": f"apressure_{each.family.name}",
                    "labels": dict(zip(each.family.labels, each.labels, strict=True)),
                    "value": each.value if math.isfinite(each.value) else None,
                }
                for each in readings
            ]
        )
    else:
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(shown.collector())
        sys.stdout.write(generate_latest(registry).decode())
    if any(each.family.name == "up" and not each.value for each in readings):
        raise typer.Exit(int(Exit.SERVER))


class _Exporter:
    """Opens the queues to show.

    Args:
        common: The options of all commands.
        shown: The metrics.
        stack: Closes what was opened.
        pattern: The names are patterns.
    """

    def __init__(self, common: Common, shown: Metrics, stack: contextlib.AsyncExitStack, *, pattern: bool) -> None:
        self._common = common
        self._shown = shown
        self._stack = stack
        self._pattern = pattern

    async def show(
        self, queues: Sequence[str], events: Sequence[str], tasks: Sequence[str], files: Sequence[Path]
    ) -> None:
        """Show these queues; the server need not be reachable."""
        if queues:
            client = self._common.client()
            self._stack.push_async_callback(client.aclose)
            self._add(queues, client.queues, lambda name: AsyncQueue(name, client=client))
        if tasks:
            task_client = self._common.tasks()
            self._stack.push_async_callback(task_client.aclose)
            self._add(tasks, task_client.queues, task_client.queue)
        if events and is_okq(self._common.url):  # one okq server, a client for each queue
            if self._pattern:
                raise UsageError("--pattern needs the server's Redis, not okq://: give its URL, or name each queue")
            for name in events:
                self._open(self._common.events(name))
        elif events:
            event_client = self._common.client()
            self._stack.push_async_callback(event_client.aclose)

            async def find_events() -> list[str]:
                return await active_queues(event_client, created=True)

            self._add(events, find_events, lambda name: EventQueue(name, client=event_client))
        for path in files:
            parent = path.absolute().parent

            def make(name: str, parent: Path = parent) -> Any:
                return FileQueue(name, directory=parent)

            async def find(parent: Path = parent) -> list[str]:
                return await asyncio.to_thread(_directories, parent)

            self._add((path.name,), find, make)

    def _add(self, names: Sequence[str], find: Callable[[], Awaitable[list[str]]], make: Callable[[str], Any]) -> None:
        for name in names:
            if self._pattern:
                found = QueuePattern(name, self._shown, find, make)
                self._stack.push_async_callback(found.aclose)
                self._shown.add(found)
            else:
                self._open(make(name))

    def _open(self, queue: Any) -> None:
        self._stack.push_async_callback(queue.aclose)
        self._shown.add(queue)


def _directories(parent: Path) -> list[str]:
    return [each.name for each in parent.iterdir() if each.is_dir()]


class QueuePattern:
    """A pattern as something to look at: each look shows the queues whose names match.

    Args:
        name: The pattern.
        shown: The metrics that show the queues.
        find: Returns the names of all queues.
        make: Returns the queue of a name.

    Attributes:
        name: As given.
    """

    def __init__(
        self, name: str, shown: Metrics, find: Callable[[], Awaitable[list[str]]], make: Callable[[str], Any]
    ) -> None:
        self.name = name
        self._shown = shown
        self._find = find
        self._make = make
        self._queues: dict[str, Any] = {}
        self._found_at = -math.inf

    async def statistics(self) -> object:
        """Show the queues that match now."""
        if time.monotonic() - self._found_at < _REST:
            return self
        names = set(fnmatch.filter(await self._find(), self.name))
        self._found_at = time.monotonic()
        for name in names - self._queues.keys():
            with contextlib.suppress(ValueError):  # no name of a queue
                self._queues[name] = self._make(name)
                self._shown.add(self._queues[name])
        for name in self._queues.keys() - names:
            queue = self._queues.pop(name)
            self._shown.discard(queue)
            await queue.aclose()
        return self

    async def aclose(self) -> None:
        """Close the queues that were found."""
        for queue in self._queues.values():
            with contextlib.suppress(PressureError):
                await queue.aclose()
