"""put_many: every kind of iterable, partial acceptance, order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import redis

from apressure import (
    FileQueue,
    QueueClosedError,
    QueueEmptyError,
    QueueFullError,
    QueueInUseError,
)
from tests.integration.conftest import Opener, blocking, cancelled, eventually, fails, in_time, open_two


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


async def test_generators_are_read_as_far_as_there_is_room(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(bound=10)
    taken = 0

    def generate() -> Iterator[bytes]:
        nonlocal taken
        for item in numbers(100_000):
            taken += 1
            yield item

    task = await blocking(db, queue.put_many(generate()))
    assert await queue.qsize() == 10
    assert taken <= 2000  # no further than a portion ahead
    await cancelled(task)
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
    open_queue: Opener, db: redis.Redis, scripting: bool
) -> None:
    queue = await open_queue(scripting=scripting)

    async def is_in(count: int) -> None:
        await eventually(
            lambda: db.llen("__pressure__:jobs") == count and db.llen("__pressure__:jobs:producer_free") == 1
        )
        await asyncio.sleep(0.05)  # the reply is in the socket

    async def generate() -> AsyncIterator[bytes]:
        yield b"1"
        await is_in(1)
        yield b"2"
        await is_in(2)
        raise KeyError("source")

    raised = await fails(KeyError, queue.put_many(generate()), "source")
    assert "2 items were put before" in "".join(raised.__notes__)
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

    raised = await fails(QueueEmptyError, queue.put_many(generate()), "source")
    assert raised.accepted == await queue.qsize()


@pytest.mark.parametrize("ack", ["auto", "manual"])
async def test_a_consumer_is_refused_before_anything_is_taken(open_queue: Opener, ack: Any, tmp_path: Path) -> None:
    source = await open_queue()
    queue = await open_queue("results")
    await source.put_many([b"1", b"2"])
    async with (
        source.consumer(ack=ack) as consumer,
        queue.producer(close=False) as producer,
        FileQueue(tmp_path / "files") as files,
    ):
        for put_many in (queue.put_many, producer.put_many, files.put_many):
            for items in (consumer, aiter(consumer), source.consumer(ack=ack)):
                await fails(
                    TypeError, put_many(items), r"does not take a consumer.*apressure\.pipe.*queue\.put\(item\)"
                )
    assert await queue.qsize() == 0
    statistics = await source.statistics()
    assert (statistics.length, statistics.in_flight, statistics.consumed_messages) == (2, 0, 0)


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
    queue, other = await open_two(open_queue)

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

    raised = await fails(QueueClosedError, queue.put_many(generate()))
    assert "1 items were put before" in "".join(raised.__notes__)


async def test_an_asynchronous_generator_that_ended_before_the_put_failed_does_not_look_like_a_cancellation(
    open_queue: Opener,
) -> None:
    queue = await open_queue()
    await queue.close()

    async def generate() -> AsyncIterator[bytes]:
        yield b"1"

    async def work() -> int:
        with pytest.raises(QueueClosedError):
            await queue.put_many(generate())
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert await in_time(work()) == 0


async def test_an_asynchronous_generator_that_sleeps_does_not_hide_an_error_until_it_wakes(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue, other = await open_two(open_queue, bound=1)

    async def generate() -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"
        await asyncio.Event().wait()

    task = await blocking(db, queue.put_many(generate()))
    await other.close()
    await fails(QueueClosedError, task)


@pytest.mark.parametrize(("count", "scripting"), [(10, True), (5000, True), (10, False)])
async def test_a_timeout_tells_how_many_were_accepted(open_queue: Opener, count: int, scripting: bool) -> None:
    queue = await open_queue(bound=4, scripting=scripting)
    with pytest.raises(QueueFullError) as raised:
        await queue.put_many(numbers(count), timeout=0.1)
    assert raised.value.accepted == 4
    assert await queue.get_many(10) == numbers(4)
    with pytest.raises(QueueFullError) as raised:
        await queue.put_many(numbers(count), timeout=0)
    assert raised.value.accepted == 4
    assert await queue.get_many(10) == numbers(4)


async def test_a_timeout_behind_another_producer_tells_that_too(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(bound=4)
    task = await blocking(db, queue.put_many(numbers(10), timeout=4))
    db.rpop("__pressure__:jobs:producer_free")
    db.set("__pressure__:jobs:producer", "plain-client:7")
    assert db.rpop("__pressure__:jobs") == b"0"
    db.lpush("__pressure__:jobs:not_full", 0)
    raised = await fails(QueueInUseError, task, "plain-client:7")
    assert raised.accepted == 4
    db.lpush("__pressure__:jobs:producer_free", 0)


async def test_an_error_in_the_middle_tells_how_many_were_put(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_two(open_queue, bound=4)
    task = await blocking(db, queue.put_many(numbers(10)))
    await other.close()
    raised = await fails(QueueClosedError, task)
    assert "4 items were put before" in "".join(getattr(raised, "__notes__", []))
    assert raised.accepted == 4


async def test_every_error_tells_how_many_were_put(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(bound=4, scripting=scripting)
    other = await open_queue("other", bound=1)

    async def forward() -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"
        while await queue.qsize() < 2:
            await asyncio.sleep(0)
        await other.put_many([b"1", b"2"], timeout=0)  # fails after one: that one is not this queue's

    raised = await fails(QueueFullError, queue.put_many(forward()))
    assert (raised.name, raised.accepted) == ("other", 2)
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


@pytest.mark.parametrize("items", ["text", b"bytes", bytearray(b"x"), memoryview(b"x"), 5, None, object()])
async def test_what_is_no_iterable_of_items_is_refused(open_queue: Opener, items: Any) -> None:
    queue = await open_queue()
    single = isinstance(items, str | bytes | bytearray | memoryview)
    with pytest.raises(TypeError, match="use put for one item" if single else None):
        await queue.put_many(items)
    assert await queue.qsize() == 0


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
    await cancelled(await blocking(db, queue.put_many(numbers(10))))
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
