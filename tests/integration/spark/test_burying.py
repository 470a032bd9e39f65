"""Spark's steps on real servers, without Spark: rows that cannot be decoded become dead letters."""

from __future__ import annotations

import asyncio

import pytest

from apressure import AsyncQueue, ServerError
from apressure.dead_letters import DeadLetter
from apressure.spark import sealed_batches
from apressure.spark.engine.steps import GroupTakenError
from tests.integration.spark.support import Jobs, seal, texts

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")
pytestmark = pytest.mark.leaves_keys


def dead_letters(jobs: Jobs) -> list[DeadLetter[bytes]]:
    async def look() -> list[DeadLetter[bytes]]:
        async with AsyncQueue("jobs", url=jobs.url, max_attempts=1) as queue:
            return await queue.dead_letters()

    return asyncio.run(look())


def bad_fields(jobs: Jobs) -> list[bytes]:
    return [field for field in jobs.plain.hkeys(jobs.source.state) if field.startswith(b"bad")]


def test_rows_become_dead_letters_once(jobs: Jobs) -> None:
    epoch = jobs.begin(texts(200))
    assert seal(jobs.source, epoch, 0, 0) == 1
    source = jobs.source
    assert source.note_failures(1, 0, 150, []) == 0
    assert bad_fields(jobs) == []
    bad = [3, *range(10, 70)]
    assert source.note_failures(1, 0, 150, bad) == 1
    assert source.note_failures(1, 150, 200, [160]) == 1
    assert source.note_failures(1, 0, 150, [*bad, 80]) == 1
    assert source.note_failures(1, 0, 150, bad) == 3  # 80 can be decoded now
    with pytest.raises(GroupTakenError):
        source.bury(epoch - 1, 1)
    statistics = jobs.statistics()
    for _ in range(2):
        source.bury(epoch, 1)
        assert jobs.statistics() == statistics  # sealing has counted them
        letters = dead_letters(jobs)
        assert [letter.raw for letter in letters] == [texts(200)[position] for position in [*bad, 160]]
        assert [letter.attempts for letter in letters] == [3] * len(bad) + [1]
    assert "Spark's group 'g' cannot decode it: it does not fit the format" in letters[0].reason
    assert bad_fields(jobs) == []


def test_rows_stay_if_the_dead_letter_queue_cannot_take_them(jobs: Jobs) -> None:
    epoch = jobs.begin(texts(5))
    assert seal(jobs.source, epoch, 0, 0) == 1
    assert jobs.source.note_failures(1, 0, 5, [2]) == 1
    bound = jobs.keys.dead_letters.bound
    jobs.plain.set(bound, "many")
    with pytest.raises(ServerError, match=r"dead letters of the queue 'jobs' cannot be moved: .* is not an integer"):
        jobs.source.bury(epoch, 1)
    assert jobs.batch(1) == texts(5)
    jobs.plain.delete(bound)
    jobs.source.bury(epoch, 1)
    assert [letter.raw for letter in dead_letters(jobs)] == [b"message 2"]


def test_rows_that_are_given_back_are_no_dead_letters(jobs: Jobs) -> None:
    epoch = jobs.begin(texts(5))
    assert seal(jobs.source, epoch, 0, 0) == 1
    assert jobs.source.note_failures(1, 0, 5, [2]) == 1
    assert sealed_batches.give_back(jobs.server.settings, "jobs", "g") == 5
    assert bad_fields(jobs) == []
    assert jobs.waiting() == texts(5)
