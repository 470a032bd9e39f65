"""Spark's steps on real servers, without Spark: sealing, adopting, fencing, publishing, giving back."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    PermissionDeniedError,
    QueueClosedError,
    QueueDoesNotExistError,
    ScriptingRefusedError,
    ServerError,
    ServerUnavailableError,
)
from apressure.connection.blocking import Blocking
from apressure.embedded import EmbeddedServer
from apressure.spark import close_queue, flights
from apressure.spark.options import Options
from apressure.spark.steps import BatchLostError, Busy, Full, GroupTakenError, Steps, find
from tests.integration import acl_roles
from tests.integration.acl_roles import rights, without
from tests.servers import admin

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")
pytestmark = pytest.mark.leaves_keys


def texts(count: int, first: int = 0) -> list[bytes]:
    return [b"message %d" % number for number in range(first, first + count)]


@dataclasses.dataclass
class Place:
    """A queue, seen by Spark's steps, by plain commands, and by an asyncio client."""

    url: str
    plain: redis.Redis
    steps: Steps

    def put(self, messages: list[bytes], name: str = "jobs") -> None:
        async def put() -> None:
            async with AsyncQueue(name, url=self.url) as queue:
                await queue.put_many(messages, timeout=5)

        asyncio.run(put())

    def statistics(self) -> list[int]:
        return [int(value or 0) for value in self.plain.mget(self.steps.keys.queue.statistics)]

    def waiting(self) -> list[bytes]:
        return self.plain.lrange(self.steps.keys.queue.messages, 0, -1)[::-1]

    def batch(self, number: int, group: str = "g") -> list[bytes]:
        return self.plain.lrange(self.steps.keys.batch(group, number), 0, -1)[::-1]

    def drain(self, epoch: int, start: int, most: int) -> list[int]:
        """Seal batches until there is nothing more."""
        sealed = []
        while (answer := seal(self.steps, epoch, start, most)) is not None:
            assert isinstance(answer, int)
            sealed.append(answer)
            start = answer
        return sealed


def seal(steps: Steps, epoch: int, start: int, most: int, **more: Any) -> Any:
    answer: Any = True
    while answer is True:
        answer = steps.seal("g", epoch, start, most, **more)
    return answer


@pytest.fixture
def place(url: str, server: EmbeddedServer) -> Iterator[Place]:
    blocking = Blocking(Options.of({"url": url, "queue": "jobs"}).settings())
    steps = Steps(blocking, "__pressure__", "jobs")
    steps.create(0)
    with admin(server) as plain:
        yield Place(url, plain, steps)
    blocking.close()


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


# Writing.


def stage(place: Place, token: str, messages: list[bytes], write: str = "w") -> tuple[str, int, int]:
    key = place.steps.keys.part(write, token)
    place.plain.lpush(key, *messages)
    place.plain.pexpire(key, 60_000)
    return token, len(messages), sum(map(len, messages))


def publish(place: Place, batch: int, todo: str | None, remember: bool = True) -> None:
    while todo:
        answer = place.steps.publish("w", batch, todo, remember)
        assert isinstance(answer, str)
        todo = answer


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


# What the doctor does.


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


def test_a_queue_that_is_gone_gets_nothing_back(place: Place) -> None:
    place.put(texts(3))
    epoch, _, _ = place.steps.adopt("g")
    seal(place.steps, epoch, 0, 10)
    place.plain.delete(place.steps.keys.queue.bound)
    settings = place.steps.server.settings
    with pytest.raises(QueueDoesNotExistError):
        flights.give_back(settings, "jobs", "g")
    (flight,) = flights.look(settings, "jobs")
    assert flight.messages == 3


# The rights.

DOCUMENT = Path(__file__).parents[2] / "docs" / "spark.md"


def documented() -> list[str]:
    (block,) = re.findall(r"```sh\n(redis-cli ACL SETUSER .*?)```", DOCUMENT.read_text(), re.DOTALL)
    return shlex.split(block.replace("\\\n", " "))[4:]


def use_everything(server: EmbeddedServer, rules: list[str]) -> None:
    """Do with those rights whatever Spark and the doctor do to a queue, what dead clients left included."""
    with admin(server) as plain:
        plain.flushall()
        plain.execute_command("SCRIPT", "FLUSH")
        plain.execute_command("ACL", "SETUSER", "spark", *rules, ">secret")
        options = Options.of({"url": server.url, "username": "spark", "password": "secret", "queue": "orders"})
        blocking = Blocking(options.settings())
        try:
            place = Place(server.url, plain, Steps(blocking, "__pressure__", "orders"))
            steps, keys = place.steps, place.steps.keys.queue
            steps.create(0)
            place.put(texts(5000), "orders")
            plain.lpush(keys.inflight, b"b")
            plain.hset(keys.apart, "1", b"2:a")
            for role in ("consumer", "producer"):
                plain.hset(keys.lease(role), mapping={"token": "t", "uid": "dead", "deadline": 1})
                plain.set(keys.claim_until(role), 1)
                plain.lpush(keys.claim(role), 1, 1)
                plain.lpush(keys.free(role), 1, 1)
            plain.lpush(keys.not_full, 1, 1)
            epoch, _, _ = steps.adopt("g")
            assert steps.claim("consumer", 0.1)
            assert seal(steps, epoch, 0, 10, held=True) == 1
            assert seal(steps, epoch, 1, 0) == 2
            length, found = steps.server.together(
                (b"LLEN", steps.keys.batch("g", 1)), (b"LRANGE", steps.keys.batch("g", 1), 0, -1)
            )
            assert length == len(found) == 10
            assert steps.slices("g", epoch, 1, 1) == [(0, 10)]
            steps.commit("g", epoch, 1, 1)
            assert steps.length() == steps.measure()[1] == 0
            assert flights.look(blocking.settings, "orders")[0].batches == 1
            assert flights.give_back(blocking.settings, "orders", "g") == 4992
            plain.set(keys.bound, 4993)
            push = b"$1\r\na\r\n$1\r\nb\r\n"
            assert blocking.push_once(steps.keys.part("w", "a"), 2, push, 60_000) == 2
            assert steps.exists()
            for number, remember in enumerate((True, False)):
                token = "a" if remember else "b"
                if not remember:
                    plain.delete(keys.messages)
                    blocking.push_once(steps.keys.part("w", token), 2, push, 60_000)
                todo = steps.record("w", number, 0 if remember else 60_000, [(token, 2, 2)])
                while todo:
                    answer = steps.publish("w", number, todo, remember)
                    if isinstance(answer, Full):
                        steps.await_room(0.01)
                        plain.delete(keys.messages)
                    else:
                        assert isinstance(answer, str)
                        todo = answer
                if not remember:
                    steps.keep("w", 60_000, ["b"])
            blocking.push_once(steps.keys.part("w", "c"), 2, push, 60_000)
            steps.discard("w", "c")
            steps.await_message(0.01)
            assert steps.close() == 1
        finally:
            blocking.close()


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_the_rights_of_the_docs_are_enough_and_each_is_needed(
    make_server: Callable[..., EmbeddedServer], kind: str
) -> None:
    server = make_server(kind)
    rules = documented()
    use_everything(server, rules)
    superfluous = []
    for right in rights(rules):
        try:
            use_everything(server, without(rules, right))
        except (PermissionDeniedError, ScriptingRefusedError, ServerError):
            continue
        superfluous.append(right)
    assert not superfluous


def test_an_operator_may_look_for_batches(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server()
    with admin(server) as plain:
        plain.execute_command("ACL", "SETUSER", "operator", *acl_roles.documented(False)["operator"], ">secret")
    steps = Steps(Blocking(Options.of({"url": server.url, "queue": "orders"}).settings()), "__pressure__", "orders")
    steps.create(0)
    epoch, _, _ = steps.adopt("g")
    Place(server.url, None, steps).put(texts(3), "orders")  # type: ignore[arg-type]
    assert seal(steps, epoch, 0, 0) == 1
    options = Options.of({"url": server.url, "username": "operator", "password": "secret", "queue": "orders"})
    (flight,) = flights.look(options.settings(), "orders")
    assert flight.messages == 3
    steps.server.close()


# The connection.


def test_a_server_that_comes_back_is_used_again(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server()
    blocking = Blocking(Options.of({"url": server.url, "queue": "jobs", "retryTimeout": "10"}).settings())
    steps = Steps(blocking, "__pressure__", "jobs")
    steps.create(0)
    with admin(server) as plain:
        plain.client_kill_filter(_type="normal", skipme=True)
        plain.script_flush()
    assert steps.measure() == (0, 0, False)
    blocking.close()


def test_a_command_whose_answer_does_not_come_is_not_sent_again(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server()
    options = Options.of({"url": server.url, "queue": "jobs", "responseTimeout": "0.5"})
    blocking = Blocking(options.settings())
    blocking.ask(b"PING")
    os.kill(server.pid, signal.SIGSTOP)
    with pytest.raises(ConnectionError):
        blocking.push_once(b"x", 1, b"$1\r\ny\r\n", 60_000)
    os.kill(server.pid, signal.SIGCONT)
    assert blocking.ask(b"LLEN", b"x") == 1
    blocking.close()


def test_a_server_that_is_away_is_an_error_in_the_end() -> None:
    blocking = Blocking(Options.of({"url": "redis://127.0.0.1:1", "queue": "jobs", "retryTimeout": "0.2"}).settings())
    with pytest.raises(ServerUnavailableError, match=r"cannot reach 127.0.0.1:1 .*tried again for 0.2 seconds"):
        Steps(blocking, "__pressure__", "jobs").measure()
