"""When a stream waits for more messages before it seals a batch. No Spark and no server are needed."""

from __future__ import annotations

import pytest

from apressure.spark.engine.steps import Look
from apressure.spark.options import Options
from apressure.spark.source.admission import Admission

FEW = Look(3, closed=False, full=False)
ENDED = Look(3, closed=True, full=False)


class Stream:
    """A stream that waits for 10 messages, at most 60 seconds."""

    def __init__(self, **options: str) -> None:
        self.now = 1000.0
        given = {"queue": "jobs", "minRowsPerBatch": "10", "maxBatchDelay": "1m", **options}
        self.admission = Admission(Options.of(given), lambda: self.now)

    def waits(self, *looks: Look) -> float:
        return self.admission.seconds_left(lambda: looks)


def test_a_batch_waits_for_enough_messages_or_for_the_delay() -> None:
    stream = Stream()
    assert stream.waits(FEW) == 0  # it may be a batch from before a crash
    stream.admission.sealed()
    assert stream.waits(FEW) == 60
    assert stream.waits(*[FEW] * 3) == 60
    assert stream.waits(*[FEW] * 4) == 0
    stream.now += 59
    assert stream.waits(FEW) == 1
    stream.now += 1
    assert stream.waits(FEW) == 0
    stream.admission.sealed()
    assert stream.waits(FEW) == 60


@pytest.mark.parametrize("looks", [[ENDED], [ENDED, ENDED], [FEW, FEW._replace(full=True)]])
def test_a_batch_does_not_wait_for_messages_that_cannot_come(looks: list[Look]) -> None:
    stream = Stream()
    stream.admission.sealed()
    assert stream.waits(*looks) == 0
    assert stream.waits(ENDED, FEW) == 60


def test_nothing_waits_by_default() -> None:
    stream = Stream(minRowsPerBatch="0")
    stream.admission.sealed()
    assert stream.waits(FEW) == 0
