"""Where everything is after each kind of end."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    Client,
    QueueDoesNotExistError,
    ServerUnavailableError,
)
from apressure.testing.proxy import Proxy
from tests.integration.conftest import PATIENCE, Opener, cancelled, eventually, everything, in_time
from tests.integration.pipe.conftest import OUT, Held, Pair, Pipe, begun, drained, items, same, tidy


@pytest.mark.parametrize("turns", [*range(40), 0.002, 0.005, 0.01])
@pytest.mark.parametrize("batch", [None, 3])
async def test_cancelled_at_any_moment_everything_is_in_one_of_the_two(
    pipe: Pipe, two: Pair, turns: float, batch: int | None
) -> None:
    source, destination = await two(40, bound=10)

    async def transform(item: Any) -> Any:
        await asyncio.sleep(0)
        return item

    task = await begun(pipe(source, transform, destination, batch=batch, concurrency=2))  # type: ignore[call-overload]
    if isinstance(turns, int):
        for _ in range(turns):
            await asyncio.sleep(0)
    else:
        await asyncio.sleep(turns)
    await cancelled(task)
    await tidy(source, destination)
    assert sorted(await drained(destination) + await drained(source)) == sorted(items(40))


async def test_cancelled_transforms_can_clean_up(pipe: Pipe, two: Pair) -> None:
    source, destination = await two(3)
    begun_with, ended = [], []

    async def transform(item: bytes) -> bytes:
        begun_with.append(item)
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            for _ in range(20):
                await asyncio.sleep(0)
            ended.append(item)
        return item

    task = await begun(pipe(source, transform, destination, concurrency=3))
    await eventually(lambda: len(begun_with) == 3)
    await cancelled(task)
    assert len(ended) == 3
    assert await drained(source) == items(3)


async def test_over_a_bad_line(pipe: Pipe, two: Pair, url: str) -> None:
    """Connections are cut, replies lost and delivered twice, again and again: each message is there once."""
    source, destination = await two(300, bound=20)
    got: list[bytes] = []

    async def drain() -> None:
        async for item in destination:
            got.append(item)

    draining = await begun(drain())
    async with Proxy(url, random.Random(7)) as line:
        line.trouble.lose = line.trouble.cut = line.trouble.twice = 0.03
        quick: dict[str, Any] = {"url": line.url, "response_timeout": 0.5, "retry_timeout": 60}
        while True:
            try:
                await in_time(pipe(AsyncQueue("in", **quick), same, AsyncQueue("out", **quick), exactly_once=True))
                break
            except ServerUnavailableError:  # at the very beginning
                continue
    await destination.close()
    await in_time(draining)
    assert got == items(300)
    await tidy(source, destination)


async def test_a_connection_that_breaks_at_the_start(pipe: Pipe, two: Pair, url: str) -> None:
    """A pipe first finds out whether both queues are on one server. The reply is lost, and the pipe asks again."""
    _, arrived = await two(3)
    with Proxy(url) as line:
        async with Client(line.url) as client:
            source, destination = (AsyncQueue[bytes](name, client=client) for name in ("in", "out"))
            await source.exists()
            cuts = []

            def cut(data: bytes) -> bytes | None:
                if data != b"+OK\r\n":  # the reply to SET
                    return data
                cuts.append(data)
                line.rewrite = bytes
                return None

            line.rewrite = cut
            done = await in_time(pipe(source, same, destination))
            assert (done.handled, done.exactly_once, len(cuts)) == (3, True, 1)
    assert await drained(arrived) == items(3)


async def test_a_lost_lease_puts_nothing(pipe: Pipe, two: Pair, open_queue: Opener, db: redis.Redis) -> None:
    source, destination = await two(3)
    held = Held()
    task = await begun(pipe(source, held, destination, concurrency=3))
    await eventually(lambda: len(held.begun) == 3)
    lease = "apressure:__pressure__:in:consumer_lease"
    db.hset(lease, "deadline", 1)
    other = await open_queue("in", create=False)
    stolen = await in_time(other.receive_many(3))
    assert [delivery.redelivered for delivery in stolen] == [True] * 3
    before = everything(db)
    held.go.set()
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert everything(db) == before
    for delivery in stolen[:1]:
        await delivery.ack()
    for delivery in stolen[:0:-1]:
        await delivery.nack()
    await in_time(task)
    assert sorted(await drained(destination)) == items(3)[1:]
    await tidy(source, destination)


async def test_a_source_that_is_deleted(pipe: Pipe, two: Pair, db: redis.Redis) -> None:
    source, destination = await two(3)
    held = Held()
    task = await begun(pipe(source, held, destination))
    await eventually(lambda: held.begun)
    db.flushall()
    held.go.set()
    with pytest.raises(QueueDoesNotExistError):
        await in_time(task)


async def test_a_client_that_is_closed_while_it_moves(pipe: Pipe, two: Pair, url: str, db: redis.Redis) -> None:
    source, destination = await two(20, bound=3)
    client = Client(url)
    task = await begun(pipe(AsyncQueue("in", client=client), same, AsyncQueue("out", client=client)))
    await eventually(lambda: db.llen(OUT) == 3)
    await client.aclose()
    with pytest.raises(Exception, match="closed"):
        await in_time(task)
    assert await drained(destination) + await drained(source) == items(20)
    await tidy(source, destination)
