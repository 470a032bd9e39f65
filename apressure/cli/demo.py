"""`apressure demo`: the story of the README on real data, with real processes, in front of one's eyes."""

from __future__ import annotations

import json as jsons
import sys
from typing import Annotated

import typer

from apressure.cli.exits import Exit
from apressure.cli.options import Common, Json, Prefix, Url, execute
from apressure.nycflights import ALL_FLIGHTS


def demo(
    context: typer.Context,
    rows: Annotated[
        int, typer.Option("--rows", metavar="N", min=1, max=ALL_FLIGHTS, help="How many flights.")
    ] = ALL_FLIGHTS,
    bound: Annotated[int, typer.Option("--bound", metavar="N", min=1, help="How many rows the queue takes.")] = 1000,
    url: Url = None,
    prefix: Prefix = None,
    json: Json = False,
) -> None:
    """Send the flights of New York City in 2013 from one process to another, through a queue.

    A feeder process puts every row, a consumer process takes them and sums up the delays, and at the end there is
    proof that every row arrived, in order. It runs on a server of its own unless there is a --url (or APRESSURE_URL).
    """
    common = Common.of(context, url, prefix, json)
    # Here, and not above: the other commands need nothing of it, and begin sooner without.
    from rich.console import Console

    from apressure.cli.demo_run import run_demo
    from apressure.cli.demo_screen import LineScreen, LiveScreen, line, report, view

    console = Console()
    screen = LineScreen(line) if common.json or not sys.stdout.isatty() else LiveScreen(console, view)
    result = execute(common, run_demo(common, rows, bound, screen), insist=True)
    if common.json:
        sys.stdout.write(jsons.dumps(result) + "\n")
    else:
        console.print(report(result, console))
    if not result["proven"]:
        raise typer.Exit(int(Exit.ERROR))
