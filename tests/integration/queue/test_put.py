"""put, put_nowait, and the overfilling put."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
import redis

from apressure import QueueClosedError, QueueDoesNotExistError, QueueFullError, QueueInUseError
from tests.integration.conftest import Opener, blocking, everything, fails, in_time, open_two
from tests.reference import snapshot


async def test_put_and_get_keep_items_and_order(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(scripting=scripting)
    items = [b"", b"\x00\r\n", "ü".encode(), b"x" * 100_000]
    for item in items:
        await queue.put(item)
    assert await queue.qsize() == 4
    assert [await queue.get() for _ in items] == items


async def test_the_twelve_keys_after_a_put(open_queue: Opener, db: redis.Redis, scripting: bool) -> None:
    queue = await open_queue(bound=2, client_id="me", scripting=scripting)
    await queue.put(b"abc")
    keys = snapshot(db, "__pressure__", "jobs")
    assert keys["messages"] == [b"abc"]
    assert keys[":producer"] == b"me"
    assert (keys[":stats:produced_messages"], keys[":stats:produced_bytes"]) == (b"1", b"3")
    assert (keys[":producer_free"], keys[":not_full"]) == (1, 1)
    await queue.put(b"d")
    keys = snapshot(db, "__pressure__", "jobs")
    assert (keys[":producer_free"], keys[":not_full"]) == (1, 0)


@pytest.mark.parametrize("timeout", [0.05, 0])
async def test_a_full_queue_raises_at_the_timeout_and_nothing_was_put(
    open_queue: Opener, scripting: bool, timeout: float
) -> None:
    queue = await open_queue(bound=1, scripting=scripting)
    await queue.put_nowait(b"x")
    raised = await fails(QueueFullError, queue.put(b"y", timeout=timeout), "'jobs' is full")
    assert isinstance(raised, asyncio.QueueFull)
    assert isinstance(raised, TimeoutError)
    assert (raised.name, raised.accepted) == ("jobs", 0)
    await fails(QueueFullError, queue.put_nowait(b"y"))
    statistics = await queue.statistics()
    assert (statistics.length, statistics.produced_messages, statistics.waiting_putters) == (1, 1, 0)
    assert await queue.get() == b"x"
    await queue.put(b"z", timeout=5)
    assert await queue.get() == b"z"


async def test_a_put_waits_until_there_is_room(open_queue: Opener, db: redis.Redis, scripting: bool) -> None:
    queue, other = await open_two(open_queue, bound=1, scripting=scripting)
    await queue.put(b"x")
    task = await blocking(db, queue.put(b"y"))
    assert not task.done()
    assert await other.get() == b"x"
    await in_time(task)
    assert await other.get() == b"y"


@pytest.mark.parametrize("nowait", [True, False])
async def test_a_role_that_somebody_holds_raises_with_the_holder(
    open_queue: Opener, db: redis.Redis, scripting: bool, nowait: bool
) -> None:
    queue = await open_queue(scripting=scripting)
    token = db.rpop("__pressure__:jobs:producer_free")
    assert token is not None
    db.set("__pressure__:jobs:producer", "plain-client:7")
    raised = await fails(
        QueueInUseError, queue.put_nowait(b"x") if nowait else queue.put(b"x", timeout=0.05), "plain-client:7"
    )
    assert (raised.role, raised.holder, raised.accepted) == ("producer", "plain-client:7", 0)
    assert isinstance(raised, TimeoutError)
    assert await queue.qsize() == 0
    db.lpush("__pressure__:jobs:producer_free", 0)
    await in_time(queue.put(b"x"))


async def test_a_put_waits_for_the_role_and_leaves_its_token(
    open_queue: Opener, db: redis.Redis, scripting: bool
) -> None:
    queue = await open_queue(scripting=scripting)
    db.rpop("__pressure__:jobs:producer_free")
    task = await blocking(db, queue.put(b"x"))
    db.lpush("__pressure__:jobs:producer_free", 0)
    await in_time(task)
    assert db.llen("__pressure__:jobs:producer_free") == 1
    assert not db.keys("apressure:*claim*")


async def test_the_overfilling_put_puts_and_later_puts_wait_until_below_the_bound(
    open_queue: Opener, db: redis.Redis, scripting: bool
) -> None:
    queue = await open_queue(bound=2, scripting=scripting)
    for item in (b"1", b"2"):
        await queue.put(item)
    await queue.put(b"3", force=True)
    await queue.put_many([b"4", b"5"], force=True)
    assert await queue.qsize() == 5
    task = await blocking(db, queue.put(b"6"))
    for expected in (b"1", b"2", b"3"):
        assert await queue.get() == expected
        with pytest.raises(QueueFullError):
            await queue.put_nowait(b"never")
    assert not task.done()
    assert await queue.get() == b"4"
    await in_time(task)
    assert await queue.get_many(10) == [b"5", b"6"]


async def test_an_overfilling_put_does_not_wait_behind_others(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(bound=1)
    await queue.put(b"1")
    task = await blocking(db, queue.put(b"3"))
    await in_time(queue.put(b"2", force=True))
    assert [await queue.get(), await queue.get()] == [b"1", b"2"]
    await in_time(task)


async def test_a_closed_queue_takes_nothing(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(bound=1, scripting=scripting)
    await queue.put(b"x")
    await queue.close()
    for put in (queue.put(b"y"), queue.put_nowait(b"y"), queue.put(b"y", force=True), queue.put_many([b"y"])):
        await fails(QueueClosedError, put, "'jobs' is closed")
    assert (await queue.statistics()).produced_messages == 1


async def test_a_queue_that_does_not_exist_takes_nothing(open_queue: Opener, db: redis.Redis, scripting: bool) -> None:
    queue = await open_queue(create=False, scripting=scripting)
    for put in (queue.put(b"y"), queue.put_nowait(b"y"), queue.put(b"y", force=True), queue.put_many([b"y"])):
        raised = await fails(QueueDoesNotExistError, put, "'jobs' does not exist")
        assert raised.name == "jobs"
    assert not everything(db)


@pytest.mark.parametrize("item", ["text", 5, None, [b"x"], {"a": 1}])
async def test_what_is_no_bytes_is_refused_and_nothing_is_put(open_queue: Opener, scripting: bool, item: Any) -> None:
    queue = await open_queue(scripting=scripting)
    for put in (queue.put(item), queue.put_nowait(item), queue.put_many([item])):
        with pytest.raises(TypeError, match="must be bytes"):
            await put
    assert await queue.qsize() == 0


async def test_a_message_that_is_too_large_is_refused_and_nothing_is_put(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(scripting=scripting, max_message_size=10)
    await queue.put(b"x" * 10)
    for put in (queue.put(b"x" * 11), queue.put_nowait(b"x" * 11), queue.put_many([b"x" * 11])):
        with pytest.raises(ValueError, match="11 bytes; at most 10"):
            await put
    assert await queue.qsize() == 1


async def test_a_message_of_many_megabytes_passes(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(scripting=scripting)
    large = bytes(range(256)) * (16 << 12)
    await queue.put(large)
    assert await queue.get() == large


@pytest.mark.parametrize(
    ("wrong", "error", "not_a_time"),
    [
        ("3", TypeError, "a number of seconds or None, not str"),
        (b"3", TypeError, "a number of seconds or None, not bytes"),
        ([], TypeError, "a number of seconds or None, not list"),
        (True, TypeError, "a number of seconds or None, not bool"),
        (math.nan, ValueError, "at least 0 seconds, not nan"),
        (-1, ValueError, "at least 0 seconds, not -1"),
    ],
)
async def test_a_timeout_is_a_number_of_seconds(
    open_queue: Opener, wrong: Any, error: type[Exception], not_a_time: str
) -> None:
    queue = await open_queue()
    for operation in (
        lambda: queue.put(b"x", timeout=wrong),
        lambda: queue.put_many([b"x"], timeout=wrong),
        lambda: queue.get(timeout=wrong),
        lambda: queue.receive(timeout=wrong),
        lambda: queue.close(timeout=wrong),
        lambda: queue.wait_closed(timeout=wrong),
        lambda: queue.delete(timeout=wrong),
        lambda: queue.requeue(timeout=wrong),
    ):
        with pytest.raises(error, match=f"timeout must be {not_a_time}"):
            await operation()
    for role in (queue.producer, queue.consumer):
        with pytest.raises(error, match=f"timeout must be {not_a_time}"):
            role(timeout=wrong)
    statistics = await queue.statistics()
    assert (statistics.length, statistics.waiting_putters, statistics.waiting_receivers) == (0, 0, 0)
    await in_time(queue.put(b"y"))
    assert await in_time(queue.get()) == b"y"
