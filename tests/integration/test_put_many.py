"""put_many: every kind of iterable, partial acceptance, order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest
import redis

from apressure import QueueClosedError, QueueDoesNotExistError, QueueEmptyError, QueueFullError, QueueInUseError
from tests.integration.conftest import Opener, blocked, in_time


def numbers(count: int) -> list[bytes]:
    return [b"%d" % index for index in range(count)]


@pytest.mark.parametrize("count", [0, 1, 5, 4500])
async def test_lists_are_put_in_order_and_counted(open_queue: Opener, count: int) -> None:
    queue = await open_queue()
    assert await queue.put_many(numbers(count)) == count
    statistics = await queue.statistics()
    assert (statistics.length, statistics.produced_messages) == (count, count)
    assert statistics.produced_bytes == sum(map(len, numbers(count)))
    got: list[bytes] = []
    while len(got) < count:
        got += await queue.get_many(10_000)
    assert got == numbers(count)


async def test_plain_clients_put_many_too(open_queue: Opener) -> None:
    queue = await open_queue(scripting=False)
    assert await queue.put_many(numbers(50)) == 50
    assert await queue.get_many(100) == numbers(50)


async def test_generators_are_read_as_far_as_there_is_room(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(bound=10)
    taken = 0

    def generate() -> Iterator[bytes]:
        nonlocal taken
        for item in numbers(100_000):
            taken += 1
            yield item

    task = asyncio.create_task(queue.put_many(generate()))
    await blocked(db)
    assert await queue.qsize() == 10
    assert taken <= 2000  # no further than a portion ahead
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await queue.get_many(100) == numbers(10)


async def test_a_slow_asynchronous_generator_is_put_promptly(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(scripting=scripting)
    release = asyncio.Event()

    async def generate() -> AsyncIterator[bytes]:
        yield b"first"
        yield b"second"
        await release.wait()
        yield b"third"

    task = asyncio.create_task(queue.put_many(generate()))
    assert [await in_time(queue.get()) for _ in range(2)] == [b"first", b"second"]
    assert not task.done()
    release.set()
    assert await in_time(task) == 3
    assert await queue.get() == b"third"


async def test_a_quick_asynchronous_generator_waits_for_room(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(bound=3, scripting=scripting)
    items = numbers(300)
    taken = 0

    async def generate() -> AsyncIterator[bytes]:
        nonlocal taken
        for item in items:
            taken += 1
            yield item
            await asyncio.sleep(0)

    task = asyncio.create_task(queue.put_many(generate()))
    got: list[bytes] = []
    while len(got) < len(items):
        got += await in_time(queue.get_many(7))
    assert got == items
    assert await in_time(task) == 300


async def test_an_asynchronous_generator_that_raises_ends_with_its_error_after_what_it_gave(
    open_queue: Opener, scripting: bool
) -> None:
    queue = await open_queue(scripting=scripting)

    async def generate() -> AsyncIterator[bytes]:
        yield b"1"
        await asyncio.sleep(0.05)
        yield b"2"
        await asyncio.sleep(0.05)
        raise KeyError("source")

    with pytest.raises(KeyError, match="source") as raised:
        await in_time(queue.put_many(generate()))
    assert "2 items were put before" in "".join(raised.value.__notes__)
    assert await queue.get_many(5) == [b"1", b"2"]


@pytest.mark.parametrize("turns", range(6))
async def test_an_asynchronous_generator_that_raises_during_a_step_ends_with_how_many_are_in(
    open_queue: Opener, scripting: bool, turns: int
) -> None:
    queue = await open_queue(scripting=scripting)
    await queue.qsize()  # it is connected

    async def generate() -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"
        for _ in range(turns):
            await asyncio.sleep(0)
        raise QueueEmptyError("source", name="source")

    with pytest.raises(QueueEmptyError, match="source") as raised:
        await in_time(queue.put_many(generate()))
    assert raised.value.accepted == await queue.qsize()


@pytest.mark.parametrize("native", [True, False], ids=["asyncio", "anyio"])
async def test_a_cancellation_in_the_turn_of_a_failure_is_not_forgotten(open_queue: Opener, native: bool) -> None:
    queue = await open_queue(bound=1)
    after = []

    async def generate() -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"
        try:
            await asyncio.Event().wait()
        finally:  # the put has failed, and has ended the wait for a third item
            cancel()
            await asyncio.sleep(0)

    async def work() -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            with contextlib.suppress(QueueFullError):
                await queue.put_many(generate(), timeout=0.05)
            after.append("suppressed")
        after.append("beyond the scope")

    def cancel() -> None:
        if native:
            task.cancel()
        else:
            scopes[0].cancel()

    scopes: list[anyio.CancelScope] = []
    task = asyncio.create_task(work())
    await in_time(asyncio.wait((task,)))
    assert after == ([] if native else ["beyond the scope"])
    assert task.cancelled() is native


async def test_an_asynchronous_generator_does_not_hide_that_the_queue_was_closed(open_queue: Opener) -> None:
    queue = await open_queue()
    other = await open_queue(create=False)

    async def generate() -> AsyncIterator[bytes]:
        yield b"1"
        await eventually_put()
        await other.close()
        while True:
            yield b"2"
            await asyncio.sleep(0)

    async def eventually_put() -> None:
        while await other.qsize() == 0:
            await asyncio.sleep(0.005)

    with pytest.raises(QueueClosedError) as raised:
        await in_time(queue.put_many(generate()))
    assert "1 items were put before" in "".join(raised.value.__notes__)


async def test_an_asynchronous_generator_that_sleeps_does_not_hide_an_error_until_it_wakes(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue = await open_queue(bound=1)
    other = await open_queue(create=False)

    async def generate() -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"
        await asyncio.Event().wait()

    task = asyncio.create_task(queue.put_many(generate()))
    await blocked(db)
    await other.close()
    with pytest.raises(QueueClosedError):
        await in_time(task)


@pytest.mark.parametrize("count", [10, 5000])
async def test_a_timeout_tells_how_many_were_accepted(open_queue: Opener, count: int) -> None:
    queue = await open_queue(bound=4)
    with pytest.raises(QueueFullError) as raised:
        await queue.put_many(numbers(count), timeout=0.1)
    assert raised.value.accepted == 4
    assert await queue.get_many(10) == numbers(4)
    with pytest.raises(QueueFullError) as raised:
        await queue.put_many(numbers(count), timeout=0)
    assert raised.value.accepted == 4
    assert await queue.get_many(10) == numbers(4)


async def test_a_timeout_of_plain_commands_tells_how_many_were_accepted(open_queue: Opener) -> None:
    queue = await open_queue(bound=4, scripting=False)
    with pytest.raises(QueueFullError) as raised:
        await queue.put_many(numbers(10), timeout=0.1)
    assert raised.value.accepted == 4
    assert await queue.get_many(10) == numbers(4)


async def test_a_timeout_behind_another_producer_tells_that_too(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(bound=4)
    task = asyncio.create_task(queue.put_many(numbers(10), timeout=1.0))
    await blocked(db)
    db.rpop("__pressure__:jobs:producer_free")
    db.set("__pressure__:jobs:producer", "plain-client:7")
    assert db.rpop("__pressure__:jobs") == b"0"
    db.lpush("__pressure__:jobs:not_full", 0)
    with pytest.raises(QueueInUseError, match="plain-client:7") as raised:
        await in_time(task)
    assert raised.value.accepted == 4
    db.lpush("__pressure__:jobs:producer_free", 0)


async def test_an_error_in_the_middle_tells_how_many_were_put(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(bound=4)
    other = await open_queue(create=False)
    task = asyncio.create_task(queue.put_many(numbers(10)))
    await blocked(db)
    await other.close()
    with pytest.raises(QueueClosedError) as raised:
        await in_time(task)
    assert "4 items were put before" in "".join(getattr(raised.value, "__notes__", []))
    assert raised.value.accepted == 4


async def test_every_error_tells_how_many_were_put(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(bound=4, scripting=scripting)
    other = await open_queue("other", bound=1)

    async def forward() -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"
        while await queue.qsize() < 2:
            await asyncio.sleep(0)
        await other.put_many([b"1", b"2"], timeout=0)  # fails after one: that one is not this queue's

    with pytest.raises(QueueFullError) as raised:
        await in_time(queue.put_many(forward()))
    assert (raised.value.name, raised.value.accepted) == ("other", 2)
    with pytest.raises(TypeError) as wrong:
        await queue.put_many([b"2", "text"])  # type: ignore[list-item]
    assert not hasattr(wrong.value, "accepted")
    await queue.close()
    with pytest.raises(QueueClosedError) as closed:
        await queue.put_many(numbers(3))
    assert closed.value.accepted == 0


@pytest.mark.parametrize("bad", ["text", 5])
async def test_an_item_that_cannot_be_encoded_stops_at_its_portion(open_queue: Opener, bad: Any) -> None:
    queue = await open_queue()
    with pytest.raises(TypeError, match="must be bytes") as raised:
        await queue.put_many([*numbers(2500), bad])
    assert "2000 items were put before" in "".join(raised.value.__notes__)
    assert await queue.qsize() == 2000


@pytest.mark.parametrize("items", ["text", b"bytes", bytearray(b"x"), memoryview(b"x")])
async def test_a_single_message_is_no_iterable_of_items(open_queue: Opener, items: Any) -> None:
    queue = await open_queue()
    with pytest.raises(TypeError, match="use put for one item"):
        await queue.put_many(items)
    assert await queue.qsize() == 0


@pytest.mark.parametrize("items", [5, None, object()])
async def test_what_is_no_iterable_is_a_type_error(open_queue: Opener, items: Any) -> None:
    queue = await open_queue()
    with pytest.raises(TypeError):
        await queue.put_many(items)


async def test_a_missing_queue_is_told_even_for_the_first_of_many(open_queue: Opener) -> None:
    queue = await open_queue(create=False)
    with pytest.raises(QueueDoesNotExistError):
        await queue.put_many(numbers(3))


async def test_large_messages_travel_in_portions_of_bytes(open_queue: Opener) -> None:
    queue = await open_queue()
    items = [bytes([index]) * 400_000 for index in range(12)]
    assert await queue.put_many(items) == 12
    got: list[bytes] = []
    while len(got) < 12:
        portion = await queue.get_many(100)
        assert len(portion) < 12
        got += portion
    assert got == items


async def test_a_cancelled_put_many_leaves_the_first_of_the_items_in_order(
    open_queue: Opener, db: redis.Redis, scripting: bool
) -> None:
    queue = await open_queue(bound=4, scripting=scripting)
    task = asyncio.create_task(queue.put_many(numbers(10)))
    await blocked(db)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(task)
    assert await queue.get_many(10) == numbers(4)
    await in_time(queue.put(b"next"))
    assert await queue.get_many(10) == [b"next"]


async def test_concurrent_put_manys_each_keep_their_order(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(bound=7, scripting=scripting)
    tasks = [
        asyncio.create_task(queue.put_many([b"%d-%d" % (task, index) for index in range(30)])) for task in range(4)
    ]
    got: list[bytes] = []
    while len(got) < 120:
        got += await in_time(queue.get_many(50))
    assert await in_time(asyncio.gather(*tasks)) == [30] * 4
    for task in range(4):
        mine = [item for item in got if item.startswith(b"%d-" % task)]
        assert mine == [b"%d-%d" % (task, index) for index in range(30)]
