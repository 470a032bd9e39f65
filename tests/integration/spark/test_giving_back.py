"""Spark's steps on real servers, without Spark: what a group has taken goes back."""

from __future__ import annotations

from typing import Any

import pytest

from apressure import (
    QueueDoesNotExistError,
)
from apressure.spark import flights
from apressure.spark.steps import GroupTakenError, Steps
from tests.integration.spark.place import Place, seal, texts

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")
pytestmark = pytest.mark.leaves_keys


@pytest.mark.parametrize("count", [30, 9000])
def test_what_a_group_has_taken_goes_back_in_order(place: Place, count: int) -> None:
    place.put(texts(count))
    epoch, _, _ = place.steps.adopt("g")
    assert seal(place.steps, epoch, 0, count // 3) == 1
    assert seal(place.steps, epoch, 1, count // 3) == 2
    place.steps.commit("g", epoch, 1, 1)
    settings = place.steps.server.settings
    (flight,) = flights.look(settings, "jobs")
    assert (flight.group, flight.batches, flight.messages) == ("g", 1, count // 3)
    assert flight.seconds is not None
    place.plain.lmove(place.steps.keys.queue.messages, place.steps.keys.batch("g", 3), "RIGHT", "LEFT")  # half-filled
    place.plain.incr(place.steps.keys.queue.messages_count("consumer"))
    assert flights.give_back(settings, "jobs", "g") == count // 3 + 1
    assert place.waiting() == texts(count)[count // 3 :]
    assert flights.look(settings, "jobs") == []
    assert flights.give_back(settings, "jobs", "g") == flights.give_back(settings, "jobs", "other") == 0
    size = sum(map(len, texts(count // 3)))
    assert place.statistics()[2] == count // 3
    assert place.statistics()[3] in (size, size - len(b"message %d" % (2 * (count // 3))))  # (the move above by hand)
    # Its query is refused, and so is its checkpoint; a new one begins behind what was given back.
    with pytest.raises(GroupTakenError):
        seal(place.steps, epoch, 2, 10)
    epoch, committed, sealed = place.steps.adopt("g")
    assert committed == sealed == 3
    with pytest.raises(GroupTakenError, match="they were given back"):
        seal(place.steps, epoch, 2, 10)
    assert seal(place.steps, epoch, 3, 10) == 4
    assert place.batch(4) == texts(10, count // 3)


def test_giving_back_goes_on_after_a_crash(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put(texts(9000))
    epoch, _, _ = place.steps.adopt("g")
    assert place.drain(epoch, 0, 4500) == [1, 2]
    settings = place.steps.server.settings
    calls = 0

    def run(self: Steps, name: str, *arguments: Any) -> Any:
        nonlocal calls
        calls += name == "return"
        if calls == 3:  # (the first one is of a half-filled batch, which there is none of)
            raise KeyboardInterrupt
        return original(self, name, *arguments)

    original = Steps._run
    monkeypatch.setattr(Steps, "_run", run)
    with pytest.raises(KeyboardInterrupt):
        flights.give_back(settings, "jobs", "g")
    monkeypatch.undo()
    assert len(place.waiting()) == 4000
    with pytest.raises(GroupTakenError):
        seal(place.steps, place.steps.adopt("g")[0], 1, 10)
    (flight,) = flights.look(settings, "jobs")
    assert (flight.batches, flight.messages) == (2, 5000)
    assert flights.give_back(settings, "jobs", "g") == 5000
    assert place.waiting() == texts(9000)
    assert flights.look(settings, "jobs") == []
    assert set(place.plain.hgetall(place.steps.keys.state("g"))) == {b"epoch", b"committed", b"sealed", b"rows"}


def test_what_a_query_took_before_it_was_refused_goes_back_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put(texts(100))
    epoch, _, _ = place.steps.adopt("g")
    assert seal(place.steps, epoch, 0, 10) == 1
    original = Steps.adopt

    def adopt(self: Steps, group: str) -> tuple[int, int, int]:
        for done in (1, 2):
            place.steps.commit("g", epoch, done, done)
            assert seal(place.steps, epoch, done, 10) == done + 1
        assert place.steps.seal("g", epoch, 3, 5000) == 4
        return original(self, group)

    monkeypatch.setattr(Steps, "adopt", adopt)
    assert flights.give_back(place.steps.server.settings, "jobs", "g") == 80
    assert place.waiting() == texts(80, 20)
    assert flights.look(place.steps.server.settings, "jobs") == []


def test_a_queue_that_is_gone_gets_nothing_back(place: Place) -> None:
    place.put(texts(3))
    epoch, _, _ = place.steps.adopt("g")
    seal(place.steps, epoch, 0, 10)
    place.plain.delete(place.steps.keys.queue.bound)
    settings = place.steps.server.settings
    with pytest.raises(QueueDoesNotExistError, match="create it"):
        flights.give_back(settings, "jobs", "g")
    (flight,) = flights.look(settings, "jobs")
    assert flight.messages == 3
    assert place.steps.slices("g", epoch, 1, 1) == [(0, 3)]  # its query is not refused
