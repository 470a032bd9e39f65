"""Spark's steps on real servers, without Spark: a sink puts parts into the queue."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from apressure import AsyncQueue, QueueClosedError
from apressure.spark import close_queue
from apressure.spark.engine.steps import BatchLostError, NoRoom
from tests.integration.spark.support import Jobs, put_parts, stage, texts

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")
pytestmark = pytest.mark.leaves_keys


def test_parts_are_put_in_order(jobs: Jobs) -> None:
    parts = [stage(jobs, "a", texts(10)), stage(jobs, "b", texts(5000, 10)), stage(jobs, "c", texts(3, 5010))]
    todo = jobs.sink.choose_parts("w", 0, 0, parts)
    assert jobs.plain.ttl(jobs.keys.part("w", "b")) == -1
    put_parts(jobs, 0, todo)
    assert jobs.waiting() == texts(5013)
    size = sum(map(len, texts(5013)))
    assert jobs.statistics() == [5013, size, 0, 0]
    assert jobs.plain.hgetall(jobs.keys.sinks) == {b"w": b"0"}
    assert jobs.plain.keys("*part*") == jobs.plain.keys("*todo*") == []
    assert jobs.plain.ttl(jobs.keys.queue.messages) == -1


def test_a_repeated_commit_finishes_the_chosen_parts_and_drops_its_own(jobs: Jobs) -> None:
    first = [stage(jobs, "a", texts(5000)), stage(jobs, "b", texts(10, 5000))]
    jobs.plain.rpush(jobs.keys.queue.messages, b"earlier")  # so that it cannot all be renamed
    todo = jobs.sink.choose_parts("w", 3, 0, first)
    assert todo is not None
    assert isinstance(jobs.sink.put_part("w", 3, todo, True), str)  # and then it dies
    second = [stage(jobs, "c", texts(5010))]
    again = jobs.sink.choose_parts("w", 3, 0, second)
    assert again == todo
    assert jobs.plain.exists(jobs.keys.part("w", "c")) == 0
    put_parts(jobs, 3, again)
    assert jobs.waiting() == [b"earlier", *texts(5010)]
    # A third time, when all is done.
    third = [stage(jobs, "d", texts(5010))]
    assert jobs.sink.choose_parts("w", 3, 0, third) is None
    assert jobs.plain.keys("*part*") == []
    assert len(jobs.waiting()) == 5011


def test_an_empty_replay_finishes_the_chosen_parts(jobs: Jobs) -> None:
    assert jobs.sink.choose_parts("w", 2, 0, []) is None  # nothing to do, and nothing to remember
    assert jobs.plain.exists(jobs.keys.sinks) == 0
    todo = jobs.sink.choose_parts("w", 3, 0, [stage(jobs, "a", texts(3))])
    assert jobs.sink.choose_parts("w", 3, 0, []) == todo


def test_a_failed_replay_deletes_no_chosen_part(jobs: Jobs) -> None:
    jobs.plain.set(jobs.keys.queue.bound, 2)
    todo = jobs.sink.choose_parts("w", 3, 0, [stage(jobs, "a", texts(5))])
    assert jobs.sink.put_part("w", 3, todo or "", True) == todo  # some of it is in the queue
    stage(jobs, "b", texts(5))  # the replay's; another task of it failed
    for token in ("a", "b"):
        jobs.sink.discard("w", token)
    assert jobs.plain.llen(jobs.keys.part("w", "a")) == 3
    assert jobs.plain.exists(jobs.keys.part("w", "b")) == 0
    jobs.plain.set(jobs.keys.queue.bound, 0)
    put_parts(jobs, 3, jobs.sink.choose_parts("w", 3, 0, [stage(jobs, "c", texts(5))]))
    assert jobs.waiting() == texts(5)


def test_the_expiry_of_parts_can_be_extended(jobs: Jobs) -> None:
    todo = jobs.sink.choose_parts("w", 0, 1000, [stage(jobs, "a", texts(3)), stage(jobs, "b", texts(3))])
    jobs.sink.extend("w", 60_000, ["a", "b"])
    for key in (jobs.keys.todo("w"), jobs.keys.part("w", "a"), jobs.keys.part("w", "b")):
        assert jobs.plain.ttl(key) > 30
    put_parts(jobs, 0, todo, remember=False)
    assert jobs.plain.ttl(jobs.keys.queue.messages) == -1


def test_choosing_parts_may_be_repeated(jobs: Jobs) -> None:
    parts = [stage(jobs, "a", texts(5))]
    assert jobs.sink.choose_parts("w", 0, 0, parts) == jobs.sink.choose_parts("w", 0, 0, parts)
    assert jobs.plain.llen(jobs.keys.part("w", "a")) == 5


def test_a_part_that_is_gone_is_an_error(jobs: Jobs) -> None:
    part = stage(jobs, "a", texts(5))
    jobs.plain.delete(jobs.keys.part("w", "a"))
    with pytest.raises(BatchLostError, match="stagingTtl"):
        jobs.sink.choose_parts("w", 0, 0, [part])
    assert jobs.plain.exists(jobs.keys.todo("w")) == 0


def test_a_bound_is_respected_and_waited_for(jobs: Jobs) -> None:
    keys = jobs.keys.queue
    jobs.plain.set(keys.bound, 4)
    todo = jobs.sink.choose_parts("w", 0, 0, [stage(jobs, "a", texts(10))])
    assert todo is not None
    assert jobs.sink.put_part("w", 0, todo, True) == todo
    assert jobs.waiting() == texts(4)
    assert jobs.plain.llen(keys.not_full) == 0
    assert isinstance(jobs.sink.put_part("w", 0, todo, True), NoRoom)
    jobs.plain.rpop(keys.messages, 3)
    assert jobs.sink.put_part("w", 0, todo, True) == todo
    assert jobs.waiting() == texts(4, 3)


def test_room_is_left_for_the_permit_of_a_plain_consumer(jobs: Jobs) -> None:
    keys = jobs.keys.queue
    jobs.plain.set(keys.bound, 1)
    todo = jobs.sink.choose_parts("w", 0, 0, [stage(jobs, "a", texts(3))])
    assert todo is not None
    assert jobs.sink.put_part("w", 0, todo, True) == todo
    jobs.plain.rpop(keys.free("consumer"))
    jobs.plain.rpop(keys.messages)
    assert isinstance(jobs.sink.put_part("w", 0, todo, True), NoRoom)
    assert jobs.plain.llen(keys.not_full) == 0
    jobs.plain.lpush(keys.not_full, 0)
    assert jobs.sink.put_part("w", 0, todo, True) == todo
    assert jobs.waiting() == texts(1, 1)
    assert jobs.plain.llen(keys.not_full) == 0
    jobs.plain.lpush(keys.free("consumer"), 0)


def test_a_write_that_is_never_repeated_expires(jobs: Jobs) -> None:
    todo = jobs.sink.choose_parts("w", 0, 60_000, [stage(jobs, "a", texts(10)), stage(jobs, "b", texts(10))])
    assert 0 < jobs.plain.ttl(jobs.keys.todo("w")) <= 60
    assert 0 < jobs.plain.ttl(jobs.keys.part("w", "b")) <= 60
    put_parts(jobs, 0, todo, remember=False)
    assert jobs.plain.ttl(jobs.keys.queue.messages) == -1  # it was renamed
    assert jobs.plain.exists(jobs.keys.sinks) == 0


def test_a_blocked_consumer_wakes_when_a_part_becomes_the_queue(url: str, jobs: Jobs) -> None:
    async def story() -> None:
        async with AsyncQueue("jobs", url=url) as queue:
            getting = asyncio.create_task(queue.get())
            async with asyncio.timeout(30):
                while not jobs.plain.info("clients")["blocked_clients"]:
                    await asyncio.sleep(0.005)
            todo = jobs.sink.choose_parts("w", 0, 0, [stage(jobs, "a", texts(3))])
            put_parts(jobs, 0, todo)
            assert await asyncio.wait_for(getting, 30) == texts(1)[0]

    asyncio.run(story())


def test_a_closed_queue_takes_no_parts(url: str, jobs: Jobs) -> None:
    part = stage(jobs, "a", texts(3))
    for _ in range(2):
        close_queue("jobs", url=url)
    with pytest.raises(QueueClosedError, match="closed"):
        jobs.sink.choose_parts("w", 0, 0, [part])
    assert jobs.waiting() == []


def test_threads_close_a_queue_over_connections_of_their_own(url: str, jobs: Jobs) -> None:
    role = jobs.keys.queue.free("producer")
    jobs.plain.lpop(role)
    before = len(jobs.plain.client_list())
    with ThreadPoolExecutor(4) as pool:
        closing = [pool.submit(close_queue, "jobs", url=url) for _ in range(4)]
        time.sleep(0.5)
        during = len(jobs.plain.client_list())
        jobs.plain.lpush(role, 1)
        for one in closing:
            one.result()
    assert during == before + 4
    assert jobs.source.measure() == (0, 0, True)
    deadline = time.monotonic() + 5
    while len(jobs.plain.client_list()) > before:  # the server sees the ends a little later
        assert time.monotonic() < deadline
        time.sleep(0.01)
