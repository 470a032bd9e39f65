"""The pipeline's query, a process of its own: what Spark computes of the flights, writes and draws.

`apressure pipeline` runs it between a feeder and a screen; `examples/pipeline.py` uses its functions. It survives any
kill because the flights are always the same, in the same order, sorted by their time, so that none comes behind the
watermark, and because the server confirms nothing that is not on its disk.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from apressure import spark as pressure
from apressure.demo.flights import airlines
from apressure.demo.flow import read_orders

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


GROUP: Final = "delays"
"""The group of the query that reads the queue."""
SCHEMA: Final = "scheduled TIMESTAMP, carrier STRING, origin STRING, destination STRING, delay INT"
"""The messages, as JSON."""
SESSION: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",  # the state is small: sixteen carriers times a few hours
    "spark.ui.enabled": "false",
}
"""Spark's settings."""


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
    """Draw the mean delay by carrier and by hour of the day.

    Args:
        delays: What `table` returns.
        path: The file; its ending says which format (.png, .svg).
    """
    from matplotlib.figure import Figure

    flown = delays[delays["departed"] > 0]
    flown = flown.assign(hour=flown["start"].dt.hour, minutes=flown["mean_delay"] * flown["departed"])
    sums = flown.groupby(["carrier", "hour"])[["minutes", "departed"]].sum().unstack()
    means = sums["minutes"] / sums["departed"]
    means = means.loc[(sums["minutes"].sum(axis=1) / sums["departed"].sum(axis=1)).sort_values().index]
    means = means.reindex(columns=range(means.columns.min(), means.columns.max() + 1))
    figure = Figure(figsize=(8, 1.2 + 0.3 * len(means)), layout="constrained")
    axes = figure.subplots()
    image = axes.pcolormesh(means.columns, range(len(means)), means, cmap="RdYlGn_r", vmin=-10, vmax=60)
    axes.set_yticks(range(len(means)), map(airlines().get, means.index, means.index))
    axes.set(xticks=means.columns, xlabel="hour of scheduled departure")
    axes.set_title(f"Delays of {delays['flights'].sum():,} flights from New York City in 2013")
    figure.colorbar(image, label="mean delay of departure in minutes", extend="both")
    figure.savefig(path, dpi=100)


def main(url: str, prefix: str | None, queue: str, bound: int, folder: str) -> None:
    """Run the query until the queue is closed and empty."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    files, checkpoint, scratch = (Path(folder) / name for name in ("delays", "checkpoint", "scratch"))
    configuration = {**SESSION, "spark.local.dir": str(scratch)}
    spark = pressure.session("apressure pipeline", "local[*,4]", configuration)  # 4: a task is tried so many times
    flights = read(spark, url=url, prefix=prefix, queue=queue, maxRowsPerBatch=max(bound, 1000))
    write(delays(flights), files, checkpoint).awaitTermination()
    pressure.sweep(spark, files)
    spark.stop()


if __name__ == "__main__":
    try:
        main(**read_orders())
    except BaseException:  # noqa: BLE001 - Spark's errors have no common base
        traceback.print_exc()
        os._exit(1)  # without waiting for Java and its threads
