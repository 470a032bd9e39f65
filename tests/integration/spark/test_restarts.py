"""A sink whose query is started again with another `queueColumn`, on real servers, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from apressure.spark.engine.sink_steps import SinkSteps
from apressure.spark.options import Options
from tests.integration.spark.support import Jobs

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")
pytest.importorskip("pyspark", reason="the sink is a class of Spark's")
pytestmark = pytest.mark.leaves_keys

QUEUES = ("jobs", "a", "b")


class DiedError(Exception):
    pass


class Query:
    """The sink of a query whose batches have three rows."""

    def __init__(self, jobs: Jobs, *queues: str | None) -> None:
        import pyarrow as pa
        from pyspark.sql.types import StringType, StructType

        from apressure.spark.sink import StreamSink

        schema, options = StructType().add("body", StringType()), {"url": jobs.url, "queue": "jobs"}
        columns: dict[str, Any] = {"body": ["1", "2", "3"]}
        if queues:
            schema, options = schema.add("to", StringType()), {**options, "queueColumn": "to"}
            columns["to"] = pa.array(queues, pa.string())
        self._rows = pa.record_batch(columns)
        self._sink = StreamSink(Options.of(options), schema, overwrite=False)

    def commit(self, batch: int) -> None:
        self._sink.commit([self._sink.stage("w", iter([self._rows]))], batch)


def written(jobs: Jobs) -> list[bytes]:
    return [b"".join(jobs.plain.lrange(f"__pressure__:{name}", 0, -1)[::-1]) for name in QUEUES]


@pytest.fixture
def three(jobs: Jobs) -> Jobs:
    for name in QUEUES:
        SinkSteps(jobs.server, name).create(0)
    return jobs


def die(monkeypatch: pytest.MonkeyPatch, queue: str) -> None:
    """Die when the first row would go into that queue."""
    put_part = SinkSteps.put_part

    def dying(self: SinkSteps, *arguments: Any) -> Any:
        if self.name == queue:
            raise DiedError
        return put_part(self, *arguments)

    monkeypatch.setattr(SinkSteps, "put_part", dying)


@pytest.mark.parametrize("queue", ["jobs", "a", "b", ""])
def test_a_batch_for_several_queues_is_finished_without_the_column(
    three: Jobs, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    with monkeypatch.context() as patched:
        die(patched, queue)
        try:
            Query(three, "a", "b", None).commit(7)
        except DiedError:
            assert queue
    for _ in range(2):
        Query(three).commit(7)
        assert written(three) == [b"3", b"1", b"2"]
    Query(three).commit(8)
    assert written(three) == [b"3123", b"1", b"2"]
    assert three.plain.keys("*part*") == three.plain.keys("*todo*") == []


@pytest.mark.parametrize("queue", ["jobs", ""])
def test_a_batch_for_one_queue_is_finished_with_the_column(
    three: Jobs, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    with monkeypatch.context() as patched:
        die(patched, queue)
        try:
            Query(three).commit(7)
        except DiedError:
            assert queue
    for _ in range(2):
        Query(three, "a", "b", None).commit(7)
        assert written(three) == [b"123", b"", b""]
    Query(three, "a", "b", None).commit(8)
    assert written(three) == [b"1233", b"1", b"2"]
    assert three.plain.keys("*part*") == three.plain.keys("*todo*") == []
