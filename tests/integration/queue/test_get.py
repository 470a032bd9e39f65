"""get, get_nowait, get_many, peeks, and iterating over the queue: at-most-once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from apressure import QueueClosedError, QueueDoesNotExistError, QueueEmptyError, QueueInUseError
from tests.integration.conftest import (
    Opener,
    all_fail,
    blocked,
    blocking,
    cancelled,
    everything,
    fails,
    in_time,
    open_two,
)
from tests.reference import snapshot


async def test_the_twelve_keys_after_a_get(open_queue: Opener, db: redis.Redis, scripting: bool) -> None:
    queue = await open_queue(bound=1, client_id="me", scripting=scripting)
    await queue.put(b"abc")
    assert await queue.get() == b"abc"
    keys = snapshot(db, "__pressure__", "jobs")
    assert keys["messages"] == []
    assert keys[":consumer"] == b"me"
    assert (keys[":stats:consumed_messages"], keys[":stats:consumed_bytes"]) == (b"1", b"3")
    assert (keys[":consumer_free"], keys[":not_full"]) == (1, 1)


@pytest.mark.parametrize("timeout", [0.05, 0])
async def test_an_empty_queue_raises_at_the_timeout(open_queue: Opener, scripting: bool, timeout: float) -> None:
    queue = await open_queue(scripting=scripting)
    for get in (queue.get(timeout=timeout), queue.get_many(5, timeout=timeout)):
        raised = await fails(QueueEmptyError, get, "'jobs' is empty")
        assert isinstance(raised, asyncio.QueueEmpty)
        assert isinstance(raised, TimeoutError)
    assert (await queue.statistics()).waiting_receivers == 0


async def test_get_nowait_takes_an_item_or_raises_at_once(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(scripting=scripting)
    await fails(QueueEmptyError, queue.get_nowait())
    await queue.put(b"x")
    assert await queue.get_nowait() == b"x"


async def test_a_get_waits_for_an_item(open_queue: Opener, db: redis.Redis, scripting: bool) -> None:
    queue, other = await open_two(open_queue, scripting=scripting)
    task = await blocking(db, queue.get())
    await other.put(b"x")
    assert await in_time(task) == b"x"
    assert (await queue.statistics()).consumed_messages == 1


async def test_waiting_getters_of_a_client_are_served_in_order(
    open_queue: Opener, db: redis.Redis, scripting: bool
) -> None:
    queue, other = await open_two(open_queue, scripting=scripting)
    tasks = [asyncio.create_task(queue.get()) for _ in range(5)]
    await blocked(db)
    await other.put_many([b"0", b"1", b"2", b"3", b"4"])
    assert await in_time(asyncio.gather(*tasks)) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("nowait", [True, False])
async def test_a_role_that_somebody_holds_raises_with_the_holder(
    open_queue: Opener, db: redis.Redis, scripting: bool, nowait: bool
) -> None:
    queue = await open_queue(scripting=scripting)
    await queue.put(b"x")
    db.rpop("__pressure__:jobs:consumer_free")
    db.set("__pressure__:jobs:consumer", "plain-client:7")
    raised = await fails(QueueInUseError, queue.get_nowait() if nowait else queue.get(timeout=0.05), "plain-client:7")
    assert (raised.role, raised.holder) == ("consumer", "plain-client:7")
    db.lpush("__pressure__:jobs:consumer_free", 0)
    assert await in_time(queue.get()) == b"x"


async def test_get_many_takes_what_is_there_up_to_its_limit(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(scripting=scripting)
    await queue.put_many([b"1", b"2", b"3", b"4", b"5"])
    assert await queue.get_many(2) == [b"1", b"2"]
    assert await queue.get_many(10) == [b"3", b"4", b"5"]


async def test_get_many_waits_while_there_is_nothing(open_queue: Opener, db: redis.Redis, scripting: bool) -> None:
    queue = await open_queue(scripting=scripting)
    task = await blocking(db, queue.get_many(10))
    db.lpush("__pressure__:jobs", b"x")
    assert await in_time(task) == [b"x"]


@pytest.mark.parametrize(
    ("most", "error"), [(0, ValueError), (-1, ValueError), (True, TypeError), ("5", TypeError), (1.0, TypeError)]
)
async def test_get_many_wants_a_positive_whole_number(open_queue: Opener, most: Any, error: type[Exception]) -> None:
    queue = await open_queue()
    with pytest.raises(error, match="max_items"):
        await queue.get_many(most)


async def test_a_closed_queue_hands_out_what_it_holds_then_raises(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(scripting=scripting)
    await queue.put_many([b"1", b"2", b"3"])
    await queue.close()
    assert await queue.get() == b"1"
    assert await queue.get_nowait() == b"2"
    assert await queue.get_many(5) == [b"3"]
    for get in (queue.get(), queue.get_nowait(), queue.get_many(5), queue.get(timeout=0)):
        await fails(QueueClosedError, get)
    statistics = await queue.statistics()
    assert (statistics.consumed_messages, statistics.consumed_bytes) == (3, 3)


async def test_a_waiting_get_ends_when_the_queue_is_closed(
    open_queue: Opener, db: redis.Redis, scripting: bool
) -> None:
    queue, other = await open_two(open_queue, scripting=scripting)
    tasks = [asyncio.create_task(queue.get()) for _ in range(3)]
    await blocked(db)
    await other.close()
    await all_fail(QueueClosedError, tasks)
    assert db.llen("__pressure__:jobs:closed") >= 1
    assert await queue.closed()


async def test_a_queue_that_does_not_exist_gives_nothing(open_queue: Opener, db: redis.Redis, scripting: bool) -> None:
    queue = await open_queue(create=False, scripting=scripting)
    for get in (queue.get(), queue.get_nowait(), queue.get_many(2), queue.peek(), queue.peek_newest()):
        await fails(QueueDoesNotExistError, get, "'jobs' does not exist")
    assert not everything(db)


async def test_peeks_show_both_ends_and_take_nothing(open_queue: Opener, db: redis.Redis, scripting: bool) -> None:
    queue = await open_queue(scripting=scripting)
    for peek in (queue.peek(), queue.peek_newest()):
        with pytest.raises(QueueEmptyError):
            await peek
    await queue.put_many([b"oldest", b"middle", b"newest"])
    before = everything(db)
    assert await queue.peek() == b"oldest"
    assert await queue.peek_newest() == b"newest"
    assert everything(db) == before


async def test_iterating_ends_when_the_queue_is_closed_and_drained(open_queue: Opener, scripting: bool) -> None:
    queue, other = await open_two(open_queue, bound=2, scripting=scripting)
    got: list[bytes] = []

    async def consume() -> None:
        async for item in queue:
            got.append(item)

    task = asyncio.create_task(consume())
    await other.put_many([b"%d" % index for index in range(20)])
    await other.close()
    await in_time(task)
    assert got == [b"%d" % index for index in range(20)]
    assert [item async for item in queue] == []


async def test_iterating_a_queue_that_is_deleted_raises(open_queue: Opener, db: redis.Redis, scripting: bool) -> None:
    queue, other = await open_two(open_queue, scripting=scripting)

    async def consume() -> None:
        async for _ in queue:
            pass

    task = await blocking(db, consume())
    await in_time(other.delete())
    await fails(QueueDoesNotExistError, task)


async def test_several_iterations_share_the_items(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(scripting=scripting)
    await queue.put_many([b"%d" % index for index in range(50)])
    await queue.close()

    async def consume() -> list[bytes]:
        return [item async for item in queue]

    parts = await in_time(asyncio.gather(*(consume() for _ in range(5))))
    assert sorted(int(item) for part in parts for item in part) == list(range(50))
    for part in parts:
        assert part == sorted(part, key=int)


@pytest.mark.parametrize("many", [False, True])
async def test_a_cancelled_get_takes_nothing(open_queue: Opener, db: redis.Redis, scripting: bool, many: bool) -> None:
    queue = await open_queue(scripting=scripting)
    await cancelled(await blocking(db, queue.get_many(5) if many else queue.get()))
    await queue.put(b"x")
    assert (await queue.statistics()).waiting_receivers == 0
    assert await in_time(queue.get()) == b"x"


async def test_a_get_in_a_timeout_of_asyncio_raises_that_and_takes_nothing(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(scripting=scripting)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await queue.get()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.05)
    await queue.put(b"x")
    assert await in_time(queue.get()) == b"x"


async def test_what_was_got_is_gone(open_queue: Opener, db: redis.Redis, scripting: bool) -> None:
    queue = await open_queue(scripting=scripting)
    await queue.put_many([b"a", b"b"])
    with pytest.raises(ZeroDivisionError):
        async for item in queue:
            assert item == b"a"
            raise ZeroDivisionError
    assert await queue.get_nowait() == b"b"
    with pytest.raises(QueueEmptyError):
        await queue.get_nowait()
