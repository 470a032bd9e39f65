"""The listener that tells how far queries are behind."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from apressure.spark import LagListener, QueueLag
from tests.integration.commands import wait_until
from tests.spark.conftest import Ground


async def test_the_lag_of_queries(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "apressure.spark")
    seen: list[QueueLag] = []

    def note(lag: QueueLag) -> None:
        seen.append(lag)
        if len(seen) == 1:
            raise RuntimeError("the callback fails")

    def logged(level: int, *words: str) -> bool:
        return any(one.levelno == level and all(word in one.getMessage() for word in words) for one in caplog.records)

    for name in ("busy", "calm"):
        ground.create(name)
    await ground.put([b"x" * 10] * 14, "busy")
    await ground.put([b"x"], "calm")
    listener = LagListener(note, warn_messages=5, interval=0, url=ground.url)
    ground.spark.streams.addListener(listener)
    try:
        frame = ground.stream(None, queues="busy,calm", maxRowsPerBatch=6).load()
        foreign = ground.spark.readStream.format("rate").load().writeStream.format("noop").queryName("foreign").start()
        query = ground.to_files(frame, now=False)
        wait_until(lambda: {lag.queue for lag in seen if not lag.messages} == {"busy", "calm"} or query.exception())
        wait_until(lambda: foreign.lastProgress)
        query.stop()
        foreign.stop()
        wait_until(lambda: not listener._queries)
    finally:
        ground.spark.streams.removeListener(listener)
    assert {lag.query for lag in seen} == {str(query.id)}
    busy = [lag for lag in seen if lag.queue == "busy"]
    assert all(lag.bytes == 10 * lag.messages and lag.in_flight_bytes == 10 * lag.in_flight for lag in busy)
    assert [lag.messages for lag in busy] == sorted((lag.messages for lag in busy), reverse=True)
    assert any(lag.in_flight and lag.rows_per_second for lag in busy)
    assert busy[-1].seconds_to_drain == 0.0
    assert logged(logging.WARNING, "messages", "wait in busy")
    assert logged(logging.INFO, "wait in calm")
    assert not logged(logging.WARNING, "wait in calm")
    assert logged(logging.ERROR, "the callback for the lag of the query", "failed")


def test_bad_arguments() -> None:
    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"interval": -1}, ValueError),
        ({"warn_messages": "many"}, TypeError),
        ({"warn_seconds": float("nan")}, ValueError),
        ({"uri": "redis://127.0.0.1"}, ValueError),
    ]
    for arguments, error in wrong:
        with pytest.raises(error):
            LagListener(**arguments)
