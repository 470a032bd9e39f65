"""Spark's steps on real servers, without Spark: sealing batches, reusing them, fencing older queries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apressure import AsyncQueue, QueueDoesNotExistError, QueueInUseError
from apressure.spark import sealed_batches
from apressure.spark.engine import looks
from apressure.spark.engine.source_steps import SourceSteps
from apressure.spark.engine.steps import BatchLostError, GroupTakenError, QueueSteps, find_queues, run_steps
from tests.integration.spark.support import Jobs, put_parts, seal, stage, texts

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")
pytestmark = pytest.mark.leaves_keys


def test_a_whole_queue_becomes_a_batch(jobs: Jobs) -> None:
    jobs.put(texts(10))
    epoch, committed, sealed = jobs.source.begin_epoch()
    assert (committed, sealed) == (0, 0)
    assert seal(jobs.source, epoch, 0, 100) == 1
    assert jobs.batch(1) == texts(10)
    assert jobs.waiting() == []
    size = sum(map(len, texts(10)))
    assert jobs.statistics() == [10, size, 10, size]
    assert jobs.source.batch_rows(epoch, 1, 1) == [(0, 10)]


def operate(jobs: Jobs, *names: str) -> None:
    async def do() -> None:
        async with AsyncQueue("jobs", url=jobs.url) as queue:
            for name in names:
                await getattr(queue, name)()

    asyncio.run(do())


@pytest.mark.parametrize("most", [0, 2])
def test_a_paused_queue_counts_as_empty(jobs: Jobs, most: int) -> None:
    epoch = jobs.begin(texts(4))
    operate(jobs, "pause")
    assert seal(jobs.source, epoch, 0, most) == "empty"
    assert jobs.waiting() == texts(4)
    operate(jobs, "resume")
    assert seal(jobs.source, epoch, 0, most) == 1
    operate(jobs, "pause", "close")
    assert jobs.source.seal(epoch, 1, most, allow_empty=True) == "empty"
    operate(jobs, "resume")
    assert jobs.source.seal(epoch, 1, most, allow_empty=True) == 2
    assert jobs.batch(1) + jobs.batch(2) == texts(4)


@pytest.mark.parametrize("most", [0, 5])
def test_a_batch_has_no_more_than_the_rate_allows(jobs: Jobs, most: int) -> None:
    """The limit of concurrency does not count here: a batch in flight is one for the query."""

    async def limit(count: int | None) -> None:
        async with AsyncQueue("jobs", url=jobs.url) as queue:
            await queue.set_rate(count, per=3600, burst=None if count is None else 3)
            await queue.set_concurrency(None if count is None else 1)

    epoch = jobs.begin(texts(8))
    asyncio.run(limit(3))
    assert seal(jobs.source, epoch, 0, most) == 1
    assert jobs.batch(1) == texts(3)
    assert seal(jobs.source, epoch, 1, most) == "empty"
    asyncio.run(limit(None))
    assert seal(jobs.source, epoch, 1, most) == 2
    assert jobs.batch(1) + jobs.batch(2) == texts(8)


@pytest.mark.parametrize("most", [1, 7, 4000, 10_000, 0])
def test_batches_are_the_messages_in_order(jobs: Jobs, most: int) -> None:
    count = 9001 if most != 1 else 20
    epoch = jobs.begin(texts(count))
    numbers = jobs.drain(epoch, 0, most)
    assert len(numbers) == (-(-count // most) if most else 1)
    assert [message for number in numbers for message in jobs.batch(number)] == texts(count)
    assert jobs.source.batch_rows(epoch, 1, len(numbers))[-1][0] == (len(numbers) - 1) * most
    size = sum(map(len, texts(count)))
    assert jobs.statistics() == [count, size, count, size]


def test_a_step_moves_a_limited_number_of_messages(jobs: Jobs) -> None:
    epoch = jobs.begin(texts(9000))
    assert jobs.source.seal(epoch, 0, 8500) == "more"
    assert len(jobs.batch(1)) == 4000
    # A process that died here: the next one fills the batch further.
    epoch, _, sealed = jobs.source.begin_epoch()
    assert sealed == 0
    assert seal(jobs.source, epoch, 0, 8500) == 1
    assert jobs.batch(1) == texts(8500)


def test_a_step_moves_a_limited_number_of_bytes(jobs: Jobs) -> None:
    large = [bytes([65 + number]) * 300_000 for number in range(20)]
    epoch = jobs.begin(large)
    assert jobs.source.seal(epoch, 0, 19) == "more"
    assert 1 <= len(jobs.batch(1)) <= 8
    assert seal(jobs.source, epoch, 0, 19) == 1
    assert jobs.batch(1) == large[:19]
    assert jobs.statistics()[2:] == [19, 19 * 300_000]
    jobs.plain.rpush(jobs.keys.queue.messages, b"earlier")
    todo = jobs.sink.choose_parts("w", 0, 0, [stage(jobs, "a", large)])
    assert jobs.sink.put_part("w", 0, todo or "", True) == todo
    assert 1 < len(jobs.waiting()) <= 12
    put_parts(jobs, 0, todo)
    assert jobs.waiting() == [b"earlier", large[19], *large]
    assert sealed_batches.give_back(jobs.server.settings, "jobs", "g") == 19
    assert jobs.waiting() == [*large[:19], b"earlier", large[19], *large]


@pytest.mark.parametrize("counted", [True, False])
def test_a_batch_has_a_limited_number_of_bytes(jobs: Jobs, counted: bool) -> None:
    """The statistics say how large the queue is. If another client did not count, the messages do."""
    large = [bytes([65 + number]) * 300_000 for number in range(20)]
    epoch = jobs.begin(large)
    if not counted:
        jobs.plain.decr(jobs.keys.queue.messages_count("producer"))
    assert jobs.source.seal(epoch, 0, 100, limit_bytes=2_000_000) == "more"
    # A process that died here: the next one knows how much is in the batch.
    epoch, _, _ = jobs.source.begin_epoch()
    sizes = []
    while isinstance(number := seal(jobs.source, epoch, len(sizes), 100, limit_bytes=2_000_000), int):
        sizes.append(sum(map(len, jobs.batch(number))))
    assert number == "empty"
    assert sum(sizes) == 6_000_000
    assert all(2_000_000 <= size < 3_400_000 for size in sizes[:-1])
    assert [message for number in range(1, len(sizes) + 1) for message in jobs.batch(number)] == large
    assert jobs.statistics()[2:] == [20, 6_000_000]
    # A queue that is small enough is renamed.
    jobs.put(large[:5])
    assert jobs.source.seal(epoch, len(sizes), 100, limit_bytes=2_000_000) == (len(sizes) + 1 if counted else "more")


def test_a_sealed_batch_that_spark_did_not_log_is_reused(jobs: Jobs) -> None:
    epoch = jobs.begin(texts(5))
    assert seal(jobs.source, epoch, 0, 100) == 1
    jobs.put(texts(5, 5))
    epoch, _, sealed = jobs.source.begin_epoch()
    assert sealed == 1
    assert seal(jobs.source, epoch, 0, 100) == 1
    assert jobs.batch(1) == texts(5)
    assert seal(jobs.source, epoch, 1, 100) == 2
    assert jobs.batch(2) == texts(5, 5)


def test_an_older_query_of_the_group_is_refused(jobs: Jobs) -> None:
    jobs.put(texts(5))
    older, _, _ = jobs.source.begin_epoch()
    newer, _, _ = jobs.source.begin_epoch()
    assert newer > older
    for step in (
        lambda: seal(jobs.source, older, 0, 10),
        lambda: jobs.source.batch_rows(older, 1, 1),
        lambda: jobs.source.commit(older, 1, 1),
    ):
        with pytest.raises(GroupTakenError, match="another query reads for the group 'g'"):
            step()
    assert jobs.waiting() == texts(5)
    other = SourceSteps(jobs.server, "jobs", "other")
    epoch, _, _ = other.begin_epoch()
    jobs.source.commit(newer, 1, 1)
    other.commit(epoch, 1, 1)


def test_a_query_whose_state_was_deleted_is_refused(jobs: Jobs) -> None:
    epoch, _, _ = jobs.source.begin_epoch()
    jobs.plain.delete(jobs.keys.state("g"))
    with pytest.raises(GroupTakenError, match="deleted, or lost in a failover"):
        seal(jobs.source, epoch, 0, 10)
    # The checkpoint goes on where it was.
    jobs.put(texts(3))
    again, _, _ = jobs.source.begin_epoch()
    with pytest.raises(GroupTakenError, match="another query reads"):
        seal(jobs.source, epoch, 7, 10)  # its number does not come again
    assert seal(jobs.source, again, 7, 10) == 8
    assert jobs.source.begin_epoch()[1:] == (7, 8)


def test_a_checkpoint_that_is_behind_is_refused(jobs: Jobs) -> None:
    epoch = jobs.begin(texts(3))
    assert jobs.drain(epoch, 0, 1) == [1, 2, 3]
    jobs.source.commit(epoch, 1, 2)
    with pytest.raises(GroupTakenError, match="this checkpoint has not read them"):
        seal(jobs.source, epoch, 1, 1)


def test_a_commit_forgets_batches_and_may_come_twice(jobs: Jobs) -> None:
    epoch = jobs.begin(texts(3))
    jobs.drain(epoch, 0, 1)
    for _ in range(2):
        jobs.source.commit(epoch, 1, 2)
        assert [len(jobs.batch(number)) for number in (1, 2, 3)] == [0, 0, 1]
    state = jobs.plain.hgetall(jobs.keys.state("g"))
    assert {key for key in state if b"-" in key} == {b"first-3", b"at-3", b"size-3"}
    assert jobs.source.begin_epoch()[1:] == (2, 3)


def test_a_batch_that_is_gone_is_an_error(jobs: Jobs) -> None:
    epoch = jobs.begin(texts(3))
    jobs.drain(epoch, 0, 0)
    jobs.plain.delete(jobs.keys.batch("g", 1))
    with pytest.raises(BatchLostError, match="batch 1 of the group 'g'"):
        jobs.source.batch_rows(epoch, 1, 1)


def test_an_old_checkpoint_ends_no_other_query(jobs: Jobs) -> None:
    epoch = jobs.begin(texts(3))
    assert jobs.drain(epoch, 0, 1) == [1, 2, 3]
    jobs.source.commit(epoch, 1, 2)
    with pytest.raises(GroupTakenError, match=r"batches up to 2 .* this checkpoint has not read them"):
        jobs.source.begin_epoch(1)
    assert jobs.source.batch_rows(epoch, 3, 3) == [(2, 1)]  # the query that reads is not refused
    assert jobs.source.begin_epoch(2)[1:] == (2, 3)


def test_a_closed_empty_queue_gives_an_empty_batch_on_request(jobs: Jobs) -> None:
    epoch = jobs.begin(texts(3))
    assert jobs.drain(epoch, 0, 0) == [1]
    assert jobs.source.seal(epoch, 1, 10, allow_empty=True) == "empty"  # more may come
    assert jobs.source.close() == 1
    assert jobs.source.seal(epoch, 1, 10) == "closed"
    assert jobs.source.seal(epoch, 1, 10, allow_empty=True) == 2
    epoch, committed, sealed = jobs.source.begin_epoch(1)
    assert (committed, sealed) == (0, 2)
    assert jobs.source.seal(epoch, 1, 10) == 2  # reused like any other
    assert jobs.source.batch_rows(epoch, 1, 2) == [(0, 3), (3, 0)]
    jobs.source.commit(epoch, 1, 2)
    assert set(jobs.plain.hgetall(jobs.keys.state("g"))) == {b"epoch", b"committed", b"sealed", b"rows"}


def test_a_closed_queue_with_messages_has_not_ended(jobs: Jobs) -> None:
    jobs.put(texts(6))
    assert jobs.source.close() == 1
    epoch, _, _ = jobs.source.begin_epoch()
    assert seal(jobs.source, epoch, 0, 10, upto=3) == 1
    assert jobs.source.seal(epoch, 1, 10, upto=3, allow_empty=True) == "empty"
    assert seal(jobs.source, epoch, 1, 10, allow_empty=True) == 2
    assert jobs.batch(2) == texts(3, 3)


def test_an_empty_batch_is_given_back_too(jobs: Jobs) -> None:
    epoch = jobs.begin(texts(3))
    assert jobs.drain(epoch, 0, 0) == [1]
    assert jobs.source.close() == 1
    assert jobs.source.seal(epoch, 1, 10, allow_empty=True) == 2
    assert sealed_batches.give_back(jobs.server.settings, "jobs", "g") == 3
    assert jobs.waiting() == texts(3)
    assert set(jobs.plain.hgetall(jobs.keys.state("g"))) == {b"epoch", b"committed", b"sealed", b"rows"}


def test_sealing_an_empty_queue_writes_nothing(jobs: Jobs) -> None:
    epoch, _, _ = jobs.source.begin_epoch()
    before = {key: jobs.plain.dump(key) for key in jobs.plain.scan_iter()}
    assert seal(jobs.source, epoch, 0, 10) == "empty"
    assert {key: jobs.plain.dump(key) for key in jobs.plain.scan_iter()} == before


def test_nothing_is_taken_behind_upto(jobs: Jobs) -> None:
    jobs.put(texts(6))
    left, length, closed = jobs.source.measure()
    assert (left, length, closed) == (0, 6, False)
    epoch = jobs.begin(texts(6, 6))
    assert seal(jobs.source, epoch, 0, 4, upto=6) == 1
    assert seal(jobs.source, epoch, 1, 4, upto=6) == 2
    assert seal(jobs.source, epoch, 2, 4, upto=6) == "empty"
    assert jobs.batch(1) + jobs.batch(2) == texts(6)
    assert jobs.waiting() == texts(6, 6)


def test_a_producer_that_waits_for_room_goes_on(url: str, jobs: Jobs) -> None:
    async def story() -> None:
        steps = SourceSteps(jobs.server, "narrow", "g")
        steps.create(3)
        async with AsyncQueue("narrow", url=url) as queue:
            await queue.put_many(texts(3))
            blocked = asyncio.create_task(queue.put(b"one more"))
            async with asyncio.timeout(30):
                while not jobs.plain.info("clients")["blocked_clients"]:
                    await asyncio.sleep(0.005)
            assert jobs.plain.llen(steps.keys.queue.messages) == 3
            epoch, _, _ = steps.begin_epoch()
            assert steps.seal(epoch, 0, 2) == 1  # not all of it: by moving
            await asyncio.wait_for(blocked, 30)
            assert steps.seal(epoch, 1, 10) == 2  # all of it: by renaming
            await asyncio.wait_for(queue.put_many(texts(3)), 30)
            assert jobs.plain.llen(steps.keys.queue.not_full) == 0

    asyncio.run(story())


def test_the_permit_says_at_once_that_there_is_room(jobs: Jobs) -> None:
    keys = jobs.keys.queue
    jobs.plain.set(keys.bound, 3)
    epoch = jobs.begin(texts(3))
    for start, most in ((0, 2), (1, 0)):  # by moving, and by renaming
        assert jobs.plain.llen(keys.not_full) == 0
        assert jobs.source.seal(epoch, start, most) == start + 1
        assert jobs.plain.llen(keys.not_full) == 1
        if start == 0:
            jobs.put(texts(2))


def test_a_step_releases_the_claimed_role(jobs: Jobs) -> None:
    keys = jobs.keys.queue
    epoch = jobs.begin(texts(3))
    assert jobs.source.claim("consumer", 1)
    assert jobs.source.seal(epoch, 0, 0, claimed=True) == 1
    todo = jobs.sink.choose_parts("w", 0, 0, [stage(jobs, "a", texts(3))])
    assert jobs.source.claim("producer", 1)
    assert jobs.sink.put_part("w", 0, todo or "", True, claimed=True) == ""
    for role in ("consumer", "producer"):
        assert jobs.plain.llen(keys.free(role)) == 1
        assert jobs.plain.exists(keys.claim(role)) == 0


def test_a_role_under_a_lease_is_waited_for(url: str, jobs: Jobs) -> None:
    async def story() -> None:
        async with AsyncQueue("jobs", url=url) as queue:
            await queue.put_many(texts(3))
            epoch, _, _ = jobs.source.begin_epoch()
            async with queue.consumer() as consumer:
                async for _ in consumer:
                    with pytest.raises(QueueInUseError, match="consumer role of the queue 'jobs' is held") as raised:
                        await asyncio.to_thread(
                            jobs.source.run_when_ready,
                            lambda claimed: jobs.source.seal(epoch, 0, 10, claimed=claimed),
                            0.3,
                        )
                    assert raised.value.role == "consumer"
                    break
            assert seal(jobs.source, epoch, 0, 10) == 1

    asyncio.run(story())


def test_a_plain_clients_role_is_waited_for_in_line(jobs: Jobs) -> None:
    jobs.put(texts(3))
    keys = jobs.keys.queue
    epoch, _, _ = jobs.source.begin_epoch()
    jobs.plain.rpop(keys.free("consumer"))
    calls = 0

    def step(claimed: bool) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            jobs.plain.lpush(keys.free("consumer"), 1)  # it comes back while we wait for it the next time
        return jobs.source.seal(epoch, 0, 10, claimed=claimed)

    assert jobs.source.run_when_ready(step, 5.0) == 1
    assert jobs.plain.llen(keys.free("consumer")) == 1
    assert jobs.plain.exists(keys.claim("consumer")) == 0


def test_messages_of_a_dead_consumer_are_healed_first(jobs: Jobs) -> None:
    jobs.put(texts(5))
    keys = jobs.keys.queue
    jobs.plain.lpush(keys.inflight, b"message -1")
    jobs.plain.hset(keys.apart, "1", b"2:message -2")
    jobs.plain.hset(keys.lease("consumer"), mapping={"token": "t", "uid": "dead", "deadline": 1, "next": 3})
    jobs.plain.delete(keys.free("consumer"))
    epoch, _, _ = jobs.source.begin_epoch()
    assert seal(jobs.source, epoch, 0, 0) == 1
    assert jobs.batch(1) == [b"message -2", b"message -1", *texts(5)]
    assert jobs.plain.llen(keys.free("consumer")) == 1


def test_a_queue_that_does_not_exist(jobs: Jobs) -> None:
    nowhere = SourceSteps(jobs.server, "nowhere", "g")
    epoch, _, _ = nowhere.begin_epoch()
    with pytest.raises(QueueDoesNotExistError, match="'nowhere' does not exist"):
        nowhere.seal(epoch, 0, 10)
    with pytest.raises(QueueDoesNotExistError):
        nowhere.measure()


def test_what_was_taken_before_the_queue_was_deleted_is_sealed(jobs: Jobs) -> None:
    epoch = jobs.begin(texts(9000))
    assert jobs.source.seal(epoch, 0, 8500) == "more"
    jobs.plain.delete(jobs.keys.queue.bound)
    assert jobs.source.seal(epoch, 0, 8500) == 1
    assert len(jobs.batch(1)) == 4000


def test_queues_are_found_by_a_pattern(jobs: Jobs) -> None:
    for name in ("orders:0", "orders:1", "other"):
        QueueSteps(jobs.server, name).create(0)
    assert find_queues(jobs.server, "orders:*") == ["orders:0", "orders:1"]


def test_attempts_are_counted_until_the_batches_are_committed(jobs: Jobs) -> None:
    def count(epoch: int, number: int) -> int:
        (times,) = run_steps(jobs.server, [jobs.source.to_count_attempts(epoch, number)])
        return times

    epoch = jobs.begin(texts(6))
    assert jobs.drain(epoch, 0, 3) == [1, 2]
    assert [count(epoch, 1), count(epoch, 1), count(epoch, 2)] == [1, 2, 1]
    jobs.source.commit(epoch, 1, 2)
    assert not [field for field in jobs.plain.hkeys(jobs.source.state) if field.startswith(b"tried")]
    jobs.put(texts(3))
    assert seal(jobs.source, epoch, 2, 3) == 3
    assert count(epoch, 3) == 1
    newer, _, _ = jobs.source.begin_epoch()
    with pytest.raises(GroupTakenError):
        count(epoch, 3)
    assert jobs.source.give_back(newer, 3, 3) == 3
    assert not [field for field in jobs.plain.hkeys(jobs.source.state) if field.startswith(b"tried")]


def test_a_look_tells_whether_more_messages_can_come(jobs: Jobs) -> None:
    steps = QueueSteps(jobs.server, "narrow")
    both = looks.groups_of([jobs.source, steps])
    assert looks.look(jobs.server, both) == (0, True)  # one does not exist
    steps.create(2)
    assert looks.look(jobs.server, both) == (0, False)
    jobs.plain.lpush(steps.keys.queue.messages, "a")
    operate(jobs, "close")
    assert looks.look(jobs.server, both) == (1, False)
    assert looks.look(jobs.server, [[jobs.source]]) == (0, True)
    jobs.plain.lpush(steps.keys.queue.messages, "b")
    assert looks.look(jobs.server, both) == (2, True)
