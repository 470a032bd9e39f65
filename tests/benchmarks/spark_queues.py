"""Streams over many queues: what they cost when idle, how soon they begin, and how many messages a minute they read."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import redis

from apressure.spark.engine.steps import QueueSteps, server_of
from apressure.spark.options import Options

MANY = 60
COUNTS = (1, 2, 4)
"""How many queues the long run reads from."""
LPUSH = 1_040_000
"""Messages a second that one connection puts with LPUSH of many values; measured with `nox -s bench`."""
FULL = 0.7
"""How busy a server, a connection, a query's source or a core may be in the extrapolation."""
TARGETS = (10, 100, 1000)
"""Millions of messages a minute."""


class Streams:
    """Streams of one session over queues of one server.

    Args:
        spark: The session.
        url: The server.
        folder: For checkpoints and files.
    """

    def __init__(self, spark: Any, url: str, folder: Path) -> None:
        self._spark = spark
        self._url = url
        self._folder = folder
        self._plain = redis.Redis.from_url(url)
        self._runs = 0

    def fill(self, queues: int, messages: int) -> None:
        """Create queues with so many messages of 100 bytes in all."""
        self._plain.flushall()
        server = server_of(Options.of({"url": self._url, "queues": "many*"}))
        for number in range(queues):
            steps = QueueSteps(server, f"many{number}")
            steps.create(0)
            left = messages // queues
            while left:
                some = min(left, 10_000)
                counts = steps.keys.queue.statistics
                pipeline = self._plain.pipeline()
                pipeline.lpush(steps.keys.queue.messages, *[b"%0100d" % place for place in range(some)])
                pipeline.incrby(counts[0], some)
                pipeline.incrby(counts[1], 100 * some)
                pipeline.execute()
                left -= some

    def start(self, sink: str, now: bool) -> Any:
        """Start a stream over all queues, at the default options."""
        self._runs += 1
        folder = self._folder / f"many{self._runs}"
        frame = self._spark.readStream.format("pressure").options(url=self._url, queues="many*", group="g").load()
        writer = frame.select("body").writeStream.format(sink).option("checkpointLocation", str(folder / "checkpoint"))
        writer = writer.option("path", str(folder / "files")) if sink == "parquet" else writer
        return (writer.trigger(availableNow=True) if now else writer).start()

    def begin(self, queues: int, seconds: float) -> tuple[float, float, float]:
        """Start a stream over queues with 6,000 messages, and let it idle for so many seconds.

        Returns:
            Seconds from `start()` to the end of the first batch's `addBatch`, seconds of the whole first batch, and
            commands a second while it idles, those inside scripts included.
        """
        self.fill(queues, 6000)
        began = time.perf_counter()
        query = self.start("noop", now=False)
        while not (batches := [one for one in query.recentProgress if one["numInputRows"]]):
            time.sleep(0.005)
        total, took = time.perf_counter() - began, batches[0]["durationMs"]
        time.sleep(2)  # then it has looked at its backlog
        before = self._commands()
        time.sleep(seconds)
        idle = (self._commands() - before) / seconds
        query.stop()
        return total - took["commitOffsets"] / 1000, took["triggerExecution"] / 1000, idle

    def _commands(self) -> int:
        about: dict[str, dict[str, int]] = self._plain.info("commandstats")  # type: ignore[assignment]
        return sum(one["calls"] for one in about.values())

    def to_parquet(self, messages: int) -> list[float]:
        """Return the seconds of each full micro-batch to Parquet but the first, at the default options."""
        self.fill(1, messages)
        query = self.start("parquet", now=True)
        query.awaitTermination()
        batches = [one for one in query.recentProgress if one["numInputRows"] == Options.max_rows_per_batch]
        return [one["durationMs"]["triggerExecution"] / 1000 for one in batches[1:]]

    def drain(self, messages: int) -> Iterator[dict[str, float]]:
        """Read so many messages to Parquet, through one queue, and through more; the first run warms up."""
        for queues in (1, *COUNTS):
            warm = self._runs
            self.fill(queues, messages if warm else messages // 10)
            memory = self._plain.info("memory")["used_memory"]  # type: ignore[index]
            cpu, served, began = spark_cpu(), self._served(), time.perf_counter()
            query = self.start("parquet", now=True)
            query.awaitTermination()
            seconds = time.perf_counter() - began
            batches = [one for one in query.recentProgress if one["numInputRows"]]
            if warm:
                yield {
                    "queues": queues,
                    "messages": sum(one["numInputRows"] for one in batches),
                    "seconds": seconds,
                    "sealing": sum(one["durationMs"]["latestOffset"] for one in batches) / 1000,
                    "spark_cpu": spark_cpu() - cpu,
                    "server_cpu": self._served() - served,
                    "bytes_each": memory / messages,
                    "cores": os.cpu_count() or 1,
                }

    def _served(self) -> float:
        about: dict[str, Any] = self._plain.info("cpu")  # type: ignore[assignment]
        return float(about["used_cpu_user"] + about["used_cpu_sys"])


def spark_cpu() -> float:
    """Return the seconds of CPU that Java and the Python workers have used."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if any(word in " ".join(process.cmdline()) for word in ("SparkSubmit", "pyspark")):
                times = process.cpu_times()
                total += times.user + times.system
        except psutil.Error:
            continue
    return total


def scale_tables(runs: list[dict[str, float]]) -> tuple[str, str]:
    """Return the tables of docs/do/scale.md: what was measured, with seconds for a million messages; larger rates."""
    lines = [
        "| queues | messages | seconds | messages a minute | of the cores | Spark's CPU | the server's CPU | sealing |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run in runs:
        millions = run["messages"] / 1e6
        each = " | ".join(f"{run[name] / millions:.2f} s" for name in ("spark_cpu", "server_cpu", "sealing"))
        rate = f"{millions / run['seconds'] * 60:.1f} M"
        used = (run["spark_cpu"] + run["server_cpu"]) / run["seconds"] / run["cores"]
        lines.append(
            f"| {run['queues']:.0f} | {millions:.3g} M | {run['seconds']:.0f} | {rate} | {used:.0%} | {each} |"
        )
    spark, server, sealing = (
        statistics.median(run[name] / run["messages"] for run in runs)
        for name in ("spark_cpu", "server_cpu", "sealing")
    )
    size = statistics.median(run["bytes_each"] for run in runs)
    wider = [
        "| messages a minute | servers | producers | queries | Spark's cores | a minute of backlog |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for target in TARGETS:
        rate = target * 1e6 / 60
        costs = (server + 1 / LPUSH, 1 / LPUSH, sealing, spark)
        counts = " | ".join(f"{math.ceil(rate * cost / FULL):,}" for cost in costs)
        wider.append(f"| {target:,} M | {counts} | {60 * rate * size / 1e9:.0f} GB |")
    return "\n".join(lines), "\n".join(wider)
