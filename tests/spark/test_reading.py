"""The source on a real Spark: batches, streams, crashes, and how it gets on with other clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apressure import AsyncQueue
from apressure import spark as pressure
from apressure.connection.blocking import Blocking
from apressure.spark.options import Options
from tests.spark.conftest import PATIENCE, Ground


def texts(count: int, first: int = 0) -> list[bytes]:
    return [b"message %d" % number for number in range(first, first + count)]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# Batches.


async def test_a_batch_read_shows_what_waits_and_takes_nothing(ground: Ground) -> None:
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


async def test_a_snapshot_has_nothing_twice_and_nothing_new(ground: Ground) -> None:
    from apressure.spark.decoding import RAW
    from apressure.spark.reader import QueueReader

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
    assert len(numbers) < 30_000  # what was taken before we came to it


async def test_a_snapshot_of_a_busy_queue_takes_hardly_more_answers(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apressure.spark.decoding import RAW
    from apressure.spark.reader import QueueReader

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
    assert asked == len(batches) + 1  # the first answer was of no use


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


async def test_a_batch_that_was_taken_before_a_crash_is_adopted(ground: Ground) -> None:
    steps = ground.create()
    await ground.put(texts(100))
    # A process took and sealed a batch, and died before Spark had logged it; and another one half-way.
    epoch, _, _ = steps.adopt("g")
    assert steps.seal("g", epoch, 0, 30) == 1
    ground.plain.lmove(steps.keys.queue.messages, steps.keys.batch("g", 2), "RIGHT", "LEFT")
    ground.plain.incr(steps.keys.queue.messages_count("consumer"))
    query = ground.to_files(ground.stream(maxRowsPerBatch=50).load())
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [30, 50, 20]
    assert ground.bodies() == texts(100)


async def run_and_forget_the_last_commit(ground: Ground, start: Callable[[], Any], name: str) -> None:
    """Run a query to its end, and make it look as if it had died before it could note its last batch."""
    query = start()
    query.processAllAvailable()
    query.stop()
    commits = sorted((ground.folder / f"{name}-checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)


async def test_a_batch_that_was_not_noted_is_read_again(ground: Ground) -> None:
    ground.create()
    ground.create("mid")
    await ground.put(texts(100))
    frame = ground.stream(maxRowsPerBatch=30).load().select("body")
    await run_and_forget_the_last_commit(ground, lambda: ground.to_queue(frame, "mid", now=False), "mid")
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
    await run_and_forget_the_last_commit(ground, lambda: ground.to_queue(frame, "mid", now=False), "mid")
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
    # What the first had done and not yet said so is read again: one group is one query.
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


async def test_a_bounded_queue_holds_its_producer_back(ground: Ground, background: Any) -> None:
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


async def test_a_role_that_somebody_holds_does_not_end_the_query(ground: Ground) -> None:
    ground.create()
    await ground.put(texts(10))
    async with AsyncQueue("jobs", url=ground.url) as queue, queue.consumer() as consumer:
        async for _ in consumer:
            query = ground.to_files(ground.stream(roleTimeout=0.3).load(), now=False)
            await asyncio.sleep(4)
            assert query.isActive
            assert query.exception() is None
            with pytest.raises(Exception, match="consumer role of the queue 'jobs' is held by"):
                ground.to_files(ground.stream(group="other", roleTimeout=0.3).load(), "other")
            break
    query.processAllAvailable()
    assert ground.bodies() == texts(10, 0)[-len(ground.bodies()) :]
    assert len(ground.bodies()) >= 9


async def test_one_queue_that_somebody_holds_does_not_hold_up_the_others(ground: Ground) -> None:
    ground.create("held")
    ground.create("free")
    await ground.put(texts(3), "held")
    async with AsyncQueue("held", url=ground.url) as queue, queue.consumer(prefetch=1) as consumer:
        async for _ in consumer:
            query = ground.to_files(ground.stream(None, queues="held,free", roleTimeout=60).load(), now=False)
            await asyncio.sleep(3)  # it waits for the role by now
            await ground.put(texts(5, 100), "free")
            await asyncio.to_thread(until, lambda: ground.waiting("free") == [])
            assert query.isActive
            break
    query.processAllAvailable()
    assert ground.bodies()[:5] == texts(5, 100)


async def test_an_empty_stream_asks_the_server_seldom_and_writes_nothing(ground: Ground) -> None:
    ground.create()
    query = ground.to_files(ground.stream().load(), now=False)
    query.processAllAvailable()
    before = {key: ground.plain.dump(key) for key in ground.plain.scan_iter()}
    began = time.monotonic()
    ground.plain.config_resetstat()
    await asyncio.sleep(3)
    calls = {name: about["calls"] for name, about in ground.plain.info("commandstats").items()}
    seconds = time.monotonic() - began  # a busy machine lets us sleep longer
    asked = calls.get("cmdstat_evalsha", 0)
    assert 0 < asked <= seconds / 0.2 * 2 + 2  # a look before each wait of 0.2 s, and one after it
    assert {key: ground.plain.dump(key) for key in ground.plain.scan_iter()} == before
    query.stop()


async def test_what_does_not_decode_has_a_column(ground: Ground) -> None:
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


def test_what_users_get_wrong_is_said_in_one_sentence(ground: Ground) -> None:
    read = ground.spark.read.format("pressure").option("url", ground.url)
    with pytest.raises(Exception, match="unknown option 'quue': did you mean 'queue'"):
        read.option("quue", "jobs").load()
    read = ground.spark.read.format("pressure").option("url", ground.url)
    with pytest.raises(Exception, match="the queue 'jobs' does not exist"):
        read.option("queue", "jobs").load().count()
    with pytest.raises(Exception, match="format=json needs to know the columns"):
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
