"""Spark over queues: ours beside code by hand, in one run, warm, with messages of 100 bytes.

Usage: python -m tests.benchmarks.spark [--messages N] [--repetitions N] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

from apressure import AsyncQueue
from apressure import spark as pressure
from apressure.embedded import EmbeddedServer

KEY = "__pressure__:bench"
BATCH = 100_000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.spark", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--repetitions", type=int, default=3, metavar="N", help="after one that is not counted")
    parser.add_argument("--puts", type=int, default=60, metavar="N", help="for the time from put to foreachBatch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, too")
    options = parser.parse_args()
    spark = pressure.session("bench", "local[2]", {"spark.ui.enabled": "false", "spark.driver.memory": "4g"})
    spark.sparkContext.setLogLevel("OFF")
    with EmbeddedServer(tcp=True) as server, tempfile.TemporaryDirectory() as folder:
        bench = Bench(spark, server.url, options.messages, options.repetitions, Path(folder))
        figures = list(bench.run(options.puts))
    spark.stop()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


class Bench:
    """One session, one server, one queue."""

    def __init__(self, spark: Any, url: str, messages: int, repetitions: int, folder: Path) -> None:
        self.spark = spark
        self.url = url
        self.messages = messages
        self.repetitions = repetitions
        self.folder = folder
        self.plain = redis.Redis.from_url(url)
        self.frame = spark.range(0, messages, 1, 2).selectExpr("cast(lpad(id, 100, 'x') AS BINARY) AS body").cache()
        self.frame.count()

    def run(self, puts: int) -> Iterator[dict[str, Any]]:
        """All cases."""
        krows = self.messages / 1000
        yield ratio(
            "batch read", "flatMap over LRANGE", 2.5, krows, *self.turns(self.read, self.read_by_hand, self.fill)
        )
        yield ratio(
            "write", "foreachPartition, pipelines", 8, krows, *self.turns(self.write, self.write_by_hand, self.empty)
        )
        micro = statistics.median(self.micro_batches())
        yield figure(
            "micro-batches of 100,000 rows", BATCH / micro / 1000, "krows/s", 300, more=f"{micro * 1000:.0f} ms each"
        )
        waited = sorted(self.latencies(puts))
        yield figure(
            "put to foreachBatch, p50",
            statistics.median(waited) * 1000,
            "ms",
            -150,
            f"p90 {waited[puts * 9 // 10] * 1000:.0f} ms",
        )
        self.fill()
        yield figure(
            "plain asyncio consumer (get_many)", krows / timed(lambda: asyncio.run(self.consume())), "krows/s", 0
        )

    def turns(
        self, ours: Callable[[], None], other: Callable[[], None], before: Callable[[], None]
    ) -> tuple[list[float], list[float]]:
        """Both sides in turn; the first time only warms up."""
        times: tuple[list[float], list[float]] = [], []
        for _ in range(self.repetitions + 1):
            for side, function in zip(times, (ours, other), strict=True):
                before()
                side.append(timed(function))
        return times[0][1:], times[1][1:]

    def empty(self) -> None:
        """Make the queue anew."""
        self.plain.flushall()
        asyncio.run(self._create())

    async def _create(self) -> None:
        async with AsyncQueue("bench", url=self.url) as queue:
            await queue.create()

    def fill(self) -> None:
        """Make the queue anew, with all messages."""
        self.empty()
        self.write()

    def read(self) -> None:
        """`spark.read`."""
        options = {"url": self.url, "queue": "bench"}
        frame = self.spark.read.schema("body BINARY").format("pressure").options(**options).load()
        frame.write.format("noop").mode("overwrite").save()

    def read_by_hand(self) -> None:
        """What one writes without a source."""
        url, each = self.url, self.messages // 2

        def rows(part: int) -> Iterator[tuple[bytes]]:
            client = redis.Redis.from_url(url)
            for at in range(part * each, (part + 1) * each, 10_000):
                for body in client.lrange(KEY, at, min(at + 10_000, (part + 1) * each) - 1):
                    yield (body,)

        found = self.spark.sparkContext.parallelize(range(2), 2).flatMap(rows)
        frame = self.spark.createDataFrame(found, "body BINARY", verifySchema=False)
        frame.write.format("noop").mode("overwrite").save()

    def write(self) -> None:
        """`df.write`."""
        self.frame.write.format("pressure").mode("append").options(url=self.url, queue="bench").save()

    def write_by_hand(self) -> None:
        """What one writes without a sink."""
        url = self.url

        def push(rows: Iterator[Any]) -> None:
            pipeline = redis.Redis.from_url(url).pipeline(transaction=False)
            for number, row in enumerate(rows, 1):
                pipeline.lpush(KEY, bytes(row.body))
                if number % 1000 == 0:
                    pipeline.execute()
            pipeline.execute()

        self.frame.foreachPartition(push)

    def stream(self, group: str) -> Any:
        """The queue as a stream."""
        options = {"url": self.url, "queue": "bench", "group": group, "maxRowsPerBatch": BATCH}
        return self.spark.readStream.schema("body BINARY").format("pressure").options(**options).load()

    def micro_batches(self) -> list[float]:
        """Seconds of each whole micro-batch but the first."""
        self.fill()
        writer = (
            self.stream("micro").writeStream.format("noop").option("checkpointLocation", str(self.folder / "micro"))
        )
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [one for one in query.recentProgress if one["numInputRows"] == BATCH]
        return [one["durationMs"]["triggerExecution"] / 1000 for one in batches[1:]]

    def latencies(self, puts: int) -> list[float]:
        """Seconds from a put to the message's arrival in foreachBatch."""
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
        """No Spark at all."""
        async with AsyncQueue("bench", url=self.url) as queue:
            left = self.messages
            while left:
                left -= len(await queue.get_many(5000))


def timed(function: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def ratio(name: str, other: str, goal: float, krows: float, ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """The median ratio of two sides that were measured in turn."""
    found = statistics.median(their / our for our, their in zip(ours, theirs, strict=True))
    mine, hand = krows / statistics.median(ours), krows / statistics.median(theirs)
    print(f"{name} / {other}: {mine:,.0f} and {hand:,.0f} krows/s, ratio {found:.1f} (goal {goal:g})", flush=True)
    return {"case": name, "other": other, "ours": mine, "theirs": hand, "unit": "krows/s", "ratio": found, "goal": goal}


def figure(name: str, value: float, unit: str, goal: float, more: str = "") -> dict[str, Any]:
    """A figure with a goal: at least that, or, of a negative one, at most its amount; 0 for none."""
    wanted = f" (goal {'at most ' if goal < 0 else ''}{abs(goal):g})" if goal else ""
    print(f"{name}: {value:,.0f} {unit}{wanted}{', ' if more else ''}{more}", flush=True)
    return {"case": name, "ours": value, "unit": unit, "goal": goal}


if __name__ == "__main__":
    main()
