"""Delayed messages and retries, as far as an AsyncQueue is special: roles, permits, statistics, and attempts."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    QueueFullError,
    QueueInUseError,
    ScriptingRefusedError,
)
from apressure.exceptions import QueueEmptyError
from apressure.pressure.engine import batching
from apressure.pressure.engine.keys import Keys
from tests.integration.conftest import Opener, blocking, fails, in_time, open_two
from tests.reference import ReferenceQueue

KEYS = Keys("__pressure__", "jobs")


async def taken(queue: AsyncQueue[Any], most: int = 100) -> list[tuple[bytes, int]]:
    """Receive and acknowledge what waits now: each message, and its attempts."""
    found = []
    with contextlib.suppress(QueueEmptyError):
        while len(found) < most:
            delivery = await queue.receive(timeout=0)
            found.append((delivery.raw, delivery.attempts))
            await delivery.ack()
    return found


async def put_off(queue: AsyncQueue[Any], delay: float) -> None:
    await (await in_time(queue.receive())).nack(delay=delay)


# Waiting, with nothing that polls


@pytest.mark.usefixtures("long_slices")
@pytest.mark.parametrize("way", ["get", "receive", "exclusive", "shared"])
async def test_one_that_waits_learns_of_a_message_that_is_due_earlier(
    open_queue: Opener, db: redis.Redis, way: str
) -> None:
    queue, other = await open_two(open_queue)
    await other.put(b"late", delay=600)

    async def consume() -> Any:
        if way == "get":
            return await queue.get()
        if way == "receive":
            delivery = await queue.receive()
            await delivery.ack()
            return delivery.raw
        async with queue.consumer(shared=way == "shared") as consumer:
            return await anext(consumer)

    waiting = await blocking(db, consume())
    for delay in (60, 0.2):
        await other.put(b"%d" % delay, delay=delay)
        await asyncio.sleep(0.05)
        assert not waiting.done()
    assert await in_time(waiting) == b"0"
    assert (await other.statistics()).delayed == 2


@pytest.mark.usefixtures("long_slices")
@pytest.mark.parametrize("shared", [False, True])
async def test_a_consumer_that_waits_for_the_end_gets_what_its_own_handler_puts_off(
    open_queue: Opener, shared: bool
) -> None:
    queue = await open_queue(max_attempts=3)
    await queue.put_many([b"1", b"2"])
    await queue.close()
    got = []

    async def consume() -> None:
        async with queue.consumer(ack="manual", shared=shared) as consumer:
            async for delivery in consumer:
                got.append((delivery.raw, delivery.attempts))
                if delivery.raw == b"1" and delivery.attempts < 3:
                    await delivery.nack(ValueError("later"), delay=0.2)
                else:
                    await delivery.ack()

    await in_time(consume())
    assert got == [(b"1", 1), (b"2", 1), (b"1", 2), (b"1", 3)]


@pytest.mark.usefixtures("long_slices")
async def test_a_put_waits_for_the_room_that_delayed_messages_take_and_other_clients_do_not(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue, other = await open_two(open_queue, bound=2)
    original = ReferenceQueue(db, "jobs")
    await queue.put(b"1", delay=600)
    await queue.put(b"2", delay=600)
    await fails(QueueFullError, queue.put_nowait(b"3"))
    original.put_nowait(b"original")  # it does not see them, and is not blocked
    waiting = [await blocking(db, queue.put(b"4")), await blocking(db, queue.put(b"5", delay=600), 2)]
    assert original.get_nowait() == b"original"
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    assert await other.purge() == 2
    await in_time(asyncio.gather(*waiting))
    assert await in_time(other.get()) == b"4"
    assert original.length() == 0
    assert (await queue.statistics()).delayed == 1


# Roles, permits and statistics


async def test_an_exclusive_producer_delays_under_its_lease(open_queue: Opener) -> None:
    queue, other = await open_two(open_queue)
    async with queue.producer(exclusive=True) as producer:
        await fails(QueueInUseError, other.put(b"no", 0, delay=1))
        await producer.put(b"1", delay=0.1)
        assert await producer.put_many([b"2", b"3"], delay=0.2) == 2
    assert (await queue.statistics()).delayed == 3
    assert [await in_time(other.get()) for _ in range(3)] == [b"1", b"2", b"3"]


async def test_a_forced_put_for_later_ignores_the_bound(open_queue: Opener) -> None:
    queue = await open_queue(bound=1)
    await queue.put(b"1", delay=600)
    await fails(QueueFullError, queue.put(b"2", 0, delay=1))
    await queue.put(b"3", 0, True, delay=0.05)
    assert await queue.put_many([b"4", b"5"], 0, True, delay=0.1) == 2
    assert [await in_time(queue.get()) for _ in range(3)] == [b"3", b"4", b"5"]


async def test_what_was_produced_and_not_consumed_is_in_the_queue(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()

    async def counted() -> tuple[int, int, int, int]:
        found = await queue.statistics()
        return found.produced_messages, found.produced_bytes, found.consumed_messages, found.consumed_bytes

    await queue.put(b"abc", delay=0.1)
    await queue.put(b"defg", delay=600)
    assert await counted() == (0, 0, 0, 0)
    await put_off(queue, 0.1)
    assert await counted() == (1, 3, 0, 0)
    await put_off(queue, 600)
    assert await counted() == (1, 3, 0, 0)
    assert await queue.purge() == 2  # one was produced, the other was not
    assert await counted() == (1, 3, 1, 3)
    assert not db.exists(KEYS.delayed)


async def test_without_scripts_nothing_is_delayed_and_it_is_counted(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put(b"later", delay=600)
    plain = await open_queue(create=False, scripting=False)
    await fails(ScriptingRefusedError, plain.put(b"1", delay=1), "a put with delay= or dedup_id= needs scripts")
    await fails(ScriptingRefusedError, plain.put_many([b"1"], delay=1))
    async with plain.producer(close=False) as producer:
        await fails(ScriptingRefusedError, producer.put(b"1", delay=1))
    await plain.put(b"now")
    assert await plain.get() == b"now"
    statistics = await plain.statistics()
    assert statistics.delayed == 1
    assert statistics.next_due is not None
    assert 500 < statistics.next_due < 601


async def test_dead_letters_and_pipes_leave_room_for_what_is_delayed(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(bound=2, max_attempts=1)
    await queue.put_many([b"1", b"2"])
    for _ in range(2):
        await (await queue.receive()).nack("no", delay=600)  # its last attempt: no delay
    await fails(QueueEmptyError, queue.receive(timeout=0))
    assert [letter.raw for letter in await queue.dead_letters()] == [b"1", b"2"]
    await queue.put(b"later", delay=600)
    await fails(QueueFullError, queue.requeue(timeout=0.05))
    assert await queue.qsize() == 1
    source = await open_queue("source")
    await source.put(b"result")
    mover = await source.mover(queue)
    delivery = await source.receive()
    moving = await blocking(db, mover.move([([delivery], [b"result"])]))
    assert await queue.purge() == 2
    await in_time(moving)
    assert await queue.get() == b"result"
    for name in ("jobs:dead",):
        async with AsyncQueue(name, client=queue.client) as dead:
            await dead.delete()


# Attempts


async def test_a_retry_behind_messages_with_the_same_content_keeps_its_attempts(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put(b"same")
    await put_off(queue, 0.1)
    await queue.put_many([b"same", b"other", b"same"])
    await asyncio.sleep(0.2)
    await queue.put(b"same")
    assert await taken(queue) == [(b"same", 1), (b"other", 1), (b"same", 1), (b"same", 2), (b"same", 1)]


async def test_a_retry_travels_alone_where_attempts_are_limited(open_queue: Opener) -> None:
    queue = await open_queue(max_attempts=5)
    await queue.put(b"retry")
    await put_off(queue, 0.05)
    await queue.put_many([b"1", b"2", b"3"])
    await asyncio.sleep(0.1)
    await queue.put_many([b"4", b"5"])
    found = []
    for expected in ([b"1", b"2", b"3"], [b"retry"], [b"4", b"5"]):
        deliveries = await in_time(queue.receive_many(100))
        assert [delivery.raw for delivery in deliveries] == expected
        found += [delivery.attempts for delivery in deliveries]
        for delivery in deliveries:
            await delivery.ack()
    assert found == [1, 1, 1, 2, 1, 1]


async def test_attempts_stay_exact_among_gets_and_messages_that_come_back(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many([b"a", b"a"])
    await put_off(queue, 0.05)
    await put_off(queue, 0.1)
    await queue.put_many([b"a", b"a", b"a"])
    await asyncio.sleep(0.2)
    assert await queue.get() == b"a"
    delivery = await queue.receive()
    assert delivery.attempts == 1
    await delivery.nack()
    assert await taken(queue, 1) == [(b"a", 2)]
    assert await taken(queue, 2) == [(b"a", 1), (b"a", 2)]
    await put_off(queue, 0.05)
    await asyncio.sleep(0.1)
    await queue.put(b"a")
    assert await taken(queue) == [(b"a", 3), (b"a", 1)]


async def test_a_retry_that_another_client_took_does_not_pass_its_attempts_on(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue = await open_queue()
    original = ReferenceQueue(db, "jobs")
    await queue.put_many([b"a", b"b"])
    await put_off(queue, 0.05)
    await put_off(queue, 0.1)
    await asyncio.sleep(0.2)
    await queue.put_many([b"x", b"a"])
    assert await queue.qsize() == 4
    assert original.get_nowait() == b"a"
    assert await taken(queue) == [(b"b", 2), (b"x", 1), (b"a", 1)]


async def test_another_client_ahead_of_a_retry_costs_no_attempts(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    original = ReferenceQueue(db, "jobs")
    await queue.put(b"retry")
    await put_off(queue, 0.05)
    await queue.put_many([b"1", b"2", b"3"])
    await asyncio.sleep(0.1)
    assert await taken(queue, 1) == [(b"1", 1)]
    assert original.get_nowait() == b"2"
    original.put_nowait(b"4")
    assert await taken(queue) == [(b"3", 1), (b"retry", 2), (b"4", 1)]


@pytest.mark.parametrize("shared", [False, True])
async def test_the_end_of_a_block_settles_what_was_put_off_just_before(open_queue: Opener, shared: bool) -> None:
    queue = await open_queue(max_attempts=2)
    await queue.put_many([b"1", b"2"])
    async with queue.consumer(ack="manual", shared=shared) as consumer:
        first = await in_time(anext(consumer))
        second = await in_time(anext(consumer))
        nacking = [asyncio.create_task(first.nack("why", delay=0.1)), asyncio.create_task(second.nack())]
        await asyncio.sleep(0)
    await in_time(asyncio.gather(*nacking, return_exceptions=True))
    assert await taken(queue) == [(b"2", 2)]
    delivery = await in_time(queue.receive())
    assert (delivery.raw, delivery.attempts) == (b"1", 2)
    await delivery.ack()


async def test_a_put_that_gives_up_a_lost_permit_still_counts_delayed_messages(
    open_queue: Opener, db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "SLICE", 0.0)
    queue = await open_queue(bound=2)
    await queue.put_many([b"1", b"2"])
    db.delete(KEYS.free("consumer"))  # a client that works step by step takes a message,
    db.rpop(KEYS.messages)  # and dies before it brings the permit
    await fails(QueueFullError, queue.put_nowait(b"3"))
    await fails(QueueFullError, queue.put_nowait(b"4", delay=600))
    await queue.put_nowait(b"4", delay=600)
    await fails(QueueFullError, queue.put_nowait(b"3"))
    db.lpush(KEYS.free("consumer"), 1)
    assert (await queue.qsize(), (await queue.statistics()).delayed) == (1, 1)
