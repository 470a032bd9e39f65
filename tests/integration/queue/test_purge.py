"""purge: waiting messages are deleted; messages in flight and dead letters stay."""

from __future__ import annotations

import asyncio
import random

import pytest
import redis

from apressure import AsyncQueue, QueueDoesNotExistError, QueueInUseError
from apressure.testing.proxy import Proxy, Trouble
from tests.integration.conftest import Opener, blocking, eventually, fails, in_time, open_two


async def test_messages_that_wait_are_deleted_and_count_as_consumed(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(scripting=scripting)
    await queue.put_many([b"%d" % index for index in range(10)])
    assert await queue.purge() == 10
    assert await queue.purge() == 0
    statistics = await queue.statistics()
    assert (statistics.length, statistics.consumed_messages, statistics.consumed_bytes) == (0, 10, 10)
    await queue.put(b"x")
    assert await queue.get() == b"x"


async def test_it_takes_as_many_steps_as_it_needs(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(scripting=scripting)
    await queue.put_many([b"%d" % index for index in range(5000)])
    await queue.put_many([bytes(400_000)] * 5)
    assert await queue.purge() == 5005
    assert await queue.qsize() == 0


async def test_a_put_that_waits_for_room_gets_it(open_queue: Opener, db: redis.Redis, scripting: bool) -> None:
    queue, other = await open_queue(bound=2, scripting=scripting), await open_queue(create=False)
    await queue.put_many([b"1", b"2"])
    task = await blocking(db, other.put(b"3"))
    assert await queue.purge() == 2
    await in_time(task)
    assert await queue.get() == b"3"
    assert db.llen("__pressure__:jobs:not_full") == 1


async def test_a_closed_queue_is_purged_and_then_drained(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(scripting=scripting)
    await queue.put_many([b"1", b"2"])
    await queue.close()
    assert await queue.purge() == 2
    assert [item async for item in queue] == []


async def test_a_consumer_goes_on_with_what_it_has(open_queue: Opener) -> None:
    queue, other = await open_two(open_queue, bound=100)
    await queue.put_many([b"%d" % index for index in range(20)])
    async with queue.consumer(prefetch=3) as consumer:
        assert await anext(consumer) == b"0"
        assert await other.purge() == 17
        assert [await anext(consumer), await anext(consumer)] == [b"1", b"2"]
        await other.put(b"new")
        assert await in_time(anext(consumer)) == b"new"
    statistics = await queue.statistics()
    assert (statistics.in_flight, statistics.consumed_messages) == (0, 21)


async def test_counts_of_attempts_are_purged_too(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    await (await queue.receive()).nack()
    assert db.exists("apressure:__pressure__:jobs:redelivered")
    assert await queue.purge() == 2
    assert not db.exists("apressure:__pressure__:jobs:redelivered")
    await queue.put(b"1")
    delivery = await queue.receive()
    assert delivery.attempts == 1
    await delivery.ack()


async def test_dead_letters_stay(open_queue: Opener) -> None:
    queue = await open_queue(max_attempts=1)
    dead_letters = await open_queue("jobs:dead", create=False)
    await queue.put_many([b"1", b"2"])
    await (await queue.receive()).nack()
    await (await queue.receive()).ack()
    await queue.put(b"3")
    assert await queue.purge() == 1
    assert await dead_letters.qsize() == 1


async def test_a_client_that_works_step_by_step_is_not_disturbed(
    open_queue: Opener, db: redis.Redis, scripting: bool
) -> None:
    queue = await open_queue(scripting=scripting, client_id="me")
    await queue.put(b"1")
    token = db.rpop("__pressure__:jobs:consumer_free")
    db.set("__pressure__:jobs:consumer", "somebody")
    raised = await fails(QueueInUseError, queue.purge())
    assert (raised.role, raised.holder) == ("consumer", "somebody" if scripting else None) or not scripting
    assert await queue.qsize() == 1
    assert token is not None
    db.lpush("__pressure__:jobs:consumer_free", token)
    assert await queue.purge() == 1


async def test_a_missing_queue_is_told(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(create=False, scripting=scripting)
    with pytest.raises(QueueDoesNotExistError):
        await queue.purge()


async def test_after_a_lost_reply_it_leaves_what_was_put_meanwhile(
    open_queue: Opener, db: redis.Redis, url: str
) -> None:
    watcher = await open_queue()
    assert await watcher.purge() == 0  # now the server knows the script
    await watcher.put_many([b"1", b"2", b"3"])
    async with Proxy(url, random.Random(1)) as line, AsyncQueue("jobs", url=line.url) as queue:
        await queue.exists()
        line.trouble = Trouble(lose=1.0)
        purging = asyncio.create_task(queue.purge())
        await eventually(lambda: line.cuts and db.llen("__pressure__:jobs") == 0)
        await watcher.put(b"new")
        line.trouble = Trouble()
        assert await in_time(purging) == 3
    assert await watcher.get() == b"new"
