"""`apressure demo`: shows a queue at work between two processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apressure.cli.exits import Exit
from apressure.cli.options import Common, option
from apressure.cli.running import execute
from apressure.cli.show import print_json
from apressure.demo import ALL_FLIGHTS

if TYPE_CHECKING:
    from apressure.demo.screen import Screen

Rows = Annotated[
    int | None,
    option("rows", "How many flights to send.", "N", shown="all", min=1, max=ALL_FLIGHTS),
]


def demo(
    common: Common,
    rows: Rows = None,
    bound: Annotated[int, option("bound", "How many rows the queue takes.", "N", min=1)] = 1000,
) -> None:
    """See a queue at work: send the flights of New York City in 2013 from one process to another.

    A feeder process puts every row, and a consumer process receives them and sums up the delays. At the end a proof
    shows that every row arrived, in order. The demo starts a server of its own, unless --url or APRESSURE_URL names
    one.
    """
    from apressure.demo.run import report, run_demo

    running = run_demo(rows or ALL_FLIGHTS, bound, screen(common, "consumer"), common.url, common.prefix)
    end(common, execute(common, running, insist=True), "proven", report)


def screen(common: Common, reader: str) -> Screen:
    """Return a screen for a terminal, or one that prints lines."""
    from apressure.demo.screen import Screen  # here, so that other commands do not load rich

    return Screen(sys.stdout.isatty() and not common.json, reader)


def end(common: Common, result: dict[str, Any], good: str, report: Callable[[dict[str, Any]], None]) -> None:
    """Print the result. Without its proof the command fails."""
    if common.json:
        print_json(result)
    else:
        report(result)
    if not result[good]:
        raise typer.Exit(int(Exit.ERROR))
