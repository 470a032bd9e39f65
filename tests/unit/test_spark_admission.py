"""When a stream waits for more messages before it seals a batch. No Spark and no server are needed."""

from __future__ import annotations

from apressure.spark.engine.looks import Look
from apressure.spark.options import Options
from apressure.spark.source.admission import Admission

FEW = Look(3, final=False)


class Stream:
    """A stream that waits for 10 messages, at most 60 seconds."""

    def __init__(self, **options: str) -> None:
        self.now = 1000.0
        given = {"queue": "jobs", "minRowsPerBatch": "10", "maxBatchDelay": "1m", **options}
        self.admission = Admission(Options.of(given), lambda: self.now)

    def waits(self, look: Look) -> float:
        return self.admission.seconds_left(lambda: look)


def test_a_batch_waits_for_enough_messages_or_for_the_delay() -> None:
    stream = Stream()
    assert stream.waits(FEW) == 0  # it may be a batch from before a crash
    stream.admission.sealed()
    assert stream.waits(FEW) == 60
    assert stream.waits(Look(9, final=False)) == 60
    assert stream.waits(Look(10, final=False)) == 0
    stream.now += 59
    assert stream.waits(FEW) == 1
    stream.now += 1
    assert stream.waits(FEW) == 0
    stream.admission.sealed()
    assert stream.waits(FEW) == 60


def test_a_batch_does_not_wait_for_messages_that_cannot_come() -> None:
    stream = Stream()
    stream.admission.sealed()
    assert stream.waits(Look(3, final=True)) == 0
    assert stream.waits(Look(0, final=True)) == 0


def test_nothing_waits_by_default() -> None:
    stream = Stream(minRowsPerBatch="0")
    stream.admission.sealed()
    assert stream.waits(FEW) == 0
