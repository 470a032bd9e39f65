"""The fast subset on fakeredis, as users run it in their unit tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import fakeredis
import pytest

from apressure import (
    AsyncQueue,
    Client,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
)
from tests.integration.conftest import in_time


@pytest.fixture
async def queue() -> AsyncIterator[AsyncQueue[Any]]:
    async with AsyncQueue("jobs", redis=fakeredis.FakeAsyncRedis()) as opened:
        await opened.create(bound=2)
        yield opened


async def test_put_and_get(queue: AsyncQueue[bytes]) -> None:
    await queue.put(b"1")
    await queue.put_nowait(b"2")
    assert await queue.qsize() == 2
    assert (await queue.peek(), await queue.peek_newest()) == (b"1", b"2")
    assert [await queue.get(), await queue.get_nowait()] == [b"1", b"2"]
    statistics = await queue.statistics()
    assert (statistics.produced_messages, statistics.consumed_bytes) == (2, 2)


async def test_full_and_empty(queue: AsyncQueue[bytes]) -> None:
    with pytest.raises(QueueEmptyError):
        await queue.get_nowait()
    with pytest.raises(QueueEmptyError):
        await in_time(queue.get(timeout=0.05))
    with pytest.raises(QueueFullError) as raised:
        await in_time(queue.put_many([b"1", b"2", b"3"], timeout=0.05))
    assert raised.value.accepted == 2
    with pytest.raises(QueueFullError):
        await queue.put_nowait(b"4")
    await queue.put(b"5", force=True)
    assert await queue.get_many(5) == [b"1", b"2", b"5"]


async def test_blocked_operations_go_on(queue: AsyncQueue[bytes]) -> None:
    getting = asyncio.create_task(queue.get())
    await asyncio.sleep(0.02)
    await queue.put(b"1")
    assert await in_time(getting) == b"1"
    await queue.put_many([b"2", b"3"])
    putting = asyncio.create_task(queue.put(b"4"))
    await asyncio.sleep(0.02)
    assert await queue.get() == b"2"
    await in_time(putting)
    assert await queue.get_many(5) == [b"3", b"4"]


async def test_producer_and_consumer(queue: AsyncQueue[bytes]) -> None:
    items = [b"%d" % index for index in range(20)]

    async def produce() -> None:
        async with queue.producer() as producer:
            await producer.put_many(items)

    async def consume() -> list[bytes]:
        async with queue.consumer(delete=True) as consumer:
            return [item async for item in consumer]

    _, got = await in_time(asyncio.gather(produce(), consume()))
    assert got == items
    assert not await queue.exists()


async def test_a_consumer_that_fails_gives_back(queue: AsyncQueue[bytes]) -> None:
    await queue.put_many([b"1", b"2"])
    with pytest.raises(KeyError):
        async with queue.consumer() as consumer:
            async for _ in consumer:
                raise KeyError
    delivery = await queue.receive()
    assert (delivery.item, delivery.redelivered) == (b"1", True)
    await delivery.ack()
    assert await queue.get() == b"2"


async def test_dead_letters(queue: AsyncQueue[Any]) -> None:
    limited: AsyncQueue[bytes] = AsyncQueue("jobs", client=queue.client, max_attempts=2)
    await limited.put_many([b"poison", b"good"])
    for _ in range(2):
        await (await limited.receive()).nack()
    delivery = await limited.receive()
    assert (delivery.item, delivery.attempts) == (b"good", 1)
    await delivery.ack()
    dead: AsyncQueue[bytes] = AsyncQueue("jobs:dead", client=queue.client)
    assert await dead.peek() == b"poison"
    assert await limited.requeue() == 1
    assert (await queue.get(), await dead.qsize()) == (b"poison", 0)


async def test_iteration_and_close(queue: AsyncQueue[bytes]) -> None:
    await queue.put_many([b"1", b"2"])
    await queue.close()
    assert [item async for item in queue] == [b"1", b"2"]
    for operation in (queue.put(b"x"), queue.get(), queue.close()):
        with pytest.raises(QueueClosedError):
            await operation
    await in_time(queue.wait_closed())


async def test_the_errors_of_missing_and_existing_queues(queue: AsyncQueue[bytes]) -> None:
    with pytest.raises(QueueAlreadyExistsError):
        await queue.create()
    assert await queue.create(exist_ok=True) is False
    await queue.delete()
    for operation in (queue.put(b"x"), queue.get(), queue.close(), queue.delete(), queue.qsize()):
        with pytest.raises(QueueDoesNotExistError):
            await operation


async def test_two_clients_of_one_fake_server() -> None:
    server = fakeredis.FakeServer()
    one, two = (fakeredis.FakeAsyncRedis(server=server) for _ in range(2))
    async with AsyncQueue("jobs", redis=one) as putter, Client(redis=two) as client:
        getter: AsyncQueue[bytes] = AsyncQueue("jobs", client=client)
        await putter.create()
        getting = asyncio.create_task(getter.get())
        await asyncio.sleep(0.02)
        await putter.put(b"x")
        assert await in_time(getting) == b"x"
        assert await client.queues() == ["jobs"]
    assert await one.ping()


async def test_a_fake_client_that_decodes_its_own_replies() -> None:
    async with AsyncQueue("jobs", redis=fakeredis.FakeAsyncRedis(decode_responses=True)) as queue:
        await queue.create()
        await queue.put(b"\xff\x00")
        assert await queue.get() == b"\xff\x00"


async def test_a_codec(queue: AsyncQueue[bytes]) -> None:
    async with AsyncQueue("objects", client=queue.client, codec="json") as objects:
        await objects.create()
        await objects.put({"a": [1, None]})
        assert await objects.get() == {"a": [1, None]}
