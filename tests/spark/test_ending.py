"""The row that ends a closed and drained queue: each window comes out once, and the row itself never."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apressure import AsyncQueue
from apressure import spark as pressure
from apressure.spark import ending
from apressure.spark.options import Options
from tests.integration.commands import wait_until
from tests.spark.conftest import PATIENCE, Ground

DAYS = [1, 2, 3, 4]
SCHEMA = "t TIMESTAMP, kind STRING, _queue STRING, _sequence BIGINT, _attempts INT, _corrupt_record BINARY"
EVENT = '{"specversion": "1.0", "id": "%d", "source": "/", "type": "x", "time": "2013-01-0%dT05:00:00Z"}'


def events(*days: int) -> list[bytes]:
    return [b'{"t": "2013-01-0%dT05:00:00Z", "kind": "x"}' % day for day in days]


def windows(frame: Any, column: str = "t") -> Any:
    from pyspark.sql import functions as f

    grouped = frame.withWatermark(column, "1 hour").groupBy(f.window(column, "1 hour"))
    return grouped.agg(f.count("*").alias("rows")).select("window.start", "rows")


def stream(ground: Ground, queues: str = "jobs", schema: str = SCHEMA, **options: Any) -> Any:
    given = {"format": "json", "endTimeColumn": "t", **options}
    return ground.stream(None, queues=queues, **given).schema(schema).load()


def writer(ground: Ground, frame: Any, now: bool = False) -> Any:
    made = frame.writeStream.format("parquet").option("path", str(ground.folder / "out"))
    made = made.option("checkpointLocation", str(ground.folder / "checkpoint"))
    return made.trigger(availableNow=True) if now else made


def found(ground: Ground) -> list[tuple[int, int]]:
    """The windows in the files: the day, and how many rows."""
    rows = ground.spark.read.parquet(str(ground.folder / "out")).collect()
    return sorted((row.start.day, row.rows) for row in rows)


def by_await_end(ground: Ground, frame: Callable[..., Any]) -> Any:
    query = writer(ground, frame()).start()
    pressure.await_end(query)
    return query


def by_start(ground: Ground, frame: Callable[..., Any]) -> Any:
    query = pressure.start(writer(ground, frame()))
    assert query.awaitTermination(PATIENCE)
    return query


def by_stop_at_end(ground: Ground, frame: Callable[..., Any]) -> Any:
    query = writer(ground, frame(stopAtEnd=True), now=True).start()
    assert query.awaitTermination(PATIENCE)
    return query


WAYS = [by_await_end, by_start, by_stop_at_end]


@pytest.mark.parametrize("run", WAYS)
async def test_each_window_comes_out_once(ground: Ground, run: Callable[..., Any]) -> None:
    """The last one, too. A further start gives no second row, and the row is no message."""
    steps = ground.create()
    await ground.put(events(*DAYS, 4), close=True)

    def frame(**options: Any) -> Any:
        return windows(stream(ground, **options))

    query = run(ground, frame)
    assert found(ground) == [(1, 1), (2, 1), (3, 1), (4, 2)]
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 5 + 1
    counts = [int(value) for value in ground.plain.mget(steps.keys.queue.statistics)]
    assert counts[::2] == [5, 5]
    assert ground.plain.hget(steps.state, "rows") == b"5"
    query = run(ground, frame)
    assert found(ground) == [(1, 1), (2, 1), (3, 1), (4, 2)]
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 0


async def test_messages_may_come_while_it_runs(ground: Ground) -> None:
    ground.create()
    query = pressure.start(writer(ground, windows(stream(ground))))
    for day in DAYS:
        await ground.put(events(day), close=day == DAYS[-1])
    assert await asyncio.to_thread(query.awaitTermination, PATIENCE)
    assert found(ground) == [(day, 1) for day in DAYS]


async def test_several_queues_end_together(ground: Ground) -> None:
    """The row comes when all are closed and empty, and not before: it would make the others' rows late."""
    for name in ("a", "b"):
        ground.create(name)
    await ground.put(events(1, 2), "a", close=True)
    query = pressure.start(writer(ground, windows(stream(ground, "a,b"))))
    wait_until(lambda: query.lastProgress and query.lastProgress["numInputRows"] == 0)
    await ground.put(events(3, 4), "b", close=True)
    assert await asyncio.to_thread(query.awaitTermination, PATIENCE)
    assert found(ground) == [(day, 1) for day in DAYS]
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 4 + 1


async def test_two_streams_in_one_query(ground: Ground) -> None:
    """Spark's watermark is the lower one of both, so the first end drops no row of the other stream."""
    from pyspark.sql import functions as f

    for name in ("a", "b"):
        ground.create(name)
    await ground.put(events(1, 2), "a", close=True)
    await ground.put(events(1), "b")

    def both() -> Any:
        left, right = (
            stream(ground, name, group=f"of-{name}").withWatermark("t", "1 hour").select("t") for name in ("a", "b")
        )
        counted = left.union(right).groupBy(f.window("t", "1 hour")).agg(f.count("*").alias("rows"))
        return writer(ground, counted.select("window.start", "rows"))

    query = pressure.start(both())
    wait_until(lambda: query.lastProgress and query.lastProgress["numInputRows"] == 0)
    await ground.put(events(2, 3), "b", close=True)
    assert await asyncio.to_thread(query.awaitTermination, PATIENCE)
    assert found(ground) == [(1, 2), (2, 2), (3, 1)]
    ground.spark.conf.set("spark.sql.streaming.multipleWatermarkPolicy", "max")
    try:
        with pytest.raises(ValueError, match="multipleWatermarkPolicy=max the end of one stream would drop the rows"):
            pressure.start(both())
    finally:
        ground.spark.conf.unset("spark.sql.streaming.multipleWatermarkPolicy")


async def test_other_formats(ground: Ground) -> None:
    for name in ("events", "raw", "text"):
        ground.create(name)
        messages = [(EVENT % (day, day)).encode() for day in DAYS] if name == "events" else events(*DAYS)
        await ground.put(messages, name, close=True)
    envelopes = ground.stream("events", format="cloudevents", endTimeColumn="put_time").load()
    parsed = "from_json(CAST(body AS STRING), 't TIMESTAMP').t AS t"
    mark = '{"t": "2100-01-01T00:00:00Z", "who": "it\'s the end"}'
    raw = ground.stream("raw", endMessage=mark).load().selectExpr(parsed)
    text = ground.stream("text", endMessage=mark).schema("body STRING, queue STRING").load().selectExpr(parsed)
    for name, frame in {"events": windows(envelopes, "put_time"), "raw": windows(raw), "text": windows(text)}.items():
        place = Ground(ground.spark, ground.url, ground.plain, ground.folder / name)
        query = pressure.start(writer(place, frame))
        assert query.awaitTermination(PATIENCE)
        assert found(place) == [(day, 1) for day in DAYS], name


def united(frame: Any) -> Any:
    return windows(frame.select("t").union(frame.sparkSession.readStream.format("rate").load().select("timestamp")))


def by_time(frame: Any) -> Any:
    return frame.withWatermark("t", "0 seconds").groupBy("t").count()


REFUSED = {
    "update": (windows, "update", "in the output mode update the row that ends the stream would appear"),
    "complete": (windows, "complete", "in the output mode complete the row that ends the stream would appear"),
    "rows": (lambda frame: frame, "append", "needs a watermark to move"),
    "no watermark": (lambda frame: frame.groupBy("kind").count(), "complete", "in the output mode complete"),
    "no aggregation": (lambda frame: frame.withWatermark("t", "1 hour"), "append", "would appear in the output"),
    "union": (united, "append", "Call .withWatermark.* on the stream itself"),
    "filter": (lambda frame: windows(frame.where("kind = 'x'")), "append", "does not reach the aggregation"),
    "later filter": (
        lambda frame: windows(frame.withWatermark("t", "1 hour").where("kind = 'x'")),
        "append",
        "does not reach the aggregation",
    ),
    "other time": (
        lambda frame: windows(frame.selectExpr("CAST(kind AS TIMESTAMP) AS t")),
        "append",
        "does not reach the aggregation",
    ),
    "no delay": (by_time, "append", "because the watermark has no delay"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_query_that_would_show_the_row_is_refused(ground: Ground, name: str) -> None:
    """By `start` at once, and started by Spark alone it fails before it has read a message."""
    change, mode, why = REFUSED[name]
    ground.create()
    await ground.put(events(*DAYS), close=True)

    def sink() -> Any:
        place = str(ground.folder / "refused")
        made = change(stream(ground)).writeStream.format("noop").outputMode(mode)
        return made.option("checkpointLocation", place)

    with pytest.raises(ValueError, match=f"endTimeColumn: .*{why}"):
        pressure.start(sink())
    assert not ground.spark.streams.active
    query = sink().start()
    with pytest.raises(Exception, match=f"ValueError: endTimeColumn: .*{why}"):
        query.awaitTermination(PATIENCE)
    assert ground.waiting() == events(*DAYS)


async def test_a_filter_that_lets_the_row_pass(ground: Ground) -> None:
    from pyspark.sql import functions as f

    ground.create()
    await ground.put(events(*DAYS), close=True)
    upper = f.udf(lambda kind: None if kind is None else kind.upper())
    frame = stream(ground).withColumn("kind", upper("kind")).where("kind = 'X' OR kind IS NULL")
    assert pressure.start(writer(ground, windows(frame))).awaitTermination(PATIENCE)
    assert found(ground) == [(day, 1) for day in DAYS]


async def test_a_query_that_nobody_has_looked_at_is_refused(ground: Ground) -> None:
    """Of a session that has the source, and was not given to `register`."""
    from apressure.spark.datasource import PressureSource

    ground.create()
    await ground.put(events(*DAYS), close=True)
    session = ground.spark.newSession()
    session.dataSource.register(PressureSource)
    frame = windows(stream(Ground(session, ground.url, ground.plain, ground.folder), group="unseen"))
    with pytest.raises(Exception, match="nothing has checked whether the row that ends the stream appears"):
        writer(ground, frame, now=True).start().awaitTermination(PATIENCE)
    assert pressure.start(writer(ground, frame)).awaitTermination(PATIENCE)
    assert found(ground) == [(day, 1) for day in DAYS]


@pytest.mark.parametrize(
    ("schema", "column", "why"),
    [
        ("t TIMESTAMP", "time", "endTimeColumn needs a column 'time' in the schema. Its columns are t"),
        ("t STRING", "t", "the column 't' must be TIMESTAMP, not STRING"),
        ("t TIMESTAMP, _sequence BIGINT NOT NULL", "t", "'_sequence' must be nullable: it is NULL in the row"),
    ],
)
def test_schemas_that_do_not_fit(ground: Ground, schema: str, column: str, why: str) -> None:
    ground.create()
    with pytest.raises(Exception, match=f"ValueError: .*{why}"):
        writer(ground, stream(ground, schema=schema, endTimeColumn=column), now=True).start().awaitTermination(PATIENCE)


@pytest.mark.parametrize("running", [True, False])
async def test_a_queue_that_is_created_again_after_its_end(ground: Ground, running: bool) -> None:
    """Spark would drop its rows as late. The error comes before a message is taken."""
    steps = ground.create()
    await ground.put(events(*DAYS), close=True)
    query = writer(ground, windows(stream(ground))).start()
    wait_until(lambda: query.lastProgress and query.lastProgress["eventTime"].get("watermark", "") > "2200")
    if not running:
        query.stop()
    async with AsyncQueue("jobs", url=ground.url) as queue:
        await queue.delete()
    steps.create(0)
    await ground.put(events(5))
    if not running:
        query = writer(ground, windows(stream(ground))).start()
    with pytest.raises(Exception, match="StreamEndedError: the queue 'jobs' has messages after a row has ended"):
        query.awaitTermination(PATIENCE)
    assert ground.waiting() == events(5)
    assert found(ground) == [(day, 1) for day in DAYS]


class Logs:
    """What Spark has logged of a query: its files are put back to what they were at a crash."""

    def __init__(self, ground: Ground) -> None:
        self._folders = {
            "offsets": ground.folder / "checkpoint" / "offsets",
            "commits": ground.folder / "checkpoint" / "commits",
            "files": ground.folder / "out" / "_spark_metadata",
        }
        self._copy = ground.folder / "copy"
        for name, folder in self._folders.items():
            shutil.copytree(folder, self._copy / name)

    def last(self) -> int:
        return max(int(path.name) for path in (self._copy / "offsets").iterdir() if path.name.isdigit())

    def crash(self, batch: int, *logged: str) -> None:
        """Restore all logs up to a batch, of which only these have an entry."""
        for name, folder in self._folders.items():
            shutil.rmtree(folder)
            shutil.copytree(self._copy / name, folder)
            for path in folder.iterdir():
                number = path.name.strip(".").removesuffix(".crc")
                if number.isdigit() and (int(number) > batch or (int(number) == batch and name not in logged)):
                    path.unlink()


MOMENTS = [(), ("offsets",), ("offsets", "files"), ("offsets", "files", "commits")]
"""What of a batch was logged when Spark died: nothing, that it begins, its files, that it is done."""


@pytest.mark.parametrize("mended", [True, False])
async def test_a_crash_at_each_point_around_the_end(
    ground: Ground, mended: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the last batch with data, the batch of the row, and the one that writes the last windows.

    Each time the query is simply started again. If its sink's log cannot be mended, the row comes once more.
    """
    if not mended:
        monkeypatch.setattr("apressure.spark.plans.Plan.files", lambda _: None)
    ground.create()
    await ground.put(events(*DAYS), close=True)

    def run(**options: Any) -> Any:
        return by_stop_at_end(ground, lambda **more: windows(stream(ground, maxRowsPerBatch=2, **options, **more)))

    query = run()
    expected = [(day, 1) for day in DAYS]
    assert found(ground) == expected
    logs, keys = Logs(ground), {key: ground.plain.dump(key) for key in ground.plain.scan_iter()}
    with_row = next(
        progress["batchId"] for progress in query.recentProgress if '"": 1' in progress["sources"][0]["endOffset"]
    )
    assert with_row < logs.last()
    for batch in range(with_row, logs.last() + 1):
        for logged in MOMENTS:
            logs.crash(batch, *logged)
            for key, value in keys.items():
                ground.plain.restore(key, 0, value, replace=True)
            again = run()
            assert found(ground) == expected, (batch, logged)
            rows = sum(progress["numInputRows"] for progress in again.recentProgress)
            repeated = batch == with_row and "commits" not in logged and not (logged[1:] and not mended)
            more = not mended and bool(logged) and "commits" not in logged
            assert rows == repeated + more, (batch, logged)
    assert ("was repaired" in caplog.text) is mended
    assert ("its files are not on this machine, so its last windows may be missing" in caplog.text) is not mended


def test_the_source_itself(ground: Ground, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark's calls, made here: a repeated batch has its row again, and what is not checked comes with each start."""
    from pyspark.sql.streaming.datasource import ReadMaxRows

    from apressure.spark.columns import RAW
    from apressure.spark.source.stream import QueueStream

    options = Options.of({"url": ground.url, "queue": "jobs", "group": "g", "endMessage": "the end"})
    ground.create().close()
    limit = ReadMaxRows(10)
    monkeypatch.setenv(ending.ANSWERS, str(tmp_path))
    with pytest.raises(ValueError, match="nothing has checked"):
        QueueStream(options, RAW).latestOffset({"jobs": 0}, limit)
    ending.answer(str(tmp_path), options, "it would be seen")
    with pytest.raises(ValueError, match="it would be seen"):
        QueueStream(options, RAW).partitions({"jobs": 0}, {"jobs": 0, "": 1})
    ending.answer(str(tmp_path), options)

    first = QueueStream(options, RAW)
    begin = first.initialOffset()
    end = first.latestOffset(begin, limit)
    assert (begin, end) == ({"jobs": 0}, {"jobs": 0, "": 1})
    for reader in (first, QueueStream(options, RAW)):
        (task,) = reader.partitions(begin, end)
        (batch,) = reader.read(task)
        assert batch.to_pylist() == [{"body": b"the end", "queue": None, "sequence": None}]
        reader.commit(end)
        assert reader.latestOffset(end, limit) == end

    ending.answer(str(tmp_path), options, again=True)
    for _ in range(2):
        again = QueueStream(options, RAW)
        assert again.latestOffset(end, limit) == {"jobs": 0, "": 2}
        assert again.latestOffset({"jobs": 0, "": 2}, limit) == {"jobs": 0, "": 2}
        monkeypatch.delenv(ending.ANSWERS, raising=False)  # nobody answers, as with Spark Connect


async def test_start_watches_only_what_ends(ground: Ground) -> None:
    """A pattern has no end, and a query that fails or is stopped is watched no longer."""
    import threading

    def watchers() -> int:
        return sum(thread.name == "apressure-spark-end" for thread in threading.enumerate())

    ground.create()
    await ground.put([b"x"], close=True)
    query = pressure.start(writer(ground, ground.stream(None, queues="jo*").load()))
    assert not watchers()
    query.processAllAvailable()
    assert query.isActive
    query.stop()
    with pytest.raises(ValueError, match="a pattern has no end"):
        pressure.await_end(query)
    with pytest.raises(ValueError, match="the query reads no queues"):
        pressure.await_end(ground.spark.readStream.format("rate").load().writeStream.format("noop").start())
    ground.create("open")
    query = pressure.start(writer(ground, ground.stream("open", group="h").load(), now=False))
    with contextlib.suppress(Exception):
        query.stop()
    wait_until(lambda: not watchers())
