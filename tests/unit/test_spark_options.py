"""The options of the data source: parsed, checked, and documented in one table. No Spark is needed."""

from __future__ import annotations

import dataclasses

import pytest

from apressure.spark import task_slots
from apressure.spark.engine import keys as spelling
from apressure.spark.engine.keys import SparkKeys
from apressure.spark.engine.steps import fair_shares, split_rows
from apressure.spark.options import SLOTS, Options, table
from apressure.spark.options import spelling as spelled

SECRET = "hunter2"


def test_every_option_has_a_line_in_the_table() -> None:
    lines = table().splitlines()
    assert len(lines) == 2 + len(dataclasses.fields(Options))
    assert "| `maxRowsPerBatch` | read | `200000` |" in table()
    assert spelled("corrupt_record") == "columnNameOfCorruptRecord"


def test_upper_and_lower_case_are_the_same() -> None:
    options = Options.of(
        {"QUEUE": "jobs", "maxrowsperbatch": "7", "ColumnNameOfCorruptRecord": "bad", "create": "True"}
    )
    assert (options.queue, options.max_rows_per_batch, options.corrupt_record) == ("jobs", 7, "bad")
    assert options.create


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("quue", "'queue'"),
        ("maxRows", "'maxRowsPerBatch'"),
        ("closeAtEnd", "'closeOnEnd'"),
        ("fetch_size", "'fetchSize'"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_right_one(given: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"unknown option '{given}': did you mean {near}"):
        Options.of({"queue": "jobs", given: "1"})


def test_an_option_without_a_near_match_is_refused_with_all() -> None:
    with pytest.raises(ValueError, match="the options are url, username, password"):
        Options.of({"queue": "jobs", "zzz": "1"})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"endTimeColumn": "t"},
            "endTimeColumn needs format=json or format=cloudevents: with format=raw use endMessage",
        ),
        ({"endMessage": "x", "format": "json"}, "endMessage is for format=raw: with format=json use endTimeColumn"),
        ({"queue": None, "queues": "a*", "endMessage": "x"}, "endMessage needs names: new queues may match a pattern"),
    ],
)
def test_an_end_row_that_cannot_be_is_refused(given: dict[str, str], why: str) -> None:
    assert not Options.of({"queue": "jobs"}).ends
    assert Options.of({"queue": "jobs", "endMessage": ""}).ends == "endMessage"
    with pytest.raises(ValueError, match=why):
        Options.of({"queue": "jobs", **given})


def test_names_of_other_sources_are_synonyms() -> None:
    given = {"maxOffsetsPerTrigger": "7", "maxBytesPerTrigger": "8", "minPartitions": "3"}
    options = Options.of({"queue": "jobs", **given, "minOffsetsPerTrigger": "5", "maxTriggerDelay": "15m"})
    assert (options.max_rows_per_batch, options.max_bytes_per_batch, options.num_partitions) == (7, 8, 3)
    assert (options.min_rows_per_batch, options.max_batch_delay) == (5, 900)
    with pytest.raises(ValueError, match="maxTriggerDelay needs a unit, for example '5000ms'"):
        Options.of({"queue": "jobs", "maxTriggerDelay": "5000"})
    with pytest.raises(ValueError, match="maxOffsetsPerTrigger and a synonym of it are given"):
        Options.of({"queue": "jobs", "maxRowsPerBatch": "7", "maxOffsetsPerTrigger": "7"})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("startingOffsets", "there is no startingOffsets: a new checkpoint begins with the oldest message"),
        ("endingTimestamp", "there is no endingTimestamp"),
        ("startingOffsetsByTimestamp", "there is no startingOffsetsByTimestamp"),
        ("failOnDataLoss", "the query always fails"),
        ("subscribePattern", "there is no subscribePattern: name the queues with `queue` or `queues`"),
        ("kafka.bootstrap.servers", "name the server with `url`"),
        ("includeHeaders", "format=cloudevents"),
        ("path", "name the queues"),
    ],
)
def test_an_option_that_a_queue_cannot_have_is_explained(given: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Options.of({"queue": "jobs", given: "earliest"})


@pytest.mark.parametrize(
    ("given", "seconds"), [("0.5", 0.5), ("500ms", 0.5), ("30s", 30), ("15 min", 900), ("1h", 3600)]
)
def test_a_time_may_have_a_unit(given: str, seconds: float) -> None:
    assert Options.of({"queue": "jobs", "maxBatchDelay": given}).max_batch_delay == seconds


def test_options_of_a_table_come_with_its_properties() -> None:
    given = {"provider": "pressure", "owner": "me", "url": "redis://here", "option.url": "redis://here"}
    assert Options.of({**given, "queue": "jobs", "option.queue": "jobs"}).queue == "jobs"


def test_the_cluster_decides_how_many_tasks_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOTS, "17")
    assert Options.of({"queue": "jobs"}).tasks == 17
    assert Options.of({"queue": "jobs", "numPartitions": "3"}).tasks == 3
    monkeypatch.delenv(SLOTS)
    assert Options.of({"queue": "jobs"}).tasks >= 1


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({}, 2),
        ({"spark.default.parallelism": "2", "spark.executor.instances": "9"}, 2),
        ({"spark.executor.instances": "5", "spark.executor.cores": "4"}, 20),
        ({"spark.executor.instances": "5", "spark.executor.cores": "4", "spark.task.cpus": "2"}, 10),
        ({"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "6"}, 6),
        ({"spark.dynamicAllocation.enabled": "true", "spark.executor.instances": "9"}, 2),
        ({"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "infinity"}, 2),
    ],
)
def test_the_slots_of_a_cluster_come_from_its_settings(settings: dict[str, str], slots: int) -> None:
    class Context:
        defaultParallelism = 2  # noqa: N815

        def getConf(self) -> dict[str, str]:  # noqa: N802
            return settings

    assert task_slots(Context()) == slots  # type: ignore[arg-type]


def test_options_of_spark_are_ignored() -> None:
    assert Options.of({"queue": "jobs", "checkpointLocation": "/tmp/x", "queryName": "q"}).queue == "jobs"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "name the queue"),
        ({"queue": "a", "queues": "b"}, "name the queue"),
        ({"queue": "a", "format": "xml"}, "raw, json or cloudevents"),
        ({}, "Spark does not hand them over"),
        ({"queue": "a", "minRowsPerBatch": "200001"}, "minRowsPerBatch must be at most maxRowsPerBatch"),
        ({"queue": "a", "maxBatchDelay": "5 weeks"}, "a unit of ms, s, m, min, h, d, not '5 weeks'"),
        ({"queue": "a", "maxBatchDelay": "soon"}, "maxBatchDelay must be a number of seconds"),
        ({"queue": "a", "maxBatchDelay": "NaN"}, "maxBatchDelay must be between 0"),
        ({"queue": "a", "group": "a:b"}, "group must be a name"),
        ({"queue": "a", "bound": "5"}, "create"),
        ({"queues": "a*", "create": "true"}, "pattern"),
        ({"queues": "a*", "stopAtEnd": "true"}, "stopAtEnd needs names"),
        ({"queue": "a", "stopAtEnd": "true", "pollWait": "0"}, "pollWait must be at least 50 ms"),
        ({"queue": "a", "maxRowsPerBatch": "0"}, "maxRowsPerBatch must be at least 1"),
        ({"queue": "a", "maxRowsPerBatch": "many"}, "maxRowsPerBatch must be a whole number, not 'many'"),
        ({"queue": "a", "bound": "-1", "create": "true"}, "bound must be at least 0"),
        ({"queue": "a", "create": "yes"}, "create must be true or false"),
        ({"queue": "a", "pollWait": "10"}, "pollWait"),
    ],
)
def test_an_invalid_option_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Options.of(given)


def test_an_embedded_server_is_refused() -> None:
    with pytest.raises(ValueError, match="belongs to one process, and Spark has many"):
        Options.of({"queue": "jobs", "url": "embedded://"}).settings()


def test_names_and_patterns() -> None:
    assert Options.of({"queue": "a,b*"}).names == ("a,b*",)
    assert Options.of({"queue": "a*"}).pattern is None
    several = Options.of({"queues": "a, b,a,"})
    assert (several.names, several.pattern) == (("a", "b"), None)
    pattern = Options.of({"queues": "orders:*"})
    assert (pattern.names, pattern.pattern) == ((), "orders:*")


def test_no_secret_is_shown() -> None:
    options = Options.of({"queue": "jobs", "url": f"redis://me:{SECRET}@127.0.0.1:1/0", "password": SECRET})
    assert SECRET not in repr(options)
    assert SECRET not in repr(options.settings())
    assert options.settings().address.connection_options["password"] == SECRET


def test_the_drivers_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_PORT", "1234")
    monkeypatch.setenv("PRESSURE_PREFIX", "mine")
    options = Options.of({"queue": "jobs"})
    assert (options.url, options.prefix) == ("redis://127.0.0.1:1234/0", "mine")
    monkeypatch.setenv("APRESSURE_URL", "redis://elsewhere:1/2")
    assert Options.of({"queue": "jobs"}).url == "redis://elsewhere:1/2"
    assert Options.of({"queue": "jobs", "url": "redis://here"}).url == "redis://here"


def test_keys_of_different_queues_groups_and_writes_differ() -> None:
    keys = [
        key
        for name in ("a", "a:spark:g", "a:spark", "a:spark:all")
        for one in (SparkKeys("p", name),)
        for key in (
            *one.queue.specified, *one.queue.ours, one.queue.operation("x"), one.groups, one.sinks, one.todo("w"),
            one.part("w", "t"), *(k for g in ("g", "all", "op") for k in (one.state(g), one.batch(g, 1))),
        )
    ]  # fmt: skip
    assert len(keys) == len(set(keys))
    assert all(key.startswith((b"p:a", b"apressure:p:a")) for key in keys)


def test_a_queue_name_is_found_by_its_bound_key() -> None:
    key = SparkKeys("p*", "orders:0").queue.bound
    assert spelling.bound_pattern("p*") == b"p\\*:*:bound"
    assert spelling.queue_name("p*", key) == "orders:0"


@pytest.mark.parametrize(
    ("waiting", "most", "shares"),
    [
        ({"a": 100, "b": 100}, 50, {"a": 25, "b": 25}),
        ({"a": 10, "b": 100}, 50, {"a": 10, "b": 40}),
        ({"a": 0, "b": 3}, 50, {"a": 0, "b": 3}),
        ({"a": 5, "b": 5, "c": 5}, 2, {"a": 1, "b": 1, "c": 0}),
        ({"a": 0}, 10, {"a": 0}),
    ],
)
def test_rows_are_divided_evenly(waiting: dict[str, int], most: int, shares: dict[str, int]) -> None:
    assert fair_shares(waiting, most) == shares


def test_tasks_cover_all_rows_once_and_have_as_many() -> None:
    for lengths in ((0,), (1,), (9, 10), (99, 0, 100), (12345,), (3,) * 60, ()):
        tasks = split_rows(lengths, 4, 10)
        rows = [(index, row) for task in tasks for index, begin, end in task for row in range(begin, end)]
        assert rows == [(index, row) for index, length in enumerate(lengths) for row in range(length)]
        sizes = [sum(end - begin for _, begin, end in task) for task in tasks]
        assert len(sizes) <= 4
        assert not sizes or max(sizes) - min(sizes) <= 1
    assert len(split_rows([19], 4, 10)) == 1
