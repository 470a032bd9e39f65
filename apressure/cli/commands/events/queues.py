"""`apressure events stat|pause|resume|dead|requeue`: a look at a queue of events, and its repair."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from apressure import EventQueue
from apressure.cli.commands.queues.dead import Limit, show
from apressure.cli.commands.queues.pause import set_paused
from apressure.cli.commands.queues.requeue import report
from apressure.cli.exits import UsageError
from apressure.cli.options import Common, Interval, Most, Name, Timeout, Watch, seconds_between
from apressure.cli.show import of_the_queue, print_statistics, printable
from apressure.exceptions import QueueDoesNotExistError


async def stat(common: Common, name: Name, watch: Watch = False, interval: Interval = None) -> None:
    """Show how full a queue is: one line for each value, or with --watch one line each time."""
    seconds = seconds_between(interval, watch)
    async with common.events(name) as queue:
        while True:
            await _must_exist(queue)
            shown = of_the_queue(await queue.statistics())
            watched = ("length", "in_flight", "consumers", "dead_letters") if watch else None
            print_statistics(shown, watched, as_json=common.json)
            if not watch:
                return
            await asyncio.sleep(seconds)


async def pause(common: Common, name: Name) -> None:
    """Pause a queue: clients of apressure take no further event until `events resume`. Events can still be put.

    QRPOP of an okq server of apressure answers nil. An okq does not know of the pause.
    """
    await set_paused(common, common.events(name), name, paused=True)


async def resume(common: Common, name: Name) -> None:
    """Resume a paused queue: its consumers go on."""
    await set_paused(common, common.events(name), name, paused=False)


async def dead(common: Common, name: Name, limit: Limit = 100) -> None:
    """Show dead letters and why each is one, the oldest first. Nothing is moved.

    The columns are the event's id (for `requeue --id`), the time, the attempts, the error, and the start of the event.
    """
    async with common.events(name) as queue:
        letters = await queue.dead_letters(limit)
        if not letters:
            await _must_exist(queue)  # perhaps the name is wrong
    show(letters, as_json=common.json)


async def requeue(
    common: Common,
    name: Name,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="Move the dead letter with this event's id.", show_default="all"),
    ] = None,
    most: Most = None,
    timeout: Timeout = None,
) -> None:
    """Move dead letters back to the end of their queue, the oldest first.

    However the command ends, each dead letter is in the queue or a dead letter still. If no dead letter has one of the
    ids, the others are moved, and the exit code is 1. A dead letter whose id is in use again stays.
    """
    if ids and most is not None:
        raise UsageError("give either --id or --max, not both")
    async with common.events(name) as queue:
        done = await queue.requeue(most, timeout, ids=ids or None)
        if not done:
            await _must_exist(queue)
    result = {"name": name, "requeued": int(done)}
    report(common, name, result, f"requeued {int(done)} in {name}", done.not_found if ids else None)


async def _must_exist(queue: EventQueue[bytes]) -> None:
    if not await queue.exists() and not (await queue.statistics()).dead_letters:
        raise QueueDoesNotExistError(f"the queue {printable(queue.name)!r} does not exist", name=queue.name)
