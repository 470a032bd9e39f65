"""`apressure health`: a probe for supervisors such as Kubernetes."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Annotated

import typer

from apressure.cli import show
from apressure.cli.exits import Exit
from apressure.cli.options import Common, Name
from apressure.exceptions import ServerUnavailableError
from apressure.queue.statistics import QueueStatistics


async def health(
    common: Common,
    name: Name,
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
    began = time.monotonic()
    try:
        async with asyncio.timeout(timeout), common.queue(name) as queue:  # the timeout holds for connecting, too
            statistics = await queue.statistics()
    except TimeoutError:
        raise ServerUnavailableError(f"the server did not answer in {timeout:g} seconds") from None
    reason = _unhealthy(statistics, max_length, consumed)
    milliseconds = (time.monotonic() - began) * 1000
    if common.json:
        show.print_json({
            "healthy": reason is None, "name": name, "reason": reason, "length": statistics.length,
            "milliseconds": round(milliseconds, 3),
        })  # fmt: skip
    elif reason is None:
        sys.stdout.write(f"healthy: {show.printable(name)} answered in {milliseconds:.1f} ms\n")
    else:
        sys.stdout.write(f"unhealthy: {show.printable(name)} {reason}\n")
    if reason is not None:
        raise typer.Exit(int(Exit.ERROR))


def _unhealthy(statistics: QueueStatistics, max_length: int | None, consumed: bool) -> str | None:
    """Return what is wrong with a queue, or None."""
    if statistics.closed:
        return "is closed"
    if max_length is not None and statistics.length > max_length:
        return f"has {statistics.length} items, more than {max_length}"
    if consumed and statistics.consumer.state == "free":
        return "has no consumer"
    return None
