"""`apressure health`: a probe for supervisors such as Kubernetes."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Annotated, Any

import typer

from apressure.cli.asking import look, told
from apressure.cli.exits import Exit, UsageError
from apressure.cli.options import Address, Common, option
from apressure.cli.show import print_json, printable
from apressure.exceptions import ServerUnavailableError
from apressure.telemetry.states import consumers_of, paused_text


async def health(
    common: Common,
    queue: Address,
    max_length: Annotated[
        int | None,
        option("max-length", "Unhealthy if more items wait.", "N", shown="no limit", min=0),
    ] = None,
    consumed: Annotated[bool, option("consumed", "Unhealthy if no consumer is there.")] = False,
    timeout: Annotated[float, option("timeout", "Give up then.", "SECONDS", min=0.001)] = 5.0,
) -> None:
    """Check that a queue can be used: the server answers, and the queue exists and is open. For probes.

    A paused queue is healthy: the line says that it is paused.

    Exit code 0 if it is healthy, 1 if not, 3 if it does not exist, and 7 if the server does not answer.
    """
    address = common.read(queue)
    began = time.monotonic()
    try:
        # The timeout holds for connecting, too.
        async with asyncio.timeout(timeout), common.open(address) as opened:
            statistics = await look(opened)
    except TimeoutError:
        raise ServerUnavailableError(f"the server did not answer in {timeout:g} seconds") from None
    reason = _unhealthy(statistics, max_length, consumed)
    milliseconds = round((time.monotonic() - began) * 1000, 3)
    if common.json:
        healthy = told(
            address, healthy=reason is None, reason=reason, length=statistics.length, paused=statistics.paused
        )
        print_json({**healthy, "milliseconds": milliseconds})
    elif reason is None:
        paused = f"; {paused_text(statistics, time.time())}" if statistics.paused else ""
        sys.stdout.write(f"healthy: {printable(str(address))} answered in {milliseconds:.1f} ms{paused}\n")
    else:
        sys.stdout.write(f"unhealthy: {printable(str(address))} {reason}\n")
    if reason is not None:
        raise typer.Exit(int(Exit.ERROR))


def _unhealthy(statistics: Any, max_length: int | None, consumed: bool) -> str | None:
    """Return what is wrong with a queue, by its statistics, or None."""
    if consumed and consumers_of(statistics) is None:
        raise UsageError("--consumed cannot be told of a directory, which does not say who consumes. Leave it out")
    if statistics.closed:
        return "is closed"
    if max_length is not None and statistics.length > max_length:
        return f"has {statistics.length} items, more than {max_length}"
    if consumed and not consumers_of(statistics):
        return "has no consumer"
    return None
