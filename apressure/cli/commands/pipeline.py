"""`apressure pipeline`: feeds flights to Spark through a queue."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from apressure.cli.commands.demo import Rows, end, screen
from apressure.cli.options import Common, option
from apressure.cli.running import Remains, execute

_REMAINS: Final = Remains("run the same command again to continue", {})


def pipeline(
    common: Common,
    into: Annotated[
        Path,
        option("into", "The folder for the results, and for what a restart needs.", "DIR", resolve_path=True),
    ] = Path("late-flights"),
    rows: Rows = None,
    bound: Annotated[
        int | None,
        option("bound", "How many rows the queue takes.", "N", shown="10000", min=1),
    ] = None,
) -> None:
    """Feed flights to Spark through a bounded queue, and get their delays as Parquet and a chart.

    A feeder puts the flights that left New York City in 2013, and waits whenever Spark is behind. Structured Streaming
    sums up the delays by carrier and hour. If any part is killed, run the same command again: it continues, and no row
    is lost or counted twice. It starts a server of its own, unless --url or APRESSURE_URL names one.
    """
    from apressure.demo.pipeline_run import report, run_pipeline

    shown = screen(common, "Spark")
    running = run_pipeline(into, rows, bound, shown, common.url, common.prefix)
    # The screen has tasks from the moment on that the queue exists.
    result = execute(common, running, insist=True, remains=lambda: _REMAINS if shown.tasks else None)
    end(common, result, "exact", report)
