"""Spark's steps on real servers, without Spark: taking messages out, adopting, fencing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apressure import (
    AsyncQueue,
    QueueDoesNotExistError,
)
from apressure.spark import flights
from apressure.spark.steps import BatchLostError, Busy, GroupTakenError, Steps, find
from tests.integration.spark.place import Place, publish, seal, stage, texts

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")
pytestmark = pytest.mark.leaves_keys


def test_a_whole_queue_becomes_a_batch(place: Place) -> None:
    place.put(texts(10))
    epoch, committed, sealed = place.steps.adopt("g")
    assert (committed, sealed) == (0, 0)
    assert seal(place.steps, epoch, 0, 100) == 1
    assert place.batch(1) == texts(10)
    assert place.waiting() == []
    size = sum(map(len, texts(10)))
    assert place.statistics() == [10, size, 10, size]
    assert place.steps.slices("g", epoch, 1, 1) == [(0, 10)]


@pytest.mark.parametrize("most", [1, 7, 4000, 10_000, 0])
def test_batches_are_the_messages_in_order(place: Place, most: int) -> None:
    count = 9001 if most != 1 else 20
    place.put(texts(count))
    epoch, _, _ = place.steps.adopt("g")
    numbers = place.drain(epoch, 0, most)
    assert len(numbers) == (-(-count // most) if most else 1)
    assert [message for number in numbers for message in place.batch(number)] == texts(count)
    assert place.steps.slices("g", epoch, 1, len(numbers))[-1][0] == (len(numbers) - 1) * most
    size = sum(map(len, texts(count)))
    assert place.statistics() == [count, size, count, size]


def test_a_step_moves_no_more_than_it_should(place: Place) -> None:
    place.put(texts(9000))
    epoch, _, _ = place.steps.adopt("g")
    assert place.steps.seal("g", epoch, 0, 8500) is True
    assert len(place.batch(1)) == 4000
    # A process that died here: the next one fills the batch further.
    epoch, _, sealed = place.steps.adopt("g")
    assert sealed == 0
    assert seal(place.steps, epoch, 0, 8500) == 1
    assert place.batch(1) == texts(8500)


def test_a_step_with_large_messages_is_short_too(place: Place) -> None:
    large = [bytes([65 + number]) * 300_000 for number in range(20)]
    place.put(large)
    epoch, _, _ = place.steps.adopt("g")
    assert place.steps.seal("g", epoch, 0, 19) is True
    assert 1 <= len(place.batch(1)) <= 8
    assert seal(place.steps, epoch, 0, 19) == 1
    assert place.batch(1) == large[:19]
    assert place.statistics()[2:] == [19, 19 * 300_000]
    place.plain.rpush(place.steps.keys.queue.messages, b"earlier")
    todo = place.steps.record("w", 0, 0, [stage(place, "a", large)])
    assert place.steps.publish("w", 0, todo or "", True) == todo
    assert 1 < len(place.waiting()) <= 12
    publish(place, 0, todo)
    assert place.waiting() == [b"earlier", large[19], *large]
    assert flights.give_back(place.steps.server.settings, "jobs", "g") == 19
    assert place.waiting() == [*large[:19], b"earlier", large[19], *large]


def test_a_batch_that_was_sealed_and_not_logged_is_adopted(place: Place) -> None:
    place.put(texts(5))
    epoch, _, _ = place.steps.adopt("g")
    assert seal(place.steps, epoch, 0, 100) == 1
    place.put(texts(5, 5))
    epoch, _, sealed = place.steps.adopt("g")
    assert sealed == 1
    assert seal(place.steps, epoch, 0, 100) == 1
    assert place.batch(1) == texts(5)
    assert seal(place.steps, epoch, 1, 100) == 2
    assert place.batch(2) == texts(5, 5)


def test_an_older_query_of_the_group_is_refused(place: Place) -> None:
    place.put(texts(5))
    older, _, _ = place.steps.adopt("g")
    newer, _, _ = place.steps.adopt("g")
    assert newer > older
    for step in (
        lambda: seal(place.steps, older, 0, 10),
        lambda: place.steps.slices("g", older, 1, 1),
        lambda: place.steps.commit("g", older, 1, 1),
    ):
        with pytest.raises(GroupTakenError, match="another query reads for the group 'g'"):
            step()
    assert place.waiting() == texts(5)
    epoch, _, _ = place.steps.adopt("other")  # a group of its own
    place.steps.commit("g", newer, 1, 1)
    place.steps.commit("other", epoch, 1, 1)


def test_a_query_whose_state_is_gone_says_so(place: Place) -> None:
    epoch, _, _ = place.steps.adopt("g")
    place.plain.delete(place.steps.keys.state("g"))
    with pytest.raises(GroupTakenError, match="deleted, or lost in a failover"):
        seal(place.steps, epoch, 0, 10)
    # The checkpoint goes on where it was.
    place.put(texts(3))
    again, _, _ = place.steps.adopt("g")
    with pytest.raises(GroupTakenError, match="another query reads"):
        seal(place.steps, epoch, 7, 10)  # its number does not come again
    assert seal(place.steps, again, 7, 10) == 8
    assert place.steps.adopt("g")[1:] == (7, 8)


def test_a_checkpoint_that_is_behind_is_refused(place: Place) -> None:
    place.put(texts(3))
    epoch, _, _ = place.steps.adopt("g")
    assert place.drain(epoch, 0, 1) == [1, 2, 3]
    place.steps.commit("g", epoch, 1, 2)
    with pytest.raises(GroupTakenError, match="this checkpoint has not read them"):
        seal(place.steps, epoch, 1, 1)


def test_a_commit_forgets_batches_and_may_come_twice(place: Place) -> None:
    place.put(texts(3))
    epoch, _, _ = place.steps.adopt("g")
    place.drain(epoch, 0, 1)
    for _ in range(2):
        place.steps.commit("g", epoch, 1, 2)
        assert [len(place.batch(number)) for number in (1, 2, 3)] == [0, 0, 1]
    state = place.plain.hgetall(place.steps.keys.state("g"))
    assert {key for key in state if b"-" in key} == {b"first-3", b"at-3"}
    assert place.steps.adopt("g")[1:] == (2, 3)


def test_a_batch_that_is_gone_is_an_error(place: Place) -> None:
    place.put(texts(3))
    epoch, _, _ = place.steps.adopt("g")
    place.drain(epoch, 0, 0)
    place.plain.delete(place.steps.keys.batch("g", 1))
    with pytest.raises(BatchLostError, match="batch 1 of the group 'g'"):
        place.steps.slices("g", epoch, 1, 1)


def test_an_empty_queue_costs_nothing_and_writes_nothing(place: Place) -> None:
    epoch, _, _ = place.steps.adopt("g")
    before = {key: place.plain.dump(key) for key in place.plain.scan_iter()}
    assert seal(place.steps, epoch, 0, 10) is None
    assert {key: place.plain.dump(key) for key in place.plain.scan_iter()} == before


def test_nothing_is_taken_behind_the_end_that_was_set(place: Place) -> None:
    place.put(texts(6))
    left, length, closed = place.steps.measure()
    assert (left, length, closed) == (0, 6, False)
    place.put(texts(6, 6))
    epoch, _, _ = place.steps.adopt("g")
    assert seal(place.steps, epoch, 0, 4, upto=6) == 1
    assert seal(place.steps, epoch, 1, 4, upto=6) == 2
    assert seal(place.steps, epoch, 2, 4, upto=6) is None
    assert place.batch(1) + place.batch(2) == texts(6)
    assert place.waiting() == texts(6, 6)


def test_a_producer_that_waits_for_room_goes_on(url: str, place: Place) -> None:
    async def story() -> None:
        steps = Steps(place.steps.server, "__pressure__", "narrow")
        steps.create(3)
        async with AsyncQueue("narrow", url=url) as queue:
            await queue.put_many(texts(3))
            blocked = asyncio.create_task(queue.put(b"one more"))
            await asyncio.sleep(0.2)
            assert not blocked.done()
            epoch, _, _ = steps.adopt("g")
            assert steps.seal("g", epoch, 0, 2) == 1  # not all of it: by moving
            await asyncio.wait_for(blocked, 5)
            assert steps.seal("g", epoch, 1, 10) == 2  # all of it: by renaming
            await asyncio.wait_for(queue.put_many(texts(3)), 5)
            assert place.plain.llen(steps.keys.queue.not_full) == 0

    asyncio.run(story())


def test_the_permit_says_at_once_that_there_is_room(place: Place) -> None:
    keys = place.steps.keys.queue
    place.plain.set(keys.bound, 3)
    place.put(texts(3))
    epoch, _, _ = place.steps.adopt("g")
    for start, most in ((0, 2), (1, 0)):  # by moving, and by renaming
        assert place.plain.llen(keys.not_full) == 0
        assert place.steps.seal("g", epoch, start, most) == start + 1
        assert place.plain.llen(keys.not_full) == 1
        if start == 0:
            place.put(texts(2))


def test_a_role_that_was_claimed_is_given_back_by_the_step(place: Place) -> None:
    keys = place.steps.keys.queue
    place.put(texts(3))
    epoch, _, _ = place.steps.adopt("g")
    assert place.steps.claim("consumer", 1)
    assert place.steps.seal("g", epoch, 0, 0, held=True) == 1
    todo = place.steps.record("w", 0, 0, [stage(place, "a", texts(3))])
    assert place.steps.claim("producer", 1)
    assert place.steps.publish("w", 0, todo or "", True, held=True) == ""
    for role in ("consumer", "producer"):
        assert place.plain.llen(keys.free(role)) == 1
        assert place.plain.exists(keys.claim(role)) == 0


def test_a_role_under_a_lease_is_waited_for(url: str, place: Place) -> None:
    async def story() -> None:
        async with AsyncQueue("jobs", url=url) as queue:
            await queue.put_many(texts(3))
            epoch, _, _ = place.steps.adopt("g")
            async with queue.consumer() as consumer:
                async for _ in consumer:
                    answer = await asyncio.to_thread(
                        place.steps.patiently, lambda held: place.steps.seal("g", epoch, 0, 10, held=held), 0.3
                    )
                    assert isinstance(answer, Busy)
                    assert answer.role == "consumer"
                    assert "consumer role of the queue 'jobs' is held" in str(place.steps.in_use(answer))
                    break
            assert seal(place.steps, epoch, 0, 10) == 1

    asyncio.run(story())


def test_a_plain_clients_role_is_waited_for_in_line(place: Place) -> None:
    place.put(texts(3))
    keys = place.steps.keys.queue
    epoch, _, _ = place.steps.adopt("g")
    place.plain.rpop(keys.free("consumer"))
    calls = 0

    def step(held: bool) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            place.plain.lpush(keys.free("consumer"), 1)  # it comes back while we wait for it the next time
        return place.steps.seal("g", epoch, 0, 10, held=held)

    assert place.steps.patiently(step, 5.0) == 1
    assert place.plain.llen(keys.free("consumer")) == 1
    assert place.plain.exists(keys.claim("consumer")) == 0


def test_what_a_dead_consumer_had_is_healed_first(place: Place) -> None:
    place.put(texts(5))
    keys = place.steps.keys.queue
    place.plain.lpush(keys.inflight, b"message -1")
    place.plain.hset(keys.apart, "1", b"2:message -2")
    place.plain.hset(keys.lease("consumer"), mapping={"token": "t", "uid": "dead", "deadline": 1, "next": 3})
    place.plain.delete(keys.free("consumer"))
    epoch, _, _ = place.steps.adopt("g")
    assert seal(place.steps, epoch, 0, 0) == 1
    assert place.batch(1) == [b"message -2", b"message -1", *texts(5)]
    assert place.plain.llen(keys.free("consumer")) == 1


def test_a_queue_that_is_not_there(place: Place) -> None:
    nowhere = Steps(place.steps.server, "__pressure__", "nowhere")
    epoch, _, _ = nowhere.adopt("g")
    with pytest.raises(QueueDoesNotExistError, match="'nowhere' does not exist"):
        nowhere.seal("g", epoch, 0, 10)
    with pytest.raises(QueueDoesNotExistError):
        nowhere.measure()


def test_what_was_taken_before_the_queue_was_deleted_is_sealed(place: Place) -> None:
    place.put(texts(9000))
    epoch, _, _ = place.steps.adopt("g")
    assert place.steps.seal("g", epoch, 0, 8500) is True
    place.plain.delete(place.steps.keys.queue.bound)
    assert place.steps.seal("g", epoch, 0, 8500) == 1
    assert len(place.batch(1)) == 4000


def test_queues_are_found_by_a_pattern(place: Place) -> None:
    for name in ("orders:0", "orders:1", "other"):
        Steps(place.steps.server, "__pressure__", name).create(0)
    assert find(place.steps.server, "__pressure__", "orders:*") == ["orders:0", "orders:1"]
