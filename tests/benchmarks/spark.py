"""Compare Spark over queues with code by hand, in one warm run, with messages of 100 bytes.

Usage: python -m tests.benchmarks.spark [--messages N] [--repetitions N] [--puts N] [--long] [--json FILE] [--only PART]
       python -m tests.benchmarks.spark --table RESULTS.json
       python -m tests.benchmarks.spark --scale RESULTS.json
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import functools
import itertools
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import redis

from apressure import AsyncQueue
from apressure import spark as pressure
from apressure.embedded import EmbeddedServer
from apressure.spark.options import Options
from tests.benchmarks.__main__ import machine
from tests.benchmarks.spark_queues import MANY, Streams, scale_tables

KEY = "__pressure__:bench"
MORE = "krows/s"
"""The unit of which more is better. Of all others, less is better."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.spark", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--repetitions", type=int, default=3, metavar="N", help="after one that is not counted")
    parser.add_argument("--puts", type=int, default=60, metavar="N", help="for the time from put to foreachBatch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, too")
    parser.add_argument(
        "--table", type=Path, metavar="RESULTS", help="print the table of such a file, and nothing else"
    )
    parser.add_argument(
        "--scale", type=Path, metavar="RESULTS", help="print the tables of docs/do/scale.md of such a file"
    )
    parser.add_argument("--long", action="store_true", help="also read 10 times --messages through 1, 2 and 4 queues")
    parser.add_argument("--only", default="", metavar="PART", help="measure only the cases whose name contains this")
    options = parser.parse_args()
    if options.table or options.scale:
        results = json.loads((options.table or options.scale).read_text())
        print(table(results) if options.table else "\n\n".join(scale_tables(results["scale"])))
        return
    spark = pressure.session("bench", "local[2]", {"spark.ui.enabled": "false", "spark.driver.memory": "4g"})
    spark.sparkContext.setLogLevel("OFF")
    with EmbeddedServer(tcp=True) as server, tempfile.TemporaryDirectory() as folder:
        about = {
            **machine(),
            "server": f"{server.software} {server.version}",
            "pyspark": version("pyspark"),
            "pyarrow": version("pyarrow"),
            "messages": options.messages,
            "repetitions": options.repetitions,
        }
        print(", ".join(f"{key} {value}" for key, value in about.items()))
        bench = Bench(spark, server.url, options.messages, options.repetitions, Path(folder))
        figures = []
        for figure in bench.run(options.puts, options.only):
            print(line(figure), flush=True)
            figures.append(figure)
        scale = []
        for run in bench.streams.drain(10 * options.messages) if options.long else ():
            print("  " + "  ".join(f"{name} {value:,.3f}" for name, value in run.items()), flush=True)
            scale.append(run)
    spark.stop()
    if options.json:
        results = {"machine": about, "figures": [dataclasses.asdict(figure) for figure in figures], "scale": scale}
        options.json.write_text(json.dumps(results, indent=2) + "\n")


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        case: The operation.
        other: The other side, if there is one.
        unit: The unit of `ours` and `theirs`: `"krows/s"` (more is better), `"ms"` or `"commands/s"` (less is better).
        ours: Our median.
        theirs: The other's median.
        ratio: The median of the ratios of repetitions, ours to theirs.
        goal: The least ratio, or without a ratio the least `ours` (the greatest where less is better); or None.
        reached: Whether the goal was reached.
    """

    case: str
    other: str
    unit: str
    ours: float
    theirs: float | None
    ratio: float | None
    goal: float | None
    reached: bool


class Bench:
    """One session, one server, one queue."""

    def __init__(self, spark: Any, url: str, messages: int, repetitions: int, folder: Path) -> None:
        self.spark = spark
        self.url = url
        self.messages = messages
        self.repetitions = repetitions
        self.batch = messages // 10
        self.krows = messages / 1000
        self.folder = folder
        self.plain = redis.Redis.from_url(url)
        self.streams = Streams(spark, url, folder)
        self.frame = spark.range(0, messages, 1, 2).selectExpr("cast(lpad(id, 100, 'x') AS BINARY) AS body").cache()
        self.frame.count()

    def run(self, puts: int, only: str = "") -> Iterator[Figure]:
        """Run all cases, or those whose name contains `only`."""
        parts: dict[str, Callable[[], Iterator[Figure]]] = {
            "batch read": self.reads,
            "write": self.writes,
            "stream": lambda: self.micro_batch_rates(puts),
            "queues": self.many_queues,
            "no Spark": self.without_spark,
        }
        for name, part in parts.items():
            if only in name:
                yield from part()

    def reads(self) -> Iterator[Figure]:
        """Compare `spark.read` with code by hand."""
        for other, by_hand, goal in (
            ("flatMap over LRANGE", functools.partial(self.read_by_hand, True), 2.5),
            ("the same, verifySchema=False", functools.partial(self.read_by_hand, False), None),
            ("LRANGE on the driver, to Arrow", self.read_to_arrow, 1.5),
        ):
            yield compared("batch read", other, goal, self.krows, *self.turns(self.read, by_hand, self.fill))

    def writes(self) -> Iterator[Figure]:
        """Compare `df.write` with code by hand."""
        for other, push, goal in (
            ("foreachPartition, pipelines of 1,000 LPUSH", one_by_one, 8),
            ("foreachPartition, LPUSH of 1,000", together, 3),
        ):
            by_hand = functools.partial(self.write_by_hand, push)
            yield compared("write", other, goal, self.krows, *self.turns(self.write, by_hand, self.empty))

    def micro_batch_rates(self, puts: int) -> Iterator[Figure]:
        """Measure micro-batches."""
        micro = statistics.median(self.micro_batches())
        yield alone(f"micro-batches of {self.batch:,} rows", "krows/s", self.batch / micro / 1000, 300)
        size = Options.max_rows_per_batch
        rates = [size / seconds / 1000 for seconds in self.streams.to_parquet(max(self.messages, 4 * size))]
        yield alone("a stream to Parquet, default options", "krows/s", statistics.median(rates), 250)
        yield alone("put to foreachBatch, p50", "ms", statistics.median(self.latencies(puts)) * 1000, 150)

    def many_queues(self) -> Iterator[Figure]:
        """Measure a stream over one queue, and over many."""
        self.streams.begin(1, 0.1)  # warms up
        for queues, goals in ((1, (None, None)), (MANY, (1000, 100))):
            total, batch, idle = self.streams.begin(queues, 5)
            name = f"{queues} queue{'s' * (queues > 1)}"
            yield alone(f"{name}: start() to the end of the first batch", "ms", 1000 * total, None)
            yield alone(f"{name}: the first batch", "ms", 1000 * batch, goals[0])
            yield alone(f"{name}: an idle stream", "commands/s", idle, goals[1])

    def without_spark(self) -> Iterator[Figure]:
        """Measure asyncio."""
        rates = []
        for _ in range(self.repetitions):
            self.fill()
            rates.append(self.krows / timed(lambda: asyncio.run(self.consume())))
        yield alone("no Spark: asyncio, get_many", "krows/s", statistics.median(rates), None)

    def turns(
        self, ours: Callable[[], None], other: Callable[[], None], before: Callable[[], None]
    ) -> tuple[list[float], list[float]]:
        """Run both sides in turn; the first turn warms up."""
        times: tuple[list[float], list[float]] = [], []
        for _ in range(self.repetitions + 1):
            for side, function in zip(times, (ours, other), strict=True):
                before()
                side.append(timed(function))
        return times[0][1:], times[1][1:]

    def empty(self) -> None:
        """Create the queue again."""
        self.plain.flushall()
        asyncio.run(self._create())

    async def _create(self) -> None:
        async with AsyncQueue("bench", url=self.url) as queue:
            await queue.create()

    def fill(self) -> None:
        """Create the queue again, with all messages."""
        self.empty()
        self.write()

    def read(self) -> None:
        """`spark.read`."""
        options = {"url": self.url, "queue": "bench"}
        frame = self.spark.read.schema("body BINARY").format("pressure").options(**options).load()
        frame.write.format("noop").mode("overwrite").save()

    def read_by_hand(self, verify: bool) -> None:
        """Read without a source, by hand."""
        url, each = self.url, self.messages // 2

        def rows(part: int) -> Iterator[tuple[bytes]]:
            client = redis.Redis.from_url(url)
            for at in range(part * each, (part + 1) * each, 10_000):
                for body in client.lrange(KEY, at, min(at + 10_000, (part + 1) * each) - 1):
                    yield (body,)

        found = self.spark.sparkContext.parallelize(range(2), 2).flatMap(rows)
        frame = self.spark.createDataFrame(found, "body BINARY", verifySchema=verify)
        frame.write.format("noop").mode("overwrite").save()

    def read_to_arrow(self) -> None:
        """Read on the driver by hand, and make a data frame of an Arrow table: the fastest way by hand."""
        bodies: list[bytes] = []
        for at in range(0, self.messages, 10_000):
            bodies += self.plain.lrange(KEY, at, at + 9999)
        import pyarrow as pa  # here, since the tests of the docs read tables without Spark

        frame = self.spark.createDataFrame(pa.table({"body": pa.array(bodies, pa.binary())}))
        frame.write.format("noop").mode("overwrite").save()

    def write(self) -> None:
        """`df.write`."""
        self.frame.write.format("pressure").mode("append").options(url=self.url, queue="bench").save()

    def write_by_hand(self, push: Callable[[Any, list[bytes]], None]) -> None:
        """Write without a sink, by hand."""
        url = self.url

        def write(rows: Iterator[Any]) -> None:
            client = redis.Redis.from_url(url)
            while bodies := [bytes(row.body) for row in itertools.islice(rows, 1000)]:
                push(client, bodies)

        self.frame.foreachPartition(write)

    def stream(self, group: str) -> Any:
        """Read the queue as a stream."""
        options = {"url": self.url, "queue": "bench", "group": group, "maxRowsPerBatch": self.batch}
        return self.spark.readStream.schema("body BINARY").format("pressure").options(**options).load()

    def micro_batches(self) -> list[float]:
        """Return the seconds of each full micro-batch but the first."""
        self.fill()
        writer = (
            self.stream("micro").writeStream.format("noop").option("checkpointLocation", str(self.folder / "micro"))
        )
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [one for one in query.recentProgress if one["numInputRows"] == self.batch]
        return [one["durationMs"]["triggerExecution"] / 1000 for one in batches[1:]]

    def latencies(self, puts: int) -> list[float]:
        """Return the seconds from a put to the message's arrival in foreachBatch."""
        self.empty()
        waited: list[float] = []

        def arrive(frame: Any, _: int) -> None:
            now = time.time
            waited.extend(now() - float(row.body) for row in frame.collect())

        writer = self.stream("wait").writeStream.foreachBatch(arrive)
        query = writer.option("checkpointLocation", str(self.folder / "wait")).start()

        async def put() -> None:
            async with AsyncQueue("bench", url=self.url) as queue:
                for number in range(puts + 5):
                    await queue.put(b"%.6f" % time.time())
                    while len(waited) <= number:
                        await asyncio.sleep(0.01)
                    await asyncio.sleep(0.3 + 0.01 * (number % 20))

        thread = threading.Thread(target=lambda: asyncio.run(put()))
        thread.start()
        thread.join()
        query.stop()
        return waited[5:]

    async def consume(self) -> None:
        """Consume without Spark."""
        async with AsyncQueue("bench", url=self.url) as queue:
            left = self.messages
            while left:
                left -= len(await queue.get_many(5000))


def one_by_one(client: Any, bodies: list[bytes]) -> None:
    """Use a pipeline with a command for each message."""
    pipeline = client.pipeline(transaction=False)
    for body in bodies:
        pipeline.lpush(KEY, body)
    pipeline.execute()


def together(client: Any, bodies: list[bytes]) -> None:
    """Use one command."""
    client.lpush(KEY, *bodies)


def timed(function: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def compared(case: str, other: str, goal: float | None, krows: float, ours: list[float], theirs: list[float]) -> Figure:
    """Compare two sides that were measured in turn."""
    ratio = statistics.median(their / our for our, their in zip(ours, theirs, strict=True))
    mine, hand = krows / statistics.median(ours), krows / statistics.median(theirs)
    return Figure(case, other, "krows/s", mine, hand, ratio, goal, goal is None or ratio >= goal)


def alone(case: str, unit: str, value: float, goal: float | None) -> Figure:
    """Make a figure without another side."""
    reached = goal is None or (value >= goal if unit == MORE else value <= goal)
    return Figure(case, "", unit, value, None, None, goal, reached)


def line(figure: Figure) -> str:
    """Return a figure in words."""
    return "  " + "  ".join(cell.replace("**", "") for cell in cells(figure) if cell)


def table(results: dict[str, Any]) -> str:
    """Return the results as a table of the documentation. Bold marks missed goals."""
    lines = ["| what | ours | by hand | ratio | goal |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(cells(Figure(**one)))} |" for one in results["figures"]]
    return "\n".join(lines)


def cells(figure: Figure) -> tuple[str, ...]:
    """Return the cells: case, ours, theirs, ratio, goal."""
    name = f"{figure.case} / {figure.other}" if figure.other else figure.case
    ours, theirs = (None if value is None else f"{value:,.0f} {figure.unit}" for value in (figure.ours, figure.theirs))
    ratio = None if figure.ratio is None else f"{figure.ratio:.3g}"
    sign = "≥" if ratio or figure.unit == MORE else "≤"
    goal = None if figure.goal is None else f"{sign} {figure.goal:g}{'' if ratio else ' ' + figure.unit}"
    if not figure.reached:
        ours, ratio = (ours, f"**{ratio}**") if ratio else (f"**{ours}**", ratio)
    return name, ours or "", theirs or "", ratio or "", goal or ""


if __name__ == "__main__":
    main()
