"""Late flights: an asynchronous feeder, a bounded queue, Structured Streaming, Parquet and a chart.

`apressure pipeline` is this module with processes, a server and a screen around it; `examples/pipeline.py` is the same
in one's own hands. Each step can be killed at any time and started again, and the files are those of an undisturbed
run, no row lost and none twice:

* The flights are always the same, in the same order: by their event time, so that none comes behind the watermark.
* The feeder puts from where the queue's own count of produced messages says (`feed`): one step on the server
  puts messages and counts them, so that the count cannot be wrong, also for a put whose answer nobody heard.
* The source's batches are sealed on the server until Spark has done with them, and Spark's checkpoint says which it
  has: what was being worked on is worked on again, with the same rows.
* Parquet files count when Spark's log in their folder names them, and a batch is logged once. `sweep` removes the
  others, for readers that do not look into that log.

A server that is killed must have on its disk what it has confirmed: `appendfsync always` (`SERVER`).
"""

from __future__ import annotations

import csv
import datetime as dt
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from apressure import nycflights
from apressure.connection.blocking import Blocking
from apressure.exceptions import QueueClosedError
from apressure.queue.queue import AsyncQueue
from apressure.spark.options import Options
from apressure.spark.steps import Steps

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

GROUP: Final = "delays"
"""Who reads the queue."""
SCHEMA: Final = "scheduled TIMESTAMP, carrier STRING, origin STRING, destination STRING, delay INT"
"""What the messages are, as JSON."""
SERVER: Final = {"appendfsync": "always"}
"""Configuration of an embedded server that may be killed."""
SESSION: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",  # the state is small: sixteen carriers times a few hours
    "spark.ui.enabled": "false",
}
"""Spark's settings."""
LEASE: Final = 10.0
"""Seconds after which another feeder may go on where one was killed."""
_DAY: Final = dt.timedelta(days=1)


def flights(rows: int = nycflights.ALL_FLIGHTS) -> Iterator[dict[str, Any]]:
    """Return the first flights of 2013, sorted by the time that they were scheduled for, and then a mark of the end.

    Times are New York's, delays of departure in minutes; a flight that was cancelled has none. The mark has no carrier,
    and a time a day later: it takes the watermark past the last window, and its own window is never finished.

    Raises:
        MissingExtraError: The data package is not installed.
    """
    directory = nycflights.data_directory("pipeline")
    column = {name: number for number, name in enumerate(nycflights.header(directory))}
    kept = [column[name] for name in ("carrier", "origin", "dest", "dep_delay")]
    when = [column[name] for name in ("year", "month", "day", "hour", "minute")]
    lines = (line.decode() for line in nycflights.lines(directory, nycflights.ALL_FLIGHTS))
    found = [
        ("{:0>4}-{:0>2}-{:0>2}T{:0>2}:{:0>2}:00Z".format(*(row[i] for i in when)), *(row[i] for i in kept))
        for row in csv.reader(lines)
    ]
    found.sort(key=lambda flight: flight[0])
    return _messages(found[:rows])


def _messages(found: list[tuple[str, ...]]) -> Iterator[dict[str, Any]]:
    for scheduled, carrier, origin, destination, delay in found:
        yield {
            "scheduled": scheduled,
            "carrier": carrier,
            "origin": origin,
            "destination": destination,
            "delay": None if delay in ("", "NA") else int(delay),
        }
    yield {"scheduled": (dt.datetime.fromisoformat(found[-1][0]) + _DAY).isoformat()}


async def feed(queue: AsyncQueue[Any], items: Iterable[Any]) -> int:
    """Put what the queue has not been given yet of some items, wait while it is full, and close it. Return how many.

    Killed, cancelled or disconnected at any time, it may be called again with the same items in the same order: it goes
    on with the first that is not in. The role of the producer keeps a second feeder out, and one that was killed
    for `LEASE` seconds; with it held, nobody changes how many messages the queue has been given.

    Raises:
        LeaseLostError: The process stood still for longer than `LEASE`. What was put is in.
        QueueDoesNotExistError, ServerUnavailableError, …: As for `put_many`.
    """
    try:
        async with queue.producer(exclusive=True, lease=LEASE) as producer:
            known = (await queue.statistics()).produced_messages
            return await producer.put_many(itertools.islice(items, known, None))
    except QueueClosedError:  # by a feeder that had put all of them
        return 0


def read(spark: SparkSession, **options: Any) -> DataFrame:
    """Read a queue of flights as a stream.

    Args:
        spark: The session; see `SESSION`.
        **options: Those of the source: `url`, `queue`, `maxRowsPerBatch`, …
    """
    given = {key: value for key, value in options.items() if value is not None}
    return spark.readStream.format("pressure").schema(SCHEMA).options(group=GROUP, format="json", **given).load()


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
    """Start the query: each window is written to Parquet once, when it is finished. It goes on from its checkpoint."""
    sink = frame.writeStream.format("parquet").outputMode("append").queryName(GROUP)
    return sink.option("path", str(files)).option("checkpointLocation", str(checkpoint)).start()


def sweep(spark: SparkSession, files: Path) -> None:
    """Remove what tasks have left in a folder of files that died before Spark had logged their batch.

    Only when no query writes there.
    """
    logged = {Path(unquote(urlsplit(url).path)).name for url in spark.read.parquet(str(files)).inputFiles()}
    for path in files.glob("*.parquet"):
        if path.name not in logged:
            path.unlink()


def forget(**options: Any) -> None:
    """Remove what the server keeps of a query that is done for good: its last batch, and how far it was.

    Spark says that a batch is done with when it asks for the next one, so that the last one stays. May be repeated.

    Args:
        **options: `url`, `queue`, `prefix`, … as in `Options`.

    Raises:
        ServerError, ServerUnavailableError: The server refused, or cannot be reached.
    """
    checked = Options.of({key: str(value) for key, value in options.items() if value is not None})
    settings = checked.settings()
    server = Blocking(settings)
    try:
        for name in checked.names:
            steps = Steps(server, settings.prefix, name)
            done, last, _ = steps.flights().get(GROUP, (0, 0, -1))
            batches = (steps.keys.batch(GROUP, number) for number in range(done + 1, last + 1))
            server.ask(b"UNLINK", steps.keys.state(GROUP), *batches)
            server.ask(b"HDEL", steps.keys.groups, GROUP)
    finally:
        server.close()


def table(files: Path) -> pd.DataFrame:
    """Read the files: one row for each hour and carrier, sorted."""
    import pandas as pd

    found = pd.read_parquet(files)
    return found.sort_values(["start", "carrier"], ignore_index=True)


def chart(delays: pd.DataFrame, path: Path) -> None:
    """Draw the mean delay by carrier and by hour of the day. Cut off in the middle, it leaves an older chart as it is.

    Args:
        delays: What `table` returns.
        path: The file; its ending says which format (.png, .svg).
    """
    from matplotlib.figure import Figure

    names = nycflights.airlines(nycflights.data_directory("pipeline"))
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
