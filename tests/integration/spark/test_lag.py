"""How far a query is behind, on real servers, without Spark."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest

from apressure.connection.server import Server
from apressure.spark.lag import LagMeter, QueueLag, queues_of
from tests.integration.spark.support import Jobs, seal, texts

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")
pytestmark = pytest.mark.leaves_keys


def test_lag_and_the_time_to_drain(jobs: Jobs) -> None:
    now = 100.0
    meter = LagMeter(jobs.server.settings, clock=lambda: now)

    def look() -> QueueLag:
        (lag,) = meter.look("run", "billing", ["jobs"])
        return lag

    epoch = jobs.begin(texts(1000))
    size = sum(map(len, texts(1000)))
    assert look() == QueueLag("billing", "jobs", 1000, size, 0, 0, None, None)

    now += 2
    assert seal(jobs.source, epoch, 0, 400) == 1
    taken = sum(map(len, texts(400)))
    assert look() == QueueLag("billing", "jobs", 600, size - taken, 400, taken, 200.0, 3.0)  # 200 a second fewer
    assert (
        str(look())
        == f"billing: 600 messages ({size - taken:,} bytes) wait in jobs, 400 in flight; 200 rows/s, empty in 3 s"
    )

    now += 2
    jobs.source.commit(epoch, 1, 1)
    assert seal(jobs.source, epoch, 1, 400) == 2
    jobs.put(texts(800, 1000))
    lag = look()
    assert (lag.messages, lag.in_flight, lag.rows_per_second, lag.seconds_to_drain) == (1000, 400, 200.0, math.inf)
    assert str(lag).endswith("200 rows/s, does not get shorter")

    now += 100  # the rates are those of the last minute
    assert seal(jobs.source, epoch, 2, 0) == 3
    lag = look()
    assert (lag.messages, lag.rows_per_second, lag.seconds_to_drain) == (0, 10.0, 0.0)
    jobs.plain.delete(jobs.source.state)
    assert look().rows_per_second is None  # no rate below 0
    now += 1
    assert look().rows_per_second == 0
    meter.forget("run")
    assert look().rows_per_second is None


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (
            [{"endOffset": '{"a": 1, "b": 2}', "latestOffset": '{"a": {"messages": 1}, "b": {"messages": 0}}'}],
            ["a", "b"],
        ),
        ([{"endOffset": {"a": 1}, "latestOffset": {"a": {"messages": 1, "bytes": 5}}}], ["a"]),
        ([{"endOffset": '{"topic": {"0": 9}}', "latestOffset": '{"topic": {"0": 12}}'}], []),  # Kafka
        ([{"endOffset": "17", "latestOffset": "19"}, {"endOffset": None, "latestOffset": None}, {}], []),
        ([{"endOffset": "{", "latestOffset": "{"}], []),
    ],
)
def test_the_queues_in_a_progress(sources: Any, names: list[str]) -> None:
    assert queues_of({"sources": sources}) == names


def test_a_listener_does_not_wait_for_a_server_that_is_down(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All listeners of a session share a thread."""
    pytest.importorskip("pyspark")
    from apressure.spark import LagListener

    tries = 0
    opened = Server.open

    async def counted(*arguments: Any) -> Any:
        nonlocal tries
        tries += 1
        return await opened(*arguments)

    monkeypatch.setattr(Server, "open", counted)
    sources = [{"endOffset": '{"jobs": 1}', "latestOffset": '{"jobs": {"messages": 1}}'}]
    progress = json.dumps({"runId": "r", "id": "i", "name": "billing", "sources": sources})
    listener: Any = LagListener(url="redis://127.0.0.1:1", interval=3600)
    for _ in range(2):
        listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json=progress)))
    assert tries == 1
    assert "the lag of the query billing cannot be measured: cannot reach the server at 127.0.0.1:1" in caplog.text
