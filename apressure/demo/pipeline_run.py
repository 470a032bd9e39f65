"""A run of the pipeline: a server, a queue, a feeder, Spark and a screen.

The first run and the next ones are the same: the folder, the queue and Spark's checkpoint know how far the pipeline is.
"""

from __future__ import annotations

import asyncio
import importlib.util
import math
import time
from pathlib import Path
from typing import Any, Final

from apressure import AsyncQueue, Client, spark
from apressure.demo import flights, pipeline
from apressure.demo.flow import Server, run_flow, serving
from apressure.demo.pipeline_folder import Folder
from apressure.demo.screen import Screen, print_report
from apressure.demo.worker import Worker
from apressure.exceptions import MissingExtraError, QueueDoesNotExistError
from apressure.pressure.statistics import QueueStatistics
from apressure.spark.ending import END
from apressure.spark.lag import Trend
from apressure.spark.sealed_batches import forget_group

_TREND: Final = 10.0
"""Seconds over which the screen measures how fast Spark catches up."""


async def run_pipeline(
    into: Path, rows: int | None, bound: int | None, screen: Screen, url: str | None, prefix: str | None
) -> dict[str, Any]:
    """Run feeder and Spark to the end, from wherever they were, and return the result.

    Killed or cancelled at any time, it leaves nothing running, and may be called again with the same folder and server.
    Without a URL it starts an embedded server that keeps its data in the folder.

    Raises:
        MissingExtraError, ValueError: Something is missing, or the address is wrong. No folder is made.
        UsageError, FolderInUseError, OSError: The folder cannot be used.
        QueueDoesNotExistError: The server has lost the pipeline's queue, or it is another server.
        WorkerDiedError: A process ended before its work was done.
        PressureError: As for the operations of a queue.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError(
            "the pipeline needs the package matplotlib: pip install 'apressure[pipeline]'", extra="pipeline"
        )
    flights.data_directory("pipeline")
    spark.check()
    Client(url or "embedded://")  # checks the address
    with Folder.taken(into, rows, bound) as folder:
        if folder.result is not None and folder.deleted:
            return folder.result
        async with (
            serving(url or f"embedded://{folder.path / 'server'}", pipeline.SERVER) as server,
            AsyncQueue[bytes](folder.queue, url=server.url, prefix=prefix) as queue,
        ):
            if folder.result is None:
                if not folder.runs:
                    await queue.create(folder.bound, exist_ok=True)
                elif not await queue.exists():
                    raise QueueDoesNotExistError(
                        f"the queue {folder.queue!r} of the pipeline in {folder.path} is not on this server: "
                        "use the server and the prefix that it began with, or another folder to begin again",
                        name=folder.queue,
                    )
                folder.runs += 1
                folder.save()
                folder.result = await _work(server, queue, folder, screen, prefix)
                folder.save()
            # Not before the result is safe: without its queue the pipeline would begin again.
            await asyncio.to_thread(forget_group, queue.client.settings, folder.queue, pipeline.GROUP)
            if await queue.exists():
                await queue.delete()
            folder.deleted = True
            folder.save()
            return folder.result


async def _work(
    server: Server, queue: AsyncQueue[bytes], folder: Folder, screen: Screen, prefix: str | None
) -> dict[str, Any]:
    rows, began = folder.rows, time.monotonic()
    orders: dict[str, Any] = {"url": server.url, "prefix": prefix, "folder": str(folder.path)}
    orders |= {"queue": folder.queue, "rows": rows, "bound": folder.bound}
    feeder, driver = (Worker("apressure.demo.pipeline", role, orders) for role in ("feeder", "spark"))
    before: int | None = None  # rows that were done when Spark first reported
    trend = Trend(_TREND)

    def progress(now: QueueStatistics) -> tuple[int | None, str]:
        nonlocal before
        if not (latest := driver.latest):
            return None, ""
        done = latest["rows"]
        before = done if before is None else before
        lag = max(0, now.produced_messages - done)
        details = [f"lag {lag:,} ({latest['in_flight']:,} in Spark)"]
        _, drain = trend.add(time.monotonic(), done, lag)
        if drain and math.isfinite(drain):
            details.append(f"caught up in {drain:,.0f} s")
        if latest.get("batch") is not None:
            details.append(f"batch {latest['batch']} in {latest['seconds']:.1f} s")
        if latest.get("watermark") and latest["watermark"] < f"{END.year - 1}":  # the end row takes it far away
            details.append(f"watermark {latest['watermark'][:16].replace('T', ' ')}")
        return done, ", ".join(details)

    seen = await run_flow(server, queue, feeder, driver, rows, screen, progress)
    seconds, result = time.monotonic() - began, driver.result
    return {
        "rows_in": (await queue.statistics()).produced_messages,
        "seconds": round(seconds, 3),
        "rows_per_second": round((rows - (before or 0)) / seconds),
        **seen,
        "rows_out": result["rows"],
        **{name: result[name] for name in ("windows", "doubled", "batches", "carriers")},
        "exact": result["rows"] == rows and not result["doubled"],
        "runs": folder.runs,
        "files": str(folder.path / "delays"),
        "chart": str(folder.path / "delays.png"),
    }


def report(result: dict[str, Any]) -> None:
    """Print the result for a person: the delays by carrier, the figures, the files, and the proof."""
    proof = "{rows_in:,} rows in, {rows_out:,} rows out, in {windows:,} windows, {doubled:,} of them twice"
    print_report(
        result,
        "Delays of departures from New York City in 2013, in minutes",
        {"Carrier": "name", "Flights": "flights", "Cancelled": "cancelled", "Mean delay": "mean_delay"},
        [(result["exact"], proof.format_map(result))],
        {"batches": "{batches:,}, in run {runs}", "files": "{files}", "chart": "{chart}"},
    )
