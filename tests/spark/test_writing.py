"""The sink on a real Spark: batches and streams into queues, once each, within the bound."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from apressure import AsyncQueue
from apressure.embedded import EmbeddedServer
from apressure.spark.options import Options
from tests.spark.conftest import PATIENCE, Ground


def frame(ground: Ground, count: int, partitions: int = 3) -> Any:
    return ground.spark.range(0, count, 1, partitions).selectExpr("cast(concat('message ', id) as binary) body")


def texts(count: int) -> list[bytes]:
    return [b"message %d" % number for number in range(count)]


def save(frame: Any, ground: Ground, **options: Any) -> None:
    given = {"url": ground.url, "queue": "jobs", **options}
    frame.write.format("pressure").mode("append").options(**given).save()


def consume(url: str, name: str, found: list[bytes]) -> None:
    async def run() -> None:
        async with AsyncQueue(name, url=url) as queue:
            async for message in queue:
                found.append(message)

    asyncio.run(run())


def test_a_frame_becomes_messages_in_order(ground: Ground) -> None:
    save(frame(ground, 12_345), ground, create=True, closeOnEnd=True, fetchSize=1000)
    assert ground.waiting() == texts(12_345)
    keys = ground.steps().keys.queue
    size = sum(map(len, texts(12_345)))
    assert [int(value or 0) for value in ground.plain.mget(keys.statistics)] == [12_345, size, 0, 0]
    assert ground.plain.exists(keys.closed) == 1
    assert ground.plain.keys("*spark*") == []
    with pytest.raises(Exception, match="the queue 'jobs' is closed"):
        save(frame(ground, 3), ground)
    assert ground.plain.keys("*part*") == []


def test_more_than_the_bound_waits_for_room(ground: Ground, background: Callable[..., threading.Thread]) -> None:
    ground.create(bound=100)
    found: list[bytes] = []
    lengths: list[int] = []
    consumer = background(consume, ground.url, "jobs", found)

    def watch() -> None:
        while consumer.is_alive():
            lengths.append(ground.plain.llen(ground.steps().keys.queue.messages))
            time.sleep(0.01)

    background(watch)
    save(frame(ground, 2500), ground, closeOnEnd=True)
    consumer.join(PATIENCE)
    assert found == texts(2500)
    assert max(lengths) <= 100


async def test_a_stream_batch_larger_than_the_bound(ground: Ground, background: Any) -> None:
    ground.create()
    ground.create("narrow", bound=100)
    await ground.put(texts(1500))
    found: list[bytes] = []
    consumer = background(consume, ground.url, "narrow", found)
    ground.to_queue(ground.stream(maxRowsPerBatch=1000).load(), "narrow")
    from apressure.spark import close_queue

    close_queue("narrow", url=ground.url)
    consumer.join(PATIENCE)
    assert found == texts(1500)
    assert list(ground.plain.hgetall(ground.steps("narrow").keys.sinks).values()) == [b"1"]


def test_json_rows(ground: Ground) -> None:
    rows = [(1, "é", 1.5, dt.datetime(2013, 1, 1, 5, 0), None, [1, 2])]  # noqa: DTZ001
    made = ground.spark.createDataFrame(rows, "a INT, b STRING, c DOUBLE, d TIMESTAMP_NTZ, e STRING, f ARRAY<INT>")
    save(made, ground, create=True, format="json")
    (message,) = ground.waiting()
    assert json.loads(message) == {"a": 1, "b": "é", "c": 1.5, "d": "2013-01-01T05:00:00", "e": None, "f": [1, 2]}


def test_numbers_that_json_does_not_have_become_text(ground: Ground) -> None:
    made = ground.spark.sql(
        "SELECT cast(12345678901234567890.12 AS DECIMAL(30,2)) AS d, double('NaN') AS n, "
        "named_struct('x', array(double('-inf'))) AS s"
    )
    save(made, ground, create=True, format="json")
    (message,) = ground.waiting()
    assert json.loads(message) == {"d": "12345678901234567890.12", "n": "NaN", "s": {"x": ["-Infinity"]}}
    found = ground.spark.read.format("pressure").options(url=ground.url, queue="jobs", format="json")
    (row,) = found.schema("d DECIMAL(30,2)").load().collect()
    assert str(row.d) == "12345678901234567890.12"
    with pytest.raises(Exception, match="maps cannot be written"):
        save(ground.spark.sql("SELECT map('a', 1) AS m"), ground, format="json")


def test_a_text_column_and_an_empty_frame(ground: Ground) -> None:
    save(ground.spark.sql("SELECT 'é' AS body"), ground, create=True)
    save(frame(ground, 0), ground)
    assert ground.waiting() == ["é".encode()]


def test_mistakes_of_users_are_clear_errors(ground: Ground) -> None:
    with pytest.raises(Exception, match="the queue 'jobs' does not exist"):
        save(frame(ground, 3), ground)
    ground.create()
    with pytest.raises(Exception, match=r"needs a column `body`.* it has id"):
        save(ground.spark.range(3), ground)
    with pytest.raises(Exception, match="NULL in a row"):
        save(ground.spark.sql("SELECT cast(NULL AS BINARY) AS body"), ground)
    with pytest.raises(Exception, match="a queue cannot be overwritten"):
        frame(ground, 1).write.format("pressure").mode("overwrite").options(url=ground.url, queue="jobs").save()
    with pytest.raises(Exception, match="a sink writes to one queue"):
        save(frame(ground, 1), ground, queue=None, queues="a,b")
    with pytest.raises(Exception, match=r"closeOnEnd is for df.write"):
        ground.to_queue(ground.stream().load(), "jobs", closeOnEnd=True)
    assert ground.waiting() == []


def routed(ground: Ground, count: int) -> Any:
    """Rows for the queues a, b and, without a name, jobs."""
    where = "CASE id % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'b' END AS to"
    return ground.spark.range(0, count, 1, 2).selectExpr("concat('message ', id) AS body", where)


def test_a_column_names_the_queue_of_each_row(ground: Ground) -> None:
    with pytest.raises(Exception, match=r"the queue '(a|jobs)' does not exist"):
        save(routed(ground, 5), ground, queueColumn="to")
    save(routed(ground, 10_000), ground, queueColumn="to", create=True, fetchSize=1000)
    for number, name in enumerate(("a", "b", "jobs")):
        assert ground.waiting(name) == texts(10_000)[number::3]
    save(routed(ground, 3), ground, queueColumn="to", format="json")
    assert [json.loads(ground.waiting(name)[-1]) for name in ("b", "jobs")] == [
        {"body": "message 1"},
        {"body": "message 2"},
    ]
    with pytest.raises(Exception, match="needs a column 'target' that is STRING"):
        save(routed(ground, 3), ground, queueColumn="target")
    with pytest.raises(Exception, match="the column 'to' is empty in a row"):
        save(ground.spark.sql("SELECT 'x' AS body, '' AS to"), ground, queueColumn="to")
    with pytest.raises(Exception, match="closeOnEnd closes one queue"):
        save(routed(ground, 3), ground, queueColumn="to", closeOnEnd=True)


async def test_a_stream_writes_to_several_queues(ground: Ground) -> None:
    for name in ("in", "a", "b", "jobs"):
        ground.create(name)
    await ground.put(texts(900), "in")
    where = "CASE sequence % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'b' END AS to"
    rows = ground.stream("in", maxRowsPerBatch=400).load().selectExpr("body", where)
    ground.to_queue(rows, "jobs", queueColumn="to")
    assert [ground.waiting(name) for name in ("a", "b", "jobs")] == [texts(900)[number::3] for number in range(3)]
    assert ground.plain.keys("*part*") == ground.plain.keys("*todo*") == []


@pytest.mark.parametrize("dies", ["plan", "a", "b"])
def test_the_first_commit_decides_for_all_queues(ground: Ground, monkeypatch: pytest.MonkeyPatch, dies: str) -> None:
    """A commit dies after its plan, or before it puts into a queue. The repeated batch has other queues in its rows."""
    import pyarrow as pa

    from apressure.spark.engine.sink_steps import SinkSteps
    from apressure.spark.sink import StreamSink

    for name in ("jobs", "a", "b", "c"):
        ground.create(name)
    options = Options.of({"url": ground.url, "queue": "jobs", "queueColumn": "to"})
    schema = ground.spark.createDataFrame([], "body STRING, to STRING").schema
    sink = StreamSink(options, schema, overwrite=False)

    def staged(*names: str | None) -> Any:
        batch = pa.record_batch({"body": ["1", "2", "3"], "to": pa.array(names, pa.string())})
        return sink.stage("w", iter([batch]))

    class DiedError(Exception):
        pass

    def dying(method: Any, name: str) -> Any:
        def step(self: Any, *arguments: Any) -> Any:
            if self.name == name:
                raise DiedError
            return method(self, *arguments)

        return step

    with monkeypatch.context() as patched:
        if dies == "plan":
            patched.setattr(SinkSteps, "choose_parts", dying(SinkSteps.choose_parts, "jobs"))
        else:
            patched.setattr(SinkSteps, "put_part", dying(SinkSteps.put_part, dies))
        with pytest.raises(DiedError):
            sink.commit([staged("a", "b", None)], 7)
    for names in (("c", "a", "b"), (None, None, None)):
        sink.commit([staged(*names)], 7)
        assert [ground.waiting(name) for name in ("a", "b", "jobs", "c")] == [[b"1"], [b"2"], [b"3"], []]
    sink.commit([staged("a", "b", None), None], 8)
    sink.commit([], 9)
    assert [ground.waiting(name) for name in ("a", "b", "jobs", "c")] == [[b"1"] * 2, [b"2"] * 2, [b"3"] * 2, []]
    assert ground.plain.keys("*part*") == ground.plain.keys("*todo*") == []


def test_rows_of_a_failed_job_expire(ground: Ground) -> None:
    ground.create()
    broken = ground.spark.range(0, 2000, 1, 2).selectExpr(
        "if(id = 1999, raise_error('no'), cast(id AS STRING)) AS body"
    )
    with pytest.raises(Exception, match="no"):
        save(broken, ground)
    assert ground.waiting() == []
    assert all(ground.plain.ttl(key) > 0 for key in ground.plain.keys("*part*"))


def test_messages_of_all_sizes_are_packed_as_resp() -> None:
    import hiredis
    import pyarrow as pa

    from apressure.spark import sink

    messages = [b"", b"x", b"\r\n$3\r\n", b"y" * 70_000, b"\xff\x00", *texts(30)]
    column = pa.array([b"skipped", *messages, b"skipped"])[1:-1]
    for one in (column, column.cast(pa.large_binary())):
        assert hiredis.pack_command(tuple(messages)).partition(b"\n")[2] == bytes(sink.packed(one))
    pieces = [
        (piece.to_pylist(), size) for piece, size in sink._chunks(pa.array([b"a" * 3_000_000] * 3 + messages), 10)
    ]
    assert [len(piece) for piece, _ in pieces] == [1, 1, 10, 10, 10, 6]
    assert all(size == sum(map(len, piece)) for piece, size in pieces)
    assert [message for piece, _ in pieces for message in piece][3:] == messages
    assert list(sink._chunks(pa.array([], pa.binary()), 10)) == []


def test_a_lost_reply_does_not_double_rows(make_server: Callable[..., EmbeddedServer]) -> None:
    import pyarrow as pa

    from apressure.connection.wire.blocking import Blocking
    from apressure.spark.engine.sink_steps import SinkSteps
    from apressure.spark.sink import _append

    server = make_server()
    blocking = Blocking(Options.of({"url": server.url, "queue": "jobs", "responseTimeout": "0.5"}).settings())
    steps = SinkSteps(blocking, "jobs")
    key = steps.keys.part("w", "t")
    _append(steps, key, pa.array(texts(5)), 0, 60_000)
    os.kill(server.pid, signal.SIGSTOP)
    threading.Timer(1.0, os.kill, (server.pid, signal.SIGCONT)).start()
    _append(steps, key, pa.array(texts(5)), 5, 60_000)
    assert steps.server.ask(b"LLEN", key) == 10
    blocking.close()
