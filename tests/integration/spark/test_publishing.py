"""Spark's steps on real servers, without Spark: what a sink publishes."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from apressure import (
    AsyncQueue,
    QueueClosedError,
)
from apressure.spark import close_queue
from apressure.spark.steps import BatchLostError, Full
from tests.integration.spark.place import Place, publish, stage, texts

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")
pytestmark = pytest.mark.leaves_keys


def test_parts_are_published_in_order(place: Place) -> None:
    parts = [stage(place, "a", texts(10)), stage(place, "b", texts(5000, 10)), stage(place, "c", texts(3, 5010))]
    todo = place.steps.record("w", 0, 0, parts)
    assert place.plain.ttl(place.steps.keys.part("w", "b")) == -1
    publish(place, 0, todo)
    assert place.waiting() == texts(5013)
    size = sum(map(len, texts(5013)))
    assert place.statistics() == [5013, size, 0, 0]
    assert place.plain.hgetall(place.steps.keys.sinks) == {b"w": b"0"}
    assert place.plain.keys("*part*") == place.plain.keys("*todo*") == []
    assert place.plain.ttl(place.steps.keys.queue.messages) == -1


def test_a_replayed_commit_finishes_the_recorded_parts_and_drops_its_own(place: Place) -> None:
    first = [stage(place, "a", texts(5000)), stage(place, "b", texts(10, 5000))]
    place.plain.rpush(place.steps.keys.queue.messages, b"earlier")  # so that it cannot all be renamed
    todo = place.steps.record("w", 3, 0, first)
    assert todo is not None
    assert isinstance(place.steps.publish("w", 3, todo, True), str)  # and then it dies
    second = [stage(place, "c", texts(5010))]
    again = place.steps.record("w", 3, 0, second)
    assert again == todo
    assert place.plain.exists(place.steps.keys.part("w", "c")) == 0
    publish(place, 3, again)
    assert place.waiting() == [b"earlier", *texts(5010)]
    # A third time, when all is done.
    third = [stage(place, "d", texts(5010))]
    assert place.steps.record("w", 3, 0, third) is None
    assert place.plain.keys("*part*") == []
    assert len(place.waiting()) == 5011


def test_an_empty_replay_finishes_the_recorded_parts(place: Place) -> None:
    assert place.steps.record("w", 2, 0, []) is None  # nothing to do, and nothing to remember
    assert place.plain.exists(place.steps.keys.sinks) == 0
    todo = place.steps.record("w", 3, 0, [stage(place, "a", texts(3))])
    assert place.steps.record("w", 3, 0, []) == todo


def test_a_failed_replay_forgets_nothing_that_a_commit_has_chosen(place: Place) -> None:
    place.plain.set(place.steps.keys.queue.bound, 2)
    todo = place.steps.record("w", 3, 0, [stage(place, "a", texts(5))])
    assert place.steps.publish("w", 3, todo or "", True) == todo  # some of it is in the queue
    stage(place, "b", texts(5))  # the replay's; another task of it failed
    for token in ("a", "b"):
        place.steps.discard("w", token)
    assert place.plain.llen(place.steps.keys.part("w", "a")) == 3
    assert place.plain.exists(place.steps.keys.part("w", "b")) == 0
    place.plain.set(place.steps.keys.queue.bound, 0)
    publish(place, 3, place.steps.record("w", 3, 0, [stage(place, "c", texts(5))]))
    assert place.waiting() == texts(5)


def test_what_is_still_to_be_written_can_be_kept(place: Place) -> None:
    todo = place.steps.record("w", 0, 1000, [stage(place, "a", texts(3)), stage(place, "b", texts(3))])
    place.steps.keep("w", 60_000, ["a", "b"])
    for key in (place.steps.keys.todo("w"), place.steps.keys.part("w", "a"), place.steps.keys.part("w", "b")):
        assert place.plain.ttl(key) > 30
    publish(place, 0, todo, remember=False)
    assert place.plain.ttl(place.steps.keys.queue.messages) == -1


def test_recording_may_be_repeated(place: Place) -> None:
    parts = [stage(place, "a", texts(5))]
    assert place.steps.record("w", 0, 0, parts) == place.steps.record("w", 0, 0, parts)
    assert place.plain.llen(place.steps.keys.part("w", "a")) == 5


def test_a_part_that_is_gone_is_an_error(place: Place) -> None:
    part = stage(place, "a", texts(5))
    place.plain.delete(place.steps.keys.part("w", "a"))
    with pytest.raises(BatchLostError, match="stagingTtl"):
        place.steps.record("w", 0, 0, [part])
    assert place.plain.exists(place.steps.keys.todo("w")) == 0


def test_a_bound_is_respected_and_waited_for(place: Place) -> None:
    keys = place.steps.keys.queue
    place.plain.set(keys.bound, 4)
    todo = place.steps.record("w", 0, 0, [stage(place, "a", texts(10))])
    assert todo is not None
    assert place.steps.publish("w", 0, todo, True) == todo
    assert place.waiting() == texts(4)
    assert place.plain.llen(keys.not_full) == 0
    assert isinstance(place.steps.publish("w", 0, todo, True), Full)
    place.plain.rpop(keys.messages, 3)
    publish_some = place.steps.publish("w", 0, todo, True)
    assert publish_some == todo
    assert place.waiting() == texts(4, 3)


def test_a_write_that_nobody_repeats_is_forgotten_in_the_end(place: Place) -> None:
    todo = place.steps.record("w", 0, 60_000, [stage(place, "a", texts(10)), stage(place, "b", texts(10))])
    assert 0 < place.plain.ttl(place.steps.keys.todo("w")) <= 60
    assert 0 < place.plain.ttl(place.steps.keys.part("w", "b")) <= 60
    publish(place, 0, todo, remember=False)
    assert place.plain.ttl(place.steps.keys.queue.messages) == -1  # it was renamed
    assert place.plain.exists(place.steps.keys.sinks) == 0


def test_a_blocked_consumer_wakes_when_a_part_becomes_the_queue(url: str, place: Place) -> None:
    async def story() -> None:
        async with AsyncQueue("jobs", url=url) as queue:
            getting = asyncio.create_task(queue.get())
            await asyncio.sleep(0.2)
            todo = place.steps.record("w", 0, 0, [stage(place, "a", texts(3))])
            publish(place, 0, todo)
            assert await asyncio.wait_for(getting, 5) == texts(1)[0]

    asyncio.run(story())


def test_nothing_goes_into_a_closed_queue(url: str, place: Place) -> None:
    part = stage(place, "a", texts(3))
    for _ in range(2):
        close_queue("jobs", url=url)
    with pytest.raises(QueueClosedError, match="closed"):
        place.steps.record("w", 0, 0, [part])
    assert place.waiting() == []


def test_threads_that_close_a_queue_share_no_connection_and_leave_none(url: str, place: Place) -> None:
    role = place.steps.keys.queue.free("producer")
    place.plain.lpop(role)
    before = len(place.plain.client_list())
    with ThreadPoolExecutor(4) as pool:
        closing = [pool.submit(close_queue, "jobs", url=url) for _ in range(4)]
        time.sleep(0.5)
        during = len(place.plain.client_list())
        place.plain.lpush(role, 1)
        for one in closing:
            one.result()
    assert during == before + 4
    assert place.steps.measure() == (0, 0, True)
    deadline = time.monotonic() + 5
    while len(place.plain.client_list()) > before:  # the server sees the ends a little later
        assert time.monotonic() < deadline
        time.sleep(0.01)
