"""The listener that tells how far queries are behind."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from apressure import AsyncQueue
from tests.integration.commands import wait_until
from tests.spark.conftest import Ground

if TYPE_CHECKING:
    from apressure.spark import QueueLag


async def test_the_lag_of_queries(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    from apressure.spark import LagListener

    caplog.set_level(logging.INFO, "apressure.spark")
    seen: list[QueueLag] = []

    def note(lag: QueueLag) -> None:
        seen.append(lag)
        if len(seen) == 1:
            raise RuntimeError("the callback fails")

    def logged(level: int, *words: str) -> bool:
        return any(one.levelno == level and all(word in one.getMessage() for word in words) for one in caplog.records)

    for name in ("paused", "read"):
        ground.create(name)
    await ground.put([b"x" * 10] * 8, "paused")
    await ground.put([b"x"] * 3, "read")
    async with AsyncQueue("paused", url=ground.url) as queue:
        await queue.pause()  # so that its messages wait at each look
    listener = LagListener(note, warn_messages=5, interval=0, url=ground.url)
    ground.spark.streams.addListener(listener)
    try:
        frame = ground.stream(None, queues="paused,read").load()
        foreign = ground.spark.readStream.format("rate").load().writeStream.format("noop").queryName("foreign").start()
        query = ground.to_files(frame, now=False)
        wait_until(lambda: len(seen) >= 2 or query.exception())
        wait_until(lambda: foreign.lastProgress)
        query.stop()
        foreign.stop()
        wait_until(lambda: not listener._queries)
    finally:
        ground.spark.streams.removeListener(listener)
    assert {lag.query for lag in seen} == {str(query.id)}
    latest = {lag.queue: lag for lag in seen}
    waiting, done = latest["paused"], latest["read"]
    assert (waiting.messages, waiting.bytes, waiting.in_flight) == (8, 80, 0)
    assert (done.messages, done.bytes, done.in_flight, done.in_flight_bytes) == (0, 0, 3, 3)
    assert done.seconds_to_drain == 0.0
    assert logged(logging.WARNING, "8 messages (80 bytes) wait in paused")
    assert logged(logging.INFO, "wait in read")
    assert not logged(logging.WARNING, "wait in read")
    assert logged(logging.ERROR, "the callback for the lag of the query", "failed")


def test_bad_arguments() -> None:
    pytest.importorskip("pyspark", reason="the listener is a class of Spark's")
    from apressure.spark import LagListener

    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"interval": -1}, ValueError),
        ({"warn_messages": "many"}, TypeError),
        ({"warn_seconds": float("nan")}, ValueError),
        ({"uri": "redis://127.0.0.1"}, ValueError),
    ]
    for arguments, error in wrong:
        with pytest.raises(error):
            LagListener(**arguments)
