"""What rows have beside the message: envelopes, text, attempts; SQL; and how many tasks read."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from apressure import AsyncQueue
from apressure import spark as pressure
from tests.spark.conftest import Ground


async def test_events_go_through_a_stream_unchanged(ground: Ground) -> None:
    rows = ground.spark.sql(
        """
        SELECT '{"a": 1}' AS body, 'k' AS key, timestamp '2013-01-01 12:00:00' AS put_time, 'sold' AS type,
               3L AS sequence, map('datacontenttype', 'application/json', 'traceid', 'x') AS headers
        UNION ALL SELECT 'b', NULL, NULL, NULL, NULL, NULL
        """
    ).coalesce(1)
    rows.write.format("pressure").mode("append").options(
        url=ground.url, queue="jobs", format="cloudevents", create=True
    ).save()
    ground.to_queue(ground.stream(format="cloudevents").load(), "out", format="cloudevents", create=True)
    first, second = map(json.loads, ground.waiting("out"))
    assert (first["data"], first["type"], first["traceid"]) == ({"a": 1}, "sold", "x")
    assert (first["partitionkey"], first["time"]) == ("k", "2013-01-01T12:00:00Z")
    assert (second["data"], second["datacontenttype"], second["type"]) == ("b", "text/plain", "message")
    await ground.put([b"oops"], "out")
    found = ground.spark.read.format("pressure").options(url=ground.url, queue="out", format="cloudevents")
    ddl = "body STRING, key STRING, put_time TIMESTAMP, headers MAP<STRING, STRING>, id STRING, _corrupt_record STRING"
    full, least, corrupt = found.schema(ddl).load().collect()
    headers = {"datacontenttype": "application/json", "traceid": "x"}
    noon = dt.datetime.fromtimestamp(1357041600)  # noqa: DTZ006 (as Spark shows it)
    assert tuple(full) == ('{"a":1}', "k", noon, headers, first["id"], None)
    assert tuple(least)[:2] == ("b", None)
    assert tuple(corrupt) == (None, None, None, None, None, "oops")


async def test_bodies_are_text_and_rows_know_their_attempts(ground: Ground) -> None:
    ground.create()
    await ground.put(["é".encode(), b"\xff", b"a"], close=True)

    def run() -> None:
        stream = ground.stream(maxAttempts=2).schema("body STRING, attempts INT, sequence BIGINT")
        ground.to_files(stream.load())

    with pytest.raises(Exception, match="is not text in UTF-8: add a column _corrupt_record BINARY"):
        run()
    run()
    rows = ground.spark.read.parquet(str(ground.folder / "out")).orderBy("sequence").collect()
    assert [(row.body, row.attempts) for row in rows] == [("é", 2), ("a", 2)]
    async with AsyncQueue("jobs", url=ground.url) as queue:
        assert [letter.raw for letter in await queue.dead_letters()] == [b"\xff"]
    with pytest.raises(Exception, match="the column attempts is for streams"):
        ground.spark.read.format("pressure").options(url=ground.url, queue="jobs").schema("attempts INT").load().count()


async def test_a_stream_waits_for_enough_messages(ground: Ground) -> None:
    ground.create()
    frame = ground.stream(minOffsetsPerTrigger=10, maxTriggerDelay="1h").load()
    query = ground.to_files(frame, now=False)
    query.processAllAvailable()  # the first look does not wait
    await ground.put([b"1", b"2", b"3"])
    for _ in range(3):
        query.processAllAvailable()
    assert len(ground.waiting()) == 3
    await ground.put([b"%d" % number for number in range(4, 12)])
    while not ground.bodies():
        query.processAllAvailable()
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [11]
    await ground.put([b"12"])
    query.processAllAvailable()
    assert len(ground.waiting()) == 1
    await ground.put([], close=True)
    pressure.await_end(query, url=ground.url, queue="jobs")
    assert ground.bodies() == [b"%d" % number for number in range(1, 13)]


def test_queues_in_sql(ground: Ground) -> None:
    ground.create()
    sql, options = ground.spark.sql, f"queue 'jobs', url '{ground.url}'"
    given = f"WITH (queue = 'jobs', url = '{ground.url}')"
    sql(f"CREATE TEMPORARY VIEW texts (body STRING) USING pressure OPTIONS ({options})")
    sql(f"CREATE TABLE jobs USING pressure OPTIONS ({options})")
    try:
        sql("INSERT INTO texts VALUES ('a')")
        sql(f"INSERT INTO jobs {given} (body) SELECT cast(upper(body) AS BINARY) FROM texts")
        assert ground.waiting() == [b"a", b"A"]
        assert [row.body for row in sql("SELECT body FROM texts").collect()] == ["a"]  # as when it was first read
        found = sql(f"SELECT queue, sequence FROM jobs {given} WHERE body = 'A'").collect()
        assert [tuple(row) for row in found] == [("jobs", 1)]
        with pytest.raises(Exception, match=r"Spark does not hand them over\. Use CREATE TEMPORARY VIEW"):
            sql("SELECT * FROM jobs").collect()
        with pytest.raises(Exception, match=r"a queue cannot be overwritten: use .mode\('append'\) or INSERT INTO"):
            sql("INSERT OVERWRITE texts VALUES ('b')")
    finally:
        sql("DROP VIEW texts")
        sql("DROP TABLE jobs")
    assert len(ground.waiting()) == 2


def test_as_many_tasks_read_as_the_cluster_runs_at_once(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    key = ground.create().keys.queue.messages
    for _ in range(30):
        ground.plain.lpush(key, *[b"message"] * 1000)
    context = ground.spark.sparkContext
    with monkeypatch.context() as patched:
        patched.setattr(type(context), "defaultParallelism", property(lambda _: 3))
        pressure.register(ground.spark)
        try:
            options = {"url": ground.url, "queue": "jobs"}
            assert ground.spark.read.format("pressure").options(**options).load().rdd.getNumPartitions() == 3
            ground.to_files(ground.stream().load())
        finally:
            patched.undo()
            pressure.register(ground.spark)
    assert len([*(ground.folder / "out").glob("part-*.parquet")]) == 3


async def test_output_modes_other_than_append_are_refused(ground: Ground) -> None:
    ground.create()
    await ground.put([b"a"])
    writer = ground.stream().load().groupBy("body").count().select("body").writeStream.outputMode("complete")
    options = {"url": ground.url, "queue": "jobs", "checkpointLocation": str(ground.folder / "checkpoint")}
    with pytest.raises(Exception, match=r"outputMode\('complete'\) writes the whole result .* outputMode\('append'\)"):
        writer.format("pressure").options(**options).trigger(availableNow=True).start().awaitTermination()
    with pytest.raises(Exception, match='cannot be written in the "ErrorIfExists" mode'):  # by Spark itself
        ground.spark.range(1).write.format("pressure").options(url=ground.url, queue="jobs").save()
