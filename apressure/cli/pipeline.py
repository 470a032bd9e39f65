"""`apressure pipeline`: from an asynchronous feeder over a bounded queue to Spark, Parquet and a chart."""

from __future__ import annotations

import importlib.util
import json as jsons
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from apressure.cli.options import Common, Json, Prefix, Remains, Url, execute
from apressure.exceptions import MissingExtraError
from apressure.nycflights import ALL_FLIGHTS


def pipeline(
    context: typer.Context,
    into: Annotated[Path, typer.Option("--into", metavar="DIR", help="Where everything goes, and is kept.")] = Path(
        "late-flights"
    ),
    rows: Annotated[
        int | None,
        typer.Option("--rows", metavar="N", min=1, max=ALL_FLIGHTS, help="How many flights.", show_default="all"),
    ] = None,
    bound: Annotated[
        int | None,
        typer.Option("--bound", metavar="N", min=1, help="How many rows the queue takes.", show_default="10000"),
    ] = None,
    url: Url = None,
    prefix: Prefix = None,
    json: Json = False,
) -> None:
    """Feed flights to Spark through a bounded queue, and get their delays as Parquet and a chart.

    An asynchronous feeder puts the flights that left New York City in 2013, and waits whenever Spark is behind;
    Structured Streaming sums up delays by carrier and hour. Kill any of it, at any time: the same command goes on where
    it was, and no row is lost or counted twice. It runs on a server of its own unless there is a --url (or
    APRESSURE_URL).
    """
    common = Common.of(context, url, prefix, json)
    begun: list[Path] = []
    result = execute(
        common,
        _run(common, into, rows, bound, begun),
        insist=True,
        remains=lambda: Remains("the same command goes on where this one ended", {}) if begun else None,
    )
    if common.json:
        sys.stdout.write(jsons.dumps(result) + "\n")
    else:
        _show(result)
    if not result["exact"]:
        raise typer.Exit(1)


async def _run(common: Common, into: Path, rows: int | None, bound: int | None, begun: list[Path]) -> dict[str, Any]:
    """Run the pipeline; `begun` says whether something is there to go on with."""
    # Here, and not above: the other commands need nothing of it, and begin sooner without.
    from rich.console import Console

    from apressure import spark
    from apressure.cli.demo_screen import LineScreen, LiveScreen
    from apressure.cli.pipeline_folder import Folder
    from apressure.cli.pipeline_run import run_pipeline
    from apressure.cli.pipeline_screen import line, view

    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError(
            "the pipeline needs the package matplotlib: pip install 'apressure[pipeline]'", extra="pipeline"
        )
    spark.check()
    screen = LineScreen(line) if common.json or not sys.stdout.isatty() else LiveScreen(Console(), view)
    with Folder.taken(into, rows, bound) as folder:
        begun.append(folder.path)
        return await run_pipeline(common, folder, screen)


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console

    from apressure import nycflights
    from apressure.cli.pipeline_screen import report

    Console().print(report(result, nycflights.airlines(nycflights.data_directory("pipeline"))))
