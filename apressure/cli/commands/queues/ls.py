"""`apressure ls`: lists the queues."""

from __future__ import annotations

import contextlib
import fnmatch
import sys
from typing import Annotated, Any

import typer

from apressure import AsyncQueue, EventQueue
from apressure.cli import show
from apressure.cli.exits import Exit, message_of
from apressure.cli.options import Common, complain
from apressure.events.engine.steps import active_queues
from apressure.exceptions import QueueDoesNotExistError, ServerError
from apressure.pressure.statistics import QueueStatistics


async def ls(
    common: Common,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern",
            metavar="PATTERN",
            help="Only queues whose names match, such as 'orders*'; of events and of tasks, too.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """List the queues. Into a pipe: one line for each, with name, length, bound and state, separated by tabs.

    With --pattern, queues of events and of tasks are listed, too, and the line ends with the kind of queue.
    """
    found: list[Any] = []
    damaged = False
    async with contextlib.AsyncExitStack() as stack:
        for queue in await _queues(common, pattern, stack):
            try:
                found.append(await queue.statistics())
            except QueueDoesNotExistError:
                pass  # it has been deleted meanwhile
            except (ServerError, ValueError) as error:
                damaged = True
                complain(f"apressure: {show.printable(queue.name)}: {message_of(error)}")
    if common.json:
        kinds = [{} if pattern is None else {"kind": show.kind_of(statistics)} for statistics in found]
        show.print_json([_as_dict(statistics) | kind for statistics, kind in zip(found, kinds, strict=True)])
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(show.queues_table(found, kinds=pattern is not None))
    else:
        for statistics in found:
            kind = "" if pattern is None else f"\t{show.kind_of(statistics)}"
            sys.stdout.write(show.queue_line(statistics) + kind + "\n")
    if damaged:
        raise typer.Exit(int(Exit.ERROR))


async def _queues(common: Common, pattern: str | None, stack: contextlib.AsyncExitStack) -> list[Any]:
    """Return the queues to list."""
    client = await stack.enter_async_context(common.client())
    if pattern is None:
        return [AsyncQueue(name, client=client) for name in await client.queues()]
    tasks = await stack.enter_async_context(common.tasks())
    kinds: list[tuple[list[str], Any]] = [
        (await client.queues(), lambda name: AsyncQueue(name, client=client)),
        (await active_queues(client, created=True), lambda name: EventQueue(name, client=client)),
        (await tasks.queues(), tasks.queue),
    ]
    found = []
    for names, make in kinds:
        for name in fnmatch.filter(names, pattern):
            with contextlib.suppress(ValueError):  # no name of a queue
                found.append(make(name))
    return found


def _as_dict(statistics: Any) -> dict[str, Any]:
    return show.as_dict(statistics) if isinstance(statistics, QueueStatistics) else show.of_the_queue(statistics)
