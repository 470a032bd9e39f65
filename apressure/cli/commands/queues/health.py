"""`apressure health`: a probe for supervisors such as Kubernetes."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from apressure import FileQueue
from apressure.cli import show
from apressure.cli.exits import Exit, UsageError
from apressure.cli.options import Common
from apressure.exceptions import QueueDoesNotExistError, ServerUnavailableError


async def health(
    common: Common,
    name: Annotated[
        str | None, typer.Argument(help="The queue's name, without the prefix.", show_default=False)
    ] = None,
    events: Annotated[
        str | None, typer.Option("--events", metavar="NAME", help="An event queue instead.", show_default=False)
    ] = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", metavar="NAME", help="A queue of tasks instead.", show_default=False)
    ] = None,
    files: Annotated[
        Path | None,
        typer.Option("--files", metavar="PATH", help="The directory of a file queue instead.", show_default=False),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option("--max-length", metavar="N", min=0, help="Unhealthy if more items wait.", show_default="no limit"),
    ] = None,
    consumed: Annotated[bool, typer.Option("--consumed", help="Unhealthy if no consumer is there.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="Give up then.")] = 5.0,
) -> None:
    """Check that a queue can be used: the server answers, and the queue exists and is open. For probes.

    Exit code 0 if it is healthy, 1 if not, 3 if it does not exist, and 7 if the server does not answer.
    """
    if sum(one is not None for one in (name, events, tasks, files)) != 1:
        raise UsageError("name one queue: either QUEUE, or --events, --tasks or --files")
    if consumed and files is not None:
        raise UsageError("--consumed cannot be combined with --files: a directory does not say who consumes")
    shown = name or events or tasks or str(files)
    began = time.monotonic()
    try:
        # The timeout holds for connecting, too.
        async with asyncio.timeout(timeout), contextlib.AsyncExitStack() as stack:
            queue: Any
            if events is not None:
                queue = await stack.enter_async_context(common.events(events))
            elif tasks is not None:
                queue = (await stack.enter_async_context(common.tasks())).queue(tasks)
            elif files is not None:
                path = files.absolute()
                queue = await stack.enter_async_context(FileQueue(path.name, directory=path.parent))
            else:
                queue = await stack.enter_async_context(common.queue(shown))
            if name is None and not await queue.exists():  # the statistics of an `AsyncQueue` say so themselves
                raise QueueDoesNotExistError(f"the queue {show.printable(shown)!r} does not exist", name=shown)
            statistics = await queue.statistics()
    except TimeoutError:
        raise ServerUnavailableError(f"the server did not answer in {timeout:g} seconds") from None
    reason = _unhealthy(statistics, max_length, consumed)
    milliseconds = (time.monotonic() - began) * 1000
    if common.json:
        show.print_json({
            "healthy": reason is None, "name": shown, "reason": reason, "length": statistics.length,
            "milliseconds": round(milliseconds, 3),
        })  # fmt: skip
    elif reason is None:
        sys.stdout.write(f"healthy: {show.printable(shown)} answered in {milliseconds:.1f} ms\n")
    else:
        sys.stdout.write(f"unhealthy: {show.printable(shown)} {reason}\n")
    if reason is not None:
        raise typer.Exit(int(Exit.ERROR))


def _unhealthy(statistics: Any, max_length: int | None, consumed: bool) -> str | None:
    """Return what is wrong with a queue, by its statistics, or None."""
    if getattr(statistics, "closed", False):
        return "is closed"
    if max_length is not None and statistics.length > max_length:
        return f"has {statistics.length} items, more than {max_length}"
    if consumed and not _consumers(statistics):
        return "has no consumer"
    return None


def _consumers(statistics: Any) -> bool:
    """Return whether somebody consumes: an `AsyncQueue` has a role, the others count."""
    if hasattr(statistics, "consumer"):
        return bool(statistics.consumer.state != "free")
    return bool(getattr(statistics, "consumers", 0))
