"""Spark's steps on real servers, without Spark: the messages of a group go back."""

from __future__ import annotations

from typing import Any

import pytest

from apressure import QueueDoesNotExistError, ServerError
from apressure import spark as pressure
from apressure.spark import sealed_batches
from apressure.spark.engine.source_steps import SourceSteps
from apressure.spark.engine.steps import GroupTakenError
from tests.integration.spark.support import Jobs, seal, texts

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")
pytestmark = pytest.mark.leaves_keys


@pytest.mark.parametrize("count", [30, 9000])
def test_batches_are_given_back_in_order(jobs: Jobs, count: int) -> None:
    jobs.put(texts(count))
    epoch, _, _ = jobs.source.begin_epoch()
    assert seal(jobs.source, epoch, 0, count // 3) == 1
    assert seal(jobs.source, epoch, 1, count // 3) == 2
    jobs.source.commit(epoch, 1, 1)
    settings = jobs.server.settings
    (found,) = sealed_batches.uncommitted(settings, "jobs")
    assert (found.group, found.batches, found.messages) == ("g", 1, count // 3)
    assert found.seconds is not None
    jobs.plain.lmove(jobs.keys.queue.messages, jobs.keys.batch("g", 3), "RIGHT", "LEFT")  # incomplete
    jobs.plain.incr(jobs.keys.queue.messages_count("consumer"))
    assert sealed_batches.give_back(settings, "jobs", "g") == count // 3 + 1
    assert jobs.waiting() == texts(count)[count // 3 :]
    assert sealed_batches.uncommitted(settings, "jobs") == []
    assert sealed_batches.give_back(settings, "jobs", "g") == sealed_batches.give_back(settings, "jobs", "other") == 0
    size = sum(map(len, texts(count // 3)))
    assert jobs.statistics()[2] == count // 3
    assert jobs.statistics()[3] in (size, size - len(b"message %d" % (2 * (count // 3))))  # (the move above by hand)
    # Its query and its checkpoint are refused. A new one begins behind the batches that were given back.
    with pytest.raises(GroupTakenError):
        seal(jobs.source, epoch, 2, 10)
    epoch, committed, sealed = jobs.source.begin_epoch()
    assert committed == sealed == 3
    with pytest.raises(GroupTakenError, match="they were given back"):
        seal(jobs.source, epoch, 2, 10)
    assert seal(jobs.source, epoch, 3, 10) == 4
    assert jobs.batch(4) == texts(10, count // 3)


def test_giving_back_goes_on_after_a_crash(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.put(texts(9000))
    epoch, _, _ = jobs.source.begin_epoch()
    assert jobs.drain(epoch, 0, 4500) == [1, 2]
    settings = jobs.server.settings
    calls = 0

    def run(self: SourceSteps, name: str, *arguments: Any) -> Any:
        nonlocal calls
        calls += name == "give_back"
        if calls == 3:  # (the first call is for an incomplete batch, which does not exist)
            raise KeyboardInterrupt
        return original(self, name, *arguments)

    original = SourceSteps._run
    monkeypatch.setattr(SourceSteps, "_run", run)
    with pytest.raises(KeyboardInterrupt):
        sealed_batches.give_back(settings, "jobs", "g")
    monkeypatch.undo()
    assert len(jobs.waiting()) == 4000
    with pytest.raises(GroupTakenError):
        seal(jobs.source, jobs.source.begin_epoch()[0], 1, 10)
    (found,) = sealed_batches.uncommitted(settings, "jobs")
    assert (found.batches, found.messages) == (2, 5000)
    assert sealed_batches.give_back(settings, "jobs", "g") == 5000
    assert jobs.waiting() == texts(9000)
    assert sealed_batches.uncommitted(settings, "jobs") == []
    assert set(jobs.plain.hgetall(jobs.keys.state("g"))) == {b"epoch", b"committed", b"sealed", b"rows"}


def test_batches_that_were_sealed_in_the_meantime_are_given_back_too(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.put(texts(100))
    epoch, _, _ = jobs.source.begin_epoch()
    assert seal(jobs.source, epoch, 0, 10) == 1
    original = SourceSteps.begin_epoch

    def begin_epoch(self: SourceSteps) -> tuple[int, int, int]:
        for done in (1, 2):
            jobs.source.commit(epoch, done, done)
            assert seal(jobs.source, epoch, done, 10) == done + 1
        assert jobs.source.seal(epoch, 3, 5000) == 4
        return original(self)

    monkeypatch.setattr(SourceSteps, "begin_epoch", begin_epoch)
    assert sealed_batches.give_back(jobs.server.settings, "jobs", "g") == 80
    assert jobs.waiting() == texts(80, 20)
    assert sealed_batches.uncommitted(jobs.server.settings, "jobs") == []


def test_a_deleted_queue_gets_no_batches_back(jobs: Jobs) -> None:
    jobs.put(texts(3))
    epoch, _, _ = jobs.source.begin_epoch()
    seal(jobs.source, epoch, 0, 10)
    jobs.plain.delete(jobs.keys.queue.bound)
    settings = jobs.server.settings
    with pytest.raises(QueueDoesNotExistError, match="create it"):
        sealed_batches.give_back(settings, "jobs", "g")
    (found,) = sealed_batches.uncommitted(settings, "jobs")
    assert found.messages == 3
    assert jobs.source.batch_rows(epoch, 1, 1) == [(0, 3)]  # its query is not refused


def test_what_a_group_has_in_flight_in_messages_and_bytes(jobs: Jobs) -> None:
    jobs.put(texts(9000))
    epoch, _, _ = jobs.source.begin_epoch()
    other = SourceSteps(jobs.server, "jobs", "idle")
    other.begin_epoch()
    assert seal(jobs.source, epoch, 0, 4500) == 1  # in portions
    assert seal(jobs.source, epoch, 1, 0) == 2  # the whole queue
    found, idle = sealed_batches.groups(jobs.server, "jobs")
    assert (found.group, found.batches, found.messages, found.read) == ("g", 2, 9000, 9000)
    assert found.bytes == sum(map(len, texts(9000)))
    assert found.since == epoch / 1000
    assert (idle.group, idle.batches, idle.messages, idle.bytes, idle.read, idle.seconds) == ("idle", 0, 0, 0, 0, None)

    jobs.source.commit(epoch, 1, 1)
    jobs.put(texts(6000, 9000))
    assert jobs.source.seal(epoch, 2, 5000) == "more"  # incomplete
    found, _ = sealed_batches.groups(jobs.server, "jobs")
    assert (found.batches, found.messages, found.read) == (2, 8500, 9000)
    assert found.bytes == sum(map(len, texts(8500, 4500)))
    assert seal(jobs.source, epoch, 2, 5000) == 3
    found, _ = sealed_batches.groups(jobs.server, "jobs")
    assert (found.messages, found.bytes) == (9500, sum(map(len, texts(9500, 4500))))

    jobs.source.commit(epoch, 2, 3)
    jobs.plain.lpush(jobs.keys.queue.messages, b"of a client that counts nothing")
    assert seal(jobs.source, epoch, 3, 0) == 4
    found, _ = sealed_batches.groups(jobs.server, "jobs")
    assert (found.messages, found.bytes, found.read) == (1001, None, 15_001)
    jobs.plain.hset(jobs.keys.state("g"), "rows", "many")
    with pytest.raises(ServerError, match="the state of the group 'g' of the queue 'jobs' is damaged"):
        sealed_batches.groups(jobs.server, "jobs")


def test_what_is_left_of_a_finished_query_is_forgotten(jobs: Jobs) -> None:
    epoch = jobs.begin(texts(30))
    assert seal(jobs.source, epoch, 0, 30) == 1  # Spark commits it with the next batch, which never comes
    others = set(jobs.plain.keys()) - {jobs.keys.state("g"), jobs.keys.batch("g", 1)}
    for _ in range(2):
        pressure.forget_group("jobs", "g", url=jobs.url)
        assert sealed_batches.all_groups(jobs.server.settings, "jobs") == []
        assert set(jobs.plain.keys()) <= others
    with pytest.raises(ValueError, match="group"):
        pressure.forget_group("jobs", "a b", url=jobs.url)
