"""`apressure ls`: lists the queues."""

from __future__ import annotations

import sys

import typer

from apressure import AsyncQueue
from apressure.cli import show
from apressure.cli.exits import Exit, message_of
from apressure.cli.options import Common, complain
from apressure.exceptions import QueueDoesNotExistError, ServerError


async def ls(common: Common) -> None:
    """List the queues. Into a pipe: one line for each, with name, length, bound and state, separated by tabs."""
    found, damaged = [], False
    async with common.client() as client:
        for name in await client.queues():
            try:
                found.append(await AsyncQueue(name, client=client).statistics())
            except QueueDoesNotExistError:
                pass  # it has been deleted meanwhile
            except (ServerError, ValueError) as error:
                damaged = True
                complain(f"apressure: {show.printable(name)}: {message_of(error)}")
    if common.json:
        show.print_json([show.as_dict(statistics) for statistics in found])
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(show.queues_table(found))
    else:
        for statistics in found:
            sys.stdout.write(show.queue_line(statistics) + "\n")
    if damaged:
        raise typer.Exit(int(Exit.ERROR))
