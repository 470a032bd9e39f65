"""The pipeline's query: what it feeds, computes, writes and draws, and what its two processes do.

`apressure pipeline` puts processes, a server and a screen around it; `examples/pipeline.py` uses it directly. What
makes it survive a kill is in `apressure.spark.pipeline`, which relies on two things here. The flights are always the
same, in the same order, sorted by event time, so that none comes behind the watermark. And a server that may be killed
confirms nothing that is not on its disk (`SERVER`).
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import json
import operator
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from apressure import AsyncQueue
from apressure import spark as pressure
from apressure.demo import ALL_FLIGHTS
from apressure.demo import flights as nycflights
from apressure.spark.pipeline import feed, sweep
from apressure.spark.progress import Progress

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


GROUP: Final = "delays"
"""The group of the query that reads the queue."""
SCHEMA: Final = "scheduled TIMESTAMP, carrier STRING, origin STRING, destination STRING, delay INT"
"""The messages, as JSON."""
SERVER: Final = {"appendfsync": "always"}
"""Configuration of an embedded server that may be killed."""
SESSION: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",  # the state is small: sixteen carriers times a few hours
    "spark.ui.enabled": "false",
}
"""Spark's settings."""
_REPORT_EVERY: Final = 0.2
"""Seconds between two reports of Spark's driver."""


def flights(rows: int = ALL_FLIGHTS) -> Iterator[dict[str, Any]]:
    """Yield the first flights of 2013, sorted by the time that they were scheduled for.

    Times are New York's, delays of departure in minutes; a cancelled flight has no delay.

    Raises:
        MissingExtraError: The data package is not installed.
    """
    nycflights.data_directory("pipeline")
    columns = ("year", "month", "day", "hour", "minute", "carrier", "origin", "dest", "dep_delay")
    pick = operator.itemgetter(*map(nycflights.header().index, columns))
    found = []
    for row in csv.reader(line.decode() for line in nycflights.lines()):
        year, month, day, hour, minute, *others = pick(row)
        found.append((f"{year}-{month:0>2}-{day:0>2}T{hour:0>2}:{minute:0>2}:00Z", *others))
    found.sort(key=operator.itemgetter(0))
    for scheduled, carrier, origin, destination, delay in found[:rows]:
        flight = {"scheduled": scheduled, "carrier": carrier, "origin": origin, "destination": destination}
        yield {**flight, "delay": nycflights.minutes(delay)}


def read(spark: SparkSession, **options: Any) -> DataFrame:
    """Read a queue of flights as a stream. When the queue is closed and empty, a row ends the last hours.

    Args:
        spark: The session; see `SESSION`.
        **options: Those of the source: `url`, `queue`, `maxRowsPerBatch`, …
    """
    given = {key: value for key, value in options.items() if value is not None}
    source = spark.readStream.format("pressure").schema(SCHEMA)
    return source.options(group=GROUP, format="json", endTimeColumn="scheduled", **given).load()


def delays(stream: DataFrame) -> DataFrame:
    """Sum up departures by carrier and by the hour that they were scheduled for."""
    from pyspark.sql import functions as f

    hourly = stream.withWatermark("scheduled", "1 hour").groupBy(f.window("scheduled", "1 hour"), "carrier")
    return hourly.agg(
        f.count("*").alias("flights"),
        f.count("delay").alias("departed"),
        f.avg("delay").alias("mean_delay"),
        f.max("delay").alias("longest_delay"),
    ).select("window.start", "carrier", "flights", "departed", "mean_delay", "longest_delay")


def write(frame: DataFrame, files: Path, checkpoint: Path) -> StreamingQuery:
    """Start the query, from its checkpoint. It writes each window to Parquet once, when the window is finished.

    It ends when the queue is closed and empty and everything is processed.
    """
    sink = frame.writeStream.format("parquet").outputMode("append").queryName(GROUP)
    return pressure.start(sink.option("path", str(files)).option("checkpointLocation", str(checkpoint)))


def table(files: Path) -> pd.DataFrame:
    """Read the files: one row for each hour and carrier, sorted."""
    import pandas as pd

    return pd.read_parquet(files).sort_values(["start", "carrier"], ignore_index=True)


def chart(delays: pd.DataFrame, path: Path) -> None:
    """Draw the mean delay by carrier and by hour of the day. Interrupted, it leaves an older chart as it is.

    Args:
        delays: What `table` returns.
        path: The file; its ending says which format (.png, .svg).
    """
    from matplotlib.figure import Figure

    names = nycflights.airlines()
    flown = delays[delays["departed"] > 0]
    flown = flown.assign(hour=flown["start"].dt.hour, minutes=flown["mean_delay"] * flown["departed"])
    sums = flown.groupby(["carrier", "hour"])[["minutes", "departed"]].sum().unstack()
    sums = sums.reindex(columns=range(flown["hour"].min(), flown["hour"].max() + 1), level="hour")
    order = (sums["minutes"].sum(axis=1) / sums["departed"].sum(axis=1)).sort_values().index
    means = (sums["minutes"] / sums["departed"]).loc[order]
    figure = Figure(figsize=(8, 1.2 + 0.3 * len(means)), layout="constrained")
    axes = figure.subplots()
    image = axes.pcolormesh(means.columns, range(len(means)), means, cmap="RdYlGn_r", vmin=-10, vmax=60)
    axes.set_yticks(range(len(means)), [names.get(carrier, carrier) for carrier in means.index])
    axes.set_xticks(means.columns)
    axes.set_xlabel("hour of scheduled departure")
    axes.set_title(f"Delays of {delays['flights'].sum():,} flights from New York City in 2013")
    figure.colorbar(image, label="mean delay of departure in minutes", extend="both")
    new = path.with_name(f"new-{path.name}")
    figure.savefig(new, dpi=100)
    new.replace(path)


async def feeder(orders: dict[str, Any], _: object) -> dict[str, Any]:
    """Put the flights that have not been put yet."""
    where = {name: orders[name] for name in ("url", "prefix")}
    async with AsyncQueue[Any](orders["queue"], codec="json", **where) as queue:
        return {"fed": await feed(queue, flights(orders["rows"]))}


async def spark(orders: dict[str, Any], report: Callable[..., None]) -> dict[str, Any]:
    """Be Spark's driver; what Spark and Java print goes to `spark.log`.

    If it fails or is cancelled it exits at once, and Java with it: it may be killed at any time, too.
    """
    log = Path(orders["folder"]) / "spark.log"
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        return await _compute(orders, log.parent, report)
    except BaseException as error:  # noqa: BLE001 - Spark's errors have no common base
        traceback.print_exc()
        sys.stderr.flush()
        report(error=f"{type(error).__name__}: {_why(error)} ({log} has the rest)")
        os._exit(1)  # without waiting for Java and its threads


async def _compute(orders: dict[str, Any], folder: Path, report: Callable[..., None]) -> dict[str, Any]:
    """Run the query until the queue is closed and empty, and draw the chart."""
    files, checkpoint, scratch = folder / "delays", folder / "checkpoint", folder / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)  # of a driver that was killed
    configuration = {**SESSION, "spark.local.dir": str(scratch)}
    where = {name: orders[name] for name in ("url", "prefix", "queue")}
    session = pressure.session("apressure pipeline", "local[*,4]", configuration)  # 4: a task is tried so many times
    stream = read(session, maxRowsPerBatch=max(orders["bound"], 1000), **where)
    query = write(delays(stream), files, checkpoint)
    progress = Progress(query, GROUP, **where)
    ending = asyncio.ensure_future(asyncio.to_thread(query.awaitTermination))
    while not (await asyncio.wait([ending], timeout=_REPORT_EVERY))[0]:
        with contextlib.suppress(Exception):  # the query itself says what is wrong
            report(**progress.look())
    await ending
    sweep(session, files)
    found = table(files)
    chart(found, folder / "delays.png")
    session.stop()
    shutil.rmtree(scratch, ignore_errors=True)
    return {
        "rows": int(found["flights"].sum()),
        "windows": len(found),
        "doubled": int(found.duplicated(["start", "carrier"]).sum()),
        "batches": sum(commit.name.isdigit() for commit in (checkpoint / "commits").iterdir()),
        "carriers": _by_carrier(found),
    }


def _by_carrier(delays: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the carriers as JSON, the greatest mean delay first."""
    sums = delays.assign(minutes=delays["mean_delay"] * delays["departed"]).groupby("carrier").sum(True)
    sums = sums.assign(cancelled=sums["flights"] - sums["departed"], mean_delay=sums["minutes"] / sums["departed"])
    sums = sums.assign(name=sums.index.map(nycflights.airlines())).sort_values("mean_delay", ascending=False)
    shown = sums[["name", "flights", "departed", "cancelled", "mean_delay"]].round(2).reset_index()
    return list(json.loads(shown.to_json(orient="records")))


def _why(error: BaseException) -> str:
    """The line of an error that says most: what Python said in Spark's processes, or else what Java began with."""
    lines = [line.strip() for line in [*str(error).splitlines(), *getattr(error, "_stackTrace", "").splitlines()]]
    python = [line for line in lines if line.startswith(("apressure.", "pyspark.errors."))]
    java = [line for line in lines if line.startswith("Caused by: ")]
    return str((python or java or [" ".join(lines)])[-1])[:500]
