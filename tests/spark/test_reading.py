"""The source on a real Spark: batches, streams, crashes, and other clients beside it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apressure import AsyncQueue
from apressure import spark as pressure
from apressure.connection.wire.blocking import Blocking
from apressure.spark.engine.steps import GroupTakenError
from apressure.spark.options import Options
from apressure.spark.source.presence import BEAT
from tests.spark.conftest import PATIENCE, Ground

HELD = 600.0
"""Seconds of a lease that is not renewed while a query starts and blocks this process."""


def texts(count: int, first: int = 0) -> list[bytes]:
    return [b"message %d" % number for number in range(first, first + count)]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# Batches.


async def test_a_batch_read_shows_waiting_messages_and_takes_none(ground: Ground) -> None:
    steps = ground.create()
    await ground.put(texts(25_000))
    frame = ground.spark.read.format("pressure").options(url=ground.url, queue="jobs", fetchSize=3000).load()
    assert frame.rdd.getNumPartitions() == 2
    rows = frame.orderBy("sequence").collect()
    assert [bytes(row.body) for row in rows] == texts(25_000)
    assert [row.sequence for row in rows] == list(range(25_000))
    assert {row.queue for row in rows} == {"jobs"}
    assert ground.waiting() == texts(25_000)
    assert steps.measure() == (0, 25_000, False)


async def test_a_batch_read_has_no_message_twice_and_no_new_one(ground: Ground) -> None:
    from apressure.spark.columns import RAW
    from apressure.spark.source.slices import QueueReader

    ground.create()
    await ground.put(texts(30_000))
    options = Options.of({"url": ground.url, "queue": "jobs", "fetchSize": "1000", "numPartitions": "3"})
    reader = QueueReader(options, RAW)
    pieces = reader.partitions()
    assert len(pieces) == 3
    found: list[tuple[int, bytes]] = []
    async with AsyncQueue("jobs", url=ground.url) as queue:
        for piece in pieces:
            for batch in reader.read(piece):
                found += [(row["sequence"], row["body"]) for row in batch.to_pylist()]
                # Meanwhile others take, put, and give back.
                await queue.get_many(700)
                await queue.put_many(texts(10, 90_000))
                await (await queue.receive()).nack()
    numbers = [number for number, _ in found]
    assert numbers == sorted(set(numbers))
    assert [body for _, body in found] == [b"message %d" % number for number in numbers]
    assert numbers[0] == 0
    assert max(numbers) == 29_999
    assert len(numbers) < 30_000  # some were taken before the read came to them


async def test_a_batch_read_of_a_busy_queue_needs_one_request_more(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apressure.spark.columns import RAW
    from apressure.spark.source.slices import QueueReader

    steps = ground.create()
    await ground.put(texts(30_000))
    options = Options.of({"url": ground.url, "queue": "jobs", "fetchSize": "1000", "numPartitions": "1"})
    reader = QueueReader(options, RAW)
    (piece,) = reader.partitions()
    asked = 0
    original = Blocking._repeatedly

    def busy(self: Blocking, send: Any) -> Any:
        """A consumer takes a message before each question, and then rests."""
        nonlocal asked
        asked += 1
        if asked <= 20:
            ground.plain.rpop(steps.keys.queue.messages)
            ground.plain.incr(steps.keys.queue.messages_count("consumer"))
        return original(self, send)

    monkeypatch.setattr(Blocking, "_repeatedly", busy)
    batches = [batch.to_pylist() for batch in reader.read(piece)]
    assert [(row["sequence"], row["body"]) for batch in batches for row in batch] == [
        (number, b"message %d" % number)
        for number in range(2, 30_000)  # two were taken before the first answer
    ]
    assert asked == len(batches) + 1  # the range of the first request had moved


def test_an_empty_queue_is_an_empty_frame(ground: Ground) -> None:
    ground.create()
    read = ground.spark.read.format("pressure")
    assert read.options(url=ground.url, queue="jobs").load().count() == 0
    read = ground.spark.read.format("pressure")
    assert read.options(url=ground.url, queues="nothing*").load().count() == 0


# Streams.


async def test_available_now_twice(ground: Ground) -> None:
    ground.create()
    await ground.put(texts(700))
    query = ground.to_files(ground.stream(maxRowsPerBatch=300).load())
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [
        300,
        300,
        100,
    ]
    assert ground.bodies() == texts(700)
    assert ground.plain.keys("*batch*") == []
    query = ground.to_files(ground.stream(maxRowsPerBatch=300).load())
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 0
    await ground.put(texts(50, 700))
    ground.to_files(ground.stream(maxRowsPerBatch=300).load())
    assert ground.bodies() == texts(750)
    assert ground.waiting() == []


async def test_a_batch_from_before_a_crash_is_reused(ground: Ground) -> None:
    steps = ground.create()
    await ground.put(texts(100))
    # A process sealed a batch and died before Spark had logged it. Another one died while it filled a batch.
    epoch, _, _ = steps.begin_epoch()
    assert steps.seal(epoch, 0, 30) == 1
    ground.plain.lmove(steps.keys.queue.messages, steps.keys.batch("g", 2), "RIGHT", "LEFT")
    ground.plain.incr(steps.keys.queue.messages_count("consumer"))
    query = ground.to_files(ground.stream(maxRowsPerBatch=50).load())
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [30, 50, 20]
    assert ground.bodies() == texts(100)


async def run_and_remove_the_last_commit(ground: Ground, start: Callable[[], Any], name: str) -> None:
    """Run a query to its end, and make it look as if it had died before it logged its last commit."""
    query = start()
    query.processAllAvailable()
    query.stop()
    commits = sorted((ground.folder / f"{name}-checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)


async def test_a_batch_without_a_logged_commit_is_read_again(ground: Ground) -> None:
    ground.create()
    ground.create("mid")
    await ground.put(texts(100))
    frame = ground.stream(maxRowsPerBatch=30).load().select("body")
    await run_and_remove_the_last_commit(ground, lambda: ground.to_queue(frame, "mid", now=False), "mid")
    assert ground.waiting("mid") == texts(100)
    await ground.put(texts(10, 100))
    ground.to_queue(frame, "mid")
    assert ground.waiting("mid") == texts(110)  # the replay was not written twice
    assert ground.plain.keys("*part*") == ground.plain.keys("*todo*") == []


async def test_a_batch_that_is_missing_is_an_error(ground: Ground) -> None:
    steps = ground.create()
    await ground.put(texts(100))
    ground.create("mid")
    frame = ground.stream(maxRowsPerBatch=100).load()
    await run_and_remove_the_last_commit(ground, lambda: ground.to_queue(frame, "mid", now=False), "mid")
    ground.plain.delete(steps.keys.batch("g", 1))
    with pytest.raises(Exception, match=r"BatchLostError: the messages of batch 1 of the group 'g'"):
        ground.to_queue(frame, "mid")


async def test_a_second_query_of_a_group_ends_the_first(ground: Ground) -> None:
    ground.create()
    first = ground.to_files(ground.stream().load(), "first", now=False)
    await ground.put(texts(10))
    first.processAllAvailable()
    state = ground.steps().keys.state("g")
    epoch = ground.plain.hget(state, "epoch")
    second = ground.to_files(ground.stream().load(), "second", now=False)
    until(lambda: ground.plain.hget(state, "epoch") != epoch)
    await ground.put(texts(10, 10))
    with pytest.raises(Exception, match="another query reads for the group 'g'"):
        first.awaitTermination(PATIENCE)
    second.processAllAvailable()
    assert second.isActive
    # What the first had written and not yet committed is read again: one group is one query.
    assert ground.bodies("first") == texts(10)
    assert ground.bodies("second")[-10:] == texts(10, 10)
    second.stop()
    with pytest.raises(Exception, match="this checkpoint has not read them"):
        await ground.put(texts(1))
        ground.to_files(ground.stream().load(), "second")
        ground.to_files(ground.stream().load(), "first")


@pytest.mark.parametrize("queues", ["orders:*", "orders:0, orders:1,orders:2"])
async def test_several_queues_are_one_stream(ground: Ground, queues: str) -> None:
    for number in range(3):
        ground.create(f"orders:{number}")
        await ground.put(texts(100 * number, 1000 * number), f"orders:{number}")
    frame = ground.stream(None, queues=queues, maxRowsPerBatch=150).load()
    query = ground.to_files(frame)
    batches = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert batches == [150, 150]
    assert ground.bodies() == texts(100, 1000) + texts(200, 2000)
    await ground.put(texts(5), "orders:0")
    ground.to_files(frame)
    assert ground.bodies() == texts(5) + texts(100, 1000) + texts(200, 2000)
    found = ground.spark.read.format("pressure").options(url=ground.url, queues=queues).load()
    assert found.count() == 0


async def test_a_closed_queue_ends(ground: Ground) -> None:
    ground.create()
    await ground.put(texts(10), close=True)
    query = ground.to_files(ground.stream().load(), now=False)
    pressure.await_end(query, url=ground.url, queue="jobs")
    assert not query.isActive
    assert ground.bodies() == texts(10)
    with pytest.raises(ValueError, match="name the queues"):
        pressure.await_end(query, url=ground.url, queues="jo*")
    ground.to_files(ground.stream().load())  # and AvailableNow does at once
    assert ground.bodies() == texts(10)


async def test_a_query_is_among_the_workers_of_its_queue(ground: Ground) -> None:
    ground.create()
    await ground.put(texts(10))
    query = ground.to_files(ground.stream().load(), now=False)
    async with AsyncQueue("jobs", url=ground.url) as queue:
        end = time.monotonic() + PATIENCE
        while not (workers := (await queue.statistics()).workers):
            assert time.monotonic() < end
            await asyncio.sleep(0.05)
        (worker,) = workers
        assert (worker.kind, worker.concurrency, worker.draining) == ("spark", 0, False)
        await asyncio.to_thread(query.processAllAvailable)
        assert ground.bodies() == texts(10)
        await asyncio.to_thread(query.stop)


async def test_the_progress_shows_the_backlog(ground: Ground) -> None:
    for name in ("jobs", "more"):
        ground.create(name)
    await ground.put(texts(10))
    await ground.put(texts(5), "more")
    ground.plain.incr(ground.steps("more").keys.queue.messages_count("producer"))  # its bytes are unknown
    query = ground.to_files(ground.stream(None, queues="jobs,more", maxRowsPerBatch=6).load())
    reports = [json.loads(progress["sources"][0]["latestOffset"]) for progress in query.recentProgress]
    assert reports[:2] == [
        {"jobs": {"messages": 7, "bytes": 7 * len(texts(1)[0])}, "more": {"messages": 2}},
        {"jobs": {"messages": 3, "bytes": 3 * len(texts(1)[0])}, "more": {"messages": 0}},
    ]


async def test_messages_that_cannot_be_decoded_become_dead_letters(ground: Ground) -> None:
    """Those of several queues are tried as often as those of one, also if one task reads all of them."""
    ground.create()
    ground.create("more")
    await ground.put([b"oops"], "more", close=True)
    bad = [b"nonsense", b"", b'{"a":"x"}']
    await ground.put([b'{"a":1}', *bad[:2], b'{"a":2}', b'{"a":3}', bad[2]], close=True)

    def run() -> None:
        ground.to_files(
            ground.stream(None, queues="jobs,more", format="json", maxAttempts=2).schema("a INT, _sequence LONG").load()
        )

    with pytest.raises(Exception, match="not a JSON object that fits the schema"):
        run()
    run()
    rows = ground.spark.read.parquet(str(ground.folder / "out")).collect()
    assert {(row.a, row._sequence) for row in rows} == {(1, 0), (2, 3), (3, 4)}
    async with AsyncQueue("jobs", url=ground.url, max_attempts=2) as queue:
        letters = await queue.dead_letters()
    async with AsyncQueue("more", url=ground.url, max_attempts=2) as queue:
        assert [letter.raw for letter in await queue.dead_letters()] == [b"oops"]
    assert [(letter.raw, letter.attempts) for letter in letters] == [(body, 2) for body in bad]


async def test_a_stream_ends_with_its_queues(ground: Ground) -> None:
    """Two queues, with all batches in one query, and the query waits while they are empty."""
    for name in ("jobs", "more"):
        ground.create(name)
    await ground.put(texts(10))
    await ground.put([], "more", close=True)

    def stream() -> Any:
        return ground.stream(None, queues="jobs,more", stopAtEnd=True, pollWait=0.05).load()

    query = ground.to_files(stream(), now=False, trigger={"availableNow": True})
    until(lambda: query.lastProgress and query.lastProgress["numInputRows"] == 10)
    assert not query.awaitTermination(1)
    query.stop()  # while it waits
    query = ground.to_files(stream(), now=False, trigger={"availableNow": True})
    await ground.put(texts(10, 10), close=True)
    assert query.awaitTermination(PATIENCE)
    assert ground.bodies() == texts(20)
    with pytest.raises(Exception, match=r"stopAtEnd needs .trigger\(availableNow=True\)"):
        ground.to_files(stream(), now=False).processAllAvailable()


@pytest.mark.parametrize("queues", ["jobs", "jobs,more"])
async def test_the_last_windows_are_finished_after_a_crash(ground: Ground, queues: str) -> None:
    """Spark died between its last batch with data and the batch without data that finishes the windows."""
    from pyspark.sql import functions as f

    for name in queues.split(","):
        ground.create(name)
        await ground.put([b'{"t": "2013-01-0%dT05:00:00Z"}' % day for day in (1, 2, 3, 4)], name, close=True)

    def run(now: bool) -> Any:
        stream = ground.stream(None, queues=queues, format="json", maxRowsPerBatch=2).schema("t TIMESTAMP").load()
        counts = stream.withWatermark("t", "1 hour").groupBy(f.window("t", "1 hour")).count()
        return ground.to_files(counts.select("window.start", "count"), now=now)

    def days() -> list[int]:
        return sorted(row.start.day for row in ground.spark.read.parquet(str(ground.folder / "out")).collect())

    ground.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", False)
    try:
        run(now=True)
    finally:
        ground.spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")
    assert 3 not in days()
    first = run(now=False)
    pressure.await_end(first, url=ground.url, queues=queues)
    assert days() == [1, 2, 3]
    assert first.lastProgress["numInputRows"] == 0
    # Each further start makes one empty batch, and no more.
    again = run(now=True)
    assert again.lastProgress["batchId"] <= first.lastProgress["batchId"] + 1
    assert days() == [1, 2, 3]


async def test_the_last_windows_are_finished_if_the_queue_is_closed_after_a_restart(ground: Ground) -> None:
    """The queue is closed long after the restart; await_end waits for the batch that follows."""
    from pyspark.sql import functions as f

    ground.create()
    await ground.put([b'{"t": "2013-01-01T05:00:00Z"}', b'{"t": "2013-01-02T05:00:00Z"}'])

    def run(now: bool) -> Any:
        stream = ground.stream(format="json").schema("t TIMESTAMP").load()
        counts = stream.withWatermark("t", "1 hour").groupBy(f.window("t", "1 hour")).count()
        return ground.to_files(counts.select("window.start", "count"), now=now)

    ground.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", False)
    try:
        run(now=True)
    finally:
        ground.spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")
    query = run(now=False)
    query.processAllAvailable()
    assert query.lastProgress is None or query.lastProgress["numInputRows"] == 0
    await ground.put([], close=True)
    pressure.await_end(query, url=ground.url, queue="jobs")
    assert [row.start.day for row in ground.spark.read.parquet(str(ground.folder / "out")).collect()] == [1]


@pytest.mark.parametrize("entry", ["1", "1.compact"])
async def test_the_last_windows_are_finished_if_spark_died_after_it_had_logged_the_files(
    ground: Ground, entry: str
) -> None:
    """Spark skips a batch that is in its file sink's log, and forgets how far the batch had moved the watermark.

    The query is simply started again: its checkpoint is mended then.
    """
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import functions as f

    ground.create()
    await ground.put([b'{"t": "2013-01-0%dT05:00:00Z"}' % day for day in (1, 2, 3, 4)], close=True)
    files, checkpoint = ground.folder / "out", ground.folder / "out-checkpoint"
    commit = checkpoint / "commits" / "1"

    @f.udf("boolean")
    def prevents_commit(time: Any) -> bool:
        if time.day == 4:
            commit.mkdir(exist_ok=True)  # Spark cannot write the file of this name
        return True

    def run(prevented: bool, now: bool) -> Any:
        stream = ground.stream(format="json", maxRowsPerBatch=2).schema("t TIMESTAMP").load()
        stream = stream.where(prevents_commit("t")) if prevented else stream
        counts = stream.withWatermark("t", "1 hour").groupBy(f.window("t", "1 hour")).count()
        return ground.to_files(counts.select("window.start", "count"), now=now)

    def days() -> list[int]:
        return sorted(row.start.day for row in ground.spark.read.parquet(str(files)).collect())

    ground.spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", 2 if "compact" in entry else 10)
    try:
        with pytest.raises(StreamingQueryException):
            run(prevented=True, now=True)
        commit.rmdir()
        assert (files / "_spark_metadata" / entry).exists()
        pressure.await_end(run(prevented=False, now=False), url=ground.url, queue="jobs")
    finally:
        ground.spark.conf.unset("spark.sql.streaming.fileSink.log.compactInterval")
    assert days() == [1, 2, 3]
    assert not pressure.mend_checkpoint(checkpoint, files)


@pytest.mark.parametrize("now", [True, False])
async def test_an_old_checkpoint_ends_no_other_query(ground: Ground, now: bool) -> None:
    """Spark's calls, made here: a query reads on, and then one begins with an old copy of its checkpoint."""
    from pyspark.sql.streaming.datasource import ReadMaxRows

    from apressure.spark.columns import RAW
    from apressure.spark.source.stream import QueueStream

    options = Options.of({"url": ground.url, "queues": "a,b", "group": "g"})
    for name in ("a", "b"):
        ground.create(name)
    healthy, limit = QueueStream(options, RAW), ReadMaxRows(10)
    log = [healthy.initialOffset()]
    for names in (("a", "b"), ("b",), ("b",)):
        for name in names:
            await ground.put(texts(1), name)
        log.append(healthy.latestOffset(log[-1], limit))
        healthy.commit(log[-2])
    assert log[1:] == [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 3}]
    stale = QueueStream(options, RAW)
    if now:
        stale.prepareForTriggerAvailableNow()
    with pytest.raises(GroupTakenError, match="of the queue 'b' are committed, and this checkpoint has not read them"):
        stale.latestOffset(log[1], limit)
    with pytest.raises(GroupTakenError, match="this checkpoint has not read them"):
        QueueStream(options, RAW).partitions(log[0], log[1])
    await ground.put(texts(1), "a")
    assert healthy.latestOffset(log[-1], limit) == {"a": 2, "b": 3}
    # One that is where the other is goes on in its place.
    assert QueueStream(options, RAW).latestOffset(log[-1], limit) == {"a": 2, "b": 3}
    with pytest.raises(GroupTakenError, match="another query reads for the group 'g'"):
        healthy.commit({"a": 2, "b": 3})


@pytest.mark.parametrize("left", ["offsets/.0.bc8d.tmp", "state/0/0/.1.delta.tmp"])
async def test_a_checkpoint_without_a_logged_batch_is_repaired_at_the_start(ground: Ground, left: str) -> None:
    """Java died before it had logged the first batch. Spark alone refuses such a checkpoint."""
    from pyspark.sql import functions as f

    ground.create()
    await ground.put(texts(3), close=True)
    place = ground.folder / "checkpoint"

    def run(frame: Any) -> int:
        counts = frame.groupBy("name").agg(f.count("*").alias("n"))
        writer = counts.writeStream.format("memory").outputMode("complete").queryName("repaired")
        query = writer.option("checkpointLocation", str(place)).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
        return int(ground.spark.table("repaired").collect()[0].n)

    (place / left).parent.mkdir(parents=True)
    (place / left).write_bytes(b"v1")
    (place / "state" / "0").mkdir(parents=True, exist_ok=True)
    with pytest.raises(Exception, match="STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"):  # it reads no queues
        run(ground.spark.readStream.format("rate").load().selectExpr("'rate' AS name"))
    assert run(ground.stream().load().selectExpr("queue AS name")) == 3
    assert not pressure.mend_checkpoint(place)  # a batch was logged
    assert (place / "offsets" / "0").exists()


async def test_a_bounded_queue_makes_its_producer_wait(ground: Ground, background: Any) -> None:
    steps = ground.create(bound=200)
    key = steps.keys.queue.messages
    background(lambda: asyncio.run(ground.put(texts(3000), close=True)))
    lengths = []

    def slow(frame: Any, _: int) -> None:
        lengths.append(ground.plain.llen(key))
        frame.write.mode("append").parquet(str(ground.folder / "out"))
        time.sleep(0.1)

    stream = ground.stream(maxRowsPerBatch=500).load()
    query = stream.writeStream.foreachBatch(slow).option("checkpointLocation", str(ground.folder / "c")).start()
    pressure.await_end(query, url=ground.url, queue="jobs")
    assert ground.bodies() == texts(3000)
    assert max(lengths) <= 200
    assert [int(value) for value in ground.plain.mget(steps.keys.queue.statistics)][::2] == [3000, 3000]


async def test_a_busy_role_does_not_end_the_query(ground: Ground) -> None:
    ground.create()
    await ground.put(texts(10))
    async with AsyncQueue("jobs", url=ground.url) as queue, queue.consumer(lease=HELD) as consumer:
        async for _ in consumer:
            query = ground.to_files(ground.stream(roleTimeout=0.3).load(), now=False)
            query.processAllAvailable()  # it has asked, and the role was busy
            assert query.isActive
            assert query.exception() is None
            with pytest.raises(Exception, match="consumer role of the queue 'jobs' is held by"):
                ground.to_files(ground.stream(group="other", roleTimeout=0.3).load(), "other")
            break
    query.processAllAvailable()
    assert ground.bodies() == texts(10, 0)[-len(ground.bodies()) :]
    assert len(ground.bodies()) >= 9


async def test_a_queue_with_a_busy_role_does_not_delay_the_others(ground: Ground) -> None:
    ground.create("held")
    ground.create("free")
    await ground.put(texts(3), "held")
    async with AsyncQueue("held", url=ground.url) as queue, queue.consumer(prefetch=1, lease=HELD) as consumer:
        async for _ in consumer:
            query = ground.to_files(ground.stream(None, queues="held,free", roleTimeout=60).load(), now=False)
            await asyncio.to_thread(until, lambda: ground.plain.exists(ground.steps("held").keys.state("g")))
            await ground.put(texts(5, 100), "free")
            await asyncio.to_thread(until, lambda: ground.waiting("free") == [])
            assert query.isActive
            break
    query.processAllAvailable()
    assert ground.bodies()[:5] == texts(5, 100)


@pytest.mark.parametrize("count", [1, 60])
async def test_a_stream_of_empty_queues_sends_few_commands_and_writes_nothing(ground: Ground, count: int) -> None:
    """Under 100 commands a second, those inside scripts included. Many small queues are read by one task.

    From time to time the query tells each queue that it reads, in about seven commands.
    """
    for number in range(count):
        ground.create(f"jobs:{number}")
        await ground.put(texts(3, 10 * number), f"jobs:{number}")
    query = ground.to_files(ground.stream(None, queues="jobs:*").load(), now=False)
    query.processAllAvailable()
    assert len(list((ground.folder / "out").glob("*.parquet"))) == 1
    assert sorted(ground.bodies()) == sorted(text for number in range(count) for text in texts(3, 10 * number))
    before = {key: ground.plain.dump(key) for key in ground.plain.scan_iter()}
    began = time.monotonic()
    ground.plain.config_resetstat()
    calls: dict[str, int] = {}
    # A script finds what dead clients left, and other queries. A busy machine lets us sleep longer.
    while (seconds := time.monotonic() - began) < 3 or not calls.get("cmdstat_evalsha"):
        await asyncio.sleep(0.5)
        calls = {name: about["calls"] for name, about in ground.plain.info("commandstats").items()}
        assert seconds < PATIENCE
    assert sum(calls.values()) <= 100 * (seconds + 2) + 10 * count * (1 + seconds // BEAT)
    assert {key: ground.plain.dump(key) for key in ground.plain.scan_iter()} == before
    query.stop()


async def test_messages_that_do_not_decode_have_a_column(ground: Ground) -> None:
    ground.create()
    await ground.put([b'{"n": 1, "t": "2013-01-01T05:00:00Z"}', b"oops", b'{"n": 2}'])
    schema = "n INT, t TIMESTAMP, _corrupt_record STRING, _queue STRING, _sequence BIGINT"
    ground.to_files(ground.stream(format="json").schema(schema).load())
    rows = ground.spark.read.parquet(str(ground.folder / "out")).orderBy("_sequence").collect()
    assert [(row.n, row._corrupt_record, row._sequence) for row in rows] == [
        (1, None, 0),
        (None, "oops", 1),
        (2, None, 2),
    ]
    assert rows[0].t.isoformat() == "2013-01-01T05:00:00"
    await ground.put([b"oops"])
    with pytest.raises(Exception, match="add a column _corrupt_record BINARY"):
        ground.to_files(ground.stream(format="json", group="h").schema("n INT").load(), "other")


def test_mistakes_of_users_are_clear_errors(ground: Ground) -> None:
    read = ground.spark.read.format("pressure").option("url", ground.url)
    with pytest.raises(Exception, match="unknown option 'quue': did you mean 'queue'"):
        read.option("quue", "jobs").load()
    read = ground.spark.read.format("pressure").option("url", ground.url)
    with pytest.raises(Exception, match="the queue 'jobs' does not exist"):
        read.option("queue", "jobs").load().count()
    with pytest.raises(Exception, match="format=json needs a schema"):
        read.options(queue="jobs", format="json").load()
    stream = ground.spark.readStream.format("pressure").options(url=ground.url, queue="jobs").load()
    with pytest.raises(Exception, match="a stream needs a group"):
        ground.to_files(stream)
    with pytest.raises(Exception, match="QueueDoesNotExistError: the queue 'jobs' does not exist"):
        ground.to_files(ground.stream().load())
    ground.to_files(ground.stream(create=True, bound=7).load(), "made")
    assert ground.plain.get(ground.steps().keys.queue.bound) == b"7"


def test_no_secret_is_shown(ground: Ground, make_server: Any, capfd: pytest.CaptureFixture[str]) -> None:
    secret = "hunter2"
    server = make_server(config={"requirepass": secret})
    url = server.url.replace("//", f"//:{secret}@")
    options = {"url": url, "password": secret, "queue": "jobs"}
    ones = ground.spark.range(10).selectExpr("cast(id as string) body")
    ones.write.format("pressure").mode("append").options(**options, create="true").save()
    frame = ground.spark.read.format("pressure").options(**options).load()
    assert frame.count() == 10
    frame.explain(True)
    stream = ground.spark.readStream.format("pressure").options(**options, group="g").load()
    query = ground.to_files(stream)
    shown = [str(query.lastProgress), str(frame._jdf.queryExecution()), str(query._jsq.explainInternal(True))]
    for wrong in ({"queue": "nowhere"}, {"fetch": "1"}, {"url": f"redis://:{secret}@[::1", "queue": "jobs"}):
        with pytest.raises(Exception) as raised:
            ground.spark.read.format("pressure").options(**{**options, **wrong}).load().count()
        shown.append(str(raised.value))
    offsets = [
        path.read_text()
        for path in Path(ground.folder).rglob("*-checkpoint/**/*")
        if path.is_file() and path.suffix != ".crc"
    ]
    shown += [*offsets, *capfd.readouterr()]
    assert len(offsets) > 2
    assert not any(secret in text for text in shown)
