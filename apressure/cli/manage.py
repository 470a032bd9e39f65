"""`apressure create`, `ls`, `stat`, `close` and `delete`: what concerns queues rather than their items."""

from __future__ import annotations

import asyncio
import json as jsons
import sys
from typing import Annotated, Any

import typer

from apressure import AsyncQueue
from apressure.cli import show
from apressure.cli.exits import Exit, message_of
from apressure.cli.options import Common, Interval, Json, Name, Prefix, Timeout, Url, complain, execute
from apressure.exceptions import QueueDoesNotExistError, ServerError


def create(
    context: typer.Context,
    name: Name,
    bound: Annotated[int, typer.Option("--bound", metavar="N", min=0, help="How many items it takes; 0: any.")] = 0,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Succeed if the queue exists already.")] = False,
    url: Url = None,
    prefix: Prefix = None,
    json: Json = False,
) -> None:
    """Create a queue."""
    common = Common.of(context, url, prefix, json)

    async def command() -> None:
        async with common.queue(name) as queue:
            created = await queue.create(bound, exist_ok=exist_ok)
            actual = bound if created else await queue.bound()
        if created:
            text = f"created {name} ({show.bound_text(actual)})"
        else:
            text = f"{name} exists already ({show.bound_text(actual)})"
        _answer(common, {"name": name, "bound": actual, "created": created}, text)

    execute(common, command())


def close(
    context: typer.Context,
    name: Name,
    timeout: Timeout = None,
    url: Url = None,
    prefix: Prefix = None,
    json: Json = False,
) -> None:
    """Close a queue: nothing can be put any more, and consumers end after the last item."""
    common = Common.of(context, url, prefix, json)

    async def command() -> None:
        async with common.queue(name) as queue:
            await queue.close(timeout)
        _answer(common, {"name": name, "closed": True}, f"closed {name}")

    execute(common, command())


def delete(
    context: typer.Context,
    name: Name,
    timeout: Timeout = None,
    url: Url = None,
    prefix: Prefix = None,
    json: Json = False,
) -> None:
    """Delete a queue with everything in it. Whoever waits for it is told that it does not exist."""
    common = Common.of(context, url, prefix, json)

    async def command() -> None:
        async with common.queue(name) as queue:
            await queue.delete(timeout)
        _answer(common, {"name": name, "deleted": True}, f"deleted {name}")

    execute(common, command())


def ls(context: typer.Context, url: Url = None, prefix: Prefix = None, json: Json = False) -> None:
    """List the queues. Into a pipe: one a line, name, length, bound and state, with tabs between."""
    common = Common.of(context, url, prefix, json)

    async def command() -> None:
        found, damaged = [], False
        async with common.client() as client:
            for name in await client.queues():
                try:
                    found.append(await AsyncQueue(name, client=client).statistics())
                except QueueDoesNotExistError:
                    pass  # deleted meanwhile
                except ServerError as error:
                    damaged = True
                    complain(f"apressure: {show.printable(name)}: {message_of(error)}")
        if common.json:
            _print_json([show.as_dict(statistics) for statistics in found])
        elif sys.stdout.isatty():
            from rich.console import Console

            from apressure.cli.tables import queues_table

            Console().print(queues_table(found))
        else:
            for statistics in found:
                sys.stdout.write(show.queue_line(statistics) + "\n")
        if damaged:
            raise typer.Exit(int(Exit.ERROR))

    execute(common, command())


def stat(
    context: typer.Context,
    name: Name,
    watch: Annotated[
        bool, typer.Option("--watch", help="Again and again, until Ctrl-C or until it is deleted.")
    ] = False,
    interval: Interval = 1.0,
    url: Url = None,
    prefix: Prefix = None,
    json: Json = False,
) -> None:
    """Show what a queue holds, who holds its roles, and what has passed through it."""
    common = Common.of(context, url, prefix, json)

    async def command() -> None:
        async with common.queue(name) as queue:
            if sys.stdout.isatty() and not common.json:
                await _look(queue, interval if watch else None)
                return
            while True:
                statistics = await queue.statistics()
                if common.json:
                    _print_json(show.as_dict(statistics))
                else:
                    shown = [show.queue_line(statistics)] if watch else show.statistics_lines(statistics)
                    sys.stdout.write("".join(line + "\n" for line in shown))
                sys.stdout.flush()
                if not watch:
                    return
                await asyncio.sleep(interval)

    execute(common, command())


async def _look(queue: AsyncQueue[bytes], interval: float | None) -> None:
    """Show statistics on a terminal, again and again if there is an interval."""
    from rich.console import Console
    from rich.live import Live

    from apressure.cli.tables import Rates, statistics_view

    statistics = await queue.statistics()
    if interval is None:
        Console().print(statistics_view(statistics))
        return
    rates = Rates()
    with Live(statistics_view(statistics, rates.of(statistics)), auto_refresh=False) as live:
        while True:
            await asyncio.sleep(interval)
            statistics = await queue.statistics()
            live.update(statistics_view(statistics, rates.of(statistics)), refresh=True)


def _answer(common: Common, data: dict[str, Any], text: str) -> None:
    if common.json:
        _print_json(data)
    else:
        sys.stdout.write(show.printable(text) + "\n")
    sys.stdout.flush()


def _print_json(data: object) -> None:
    sys.stdout.write(jsons.dumps(data) + "\n")
