"""A destination that takes nothing, or little."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    Backoff,
    Many,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueInUseError,
)
from tests.integration.conftest import Opener, blocked, cancelled, eventually, in_time
from tests.integration.pipe.conftest import OUT, Held, Pair, Pipe, begun, drained, items, same, tidy
from tests.servers import admin


async def test_it_waits_for_room_with_the_deliveries_leased(pipe: Pipe, two: Pair, db: redis.Redis) -> None:
    source, destination = await two(50, bound=3)
    task = await begun(pipe(source, same, destination))
    await eventually(lambda: db.llen(OUT) == 3)
    await blocked(db)
    assert (await source.statistics()).in_flight > 0
    got = []
    while len(got) < 50:
        got.append(await in_time(destination.get()))
        assert db.llen(OUT) <= 3
    assert got == items(50)
    await in_time(task)
    await tidy(source, destination)


async def test_it_does_not_work_far_ahead_of_a_full_destination(pipe: Pipe, two: Pair, db: redis.Redis) -> None:
    source, destination = await two(3000, bound=3)
    begun_with = []

    async def transform(item: bytes) -> bytes:
        begun_with.append(item)
        return item

    task = await begun(pipe(source, transform, destination))
    await eventually(lambda: db.llen(OUT) == 3)
    await blocked(db)
    for number in range(30):
        assert await in_time(destination.get()) == b"%d" % number
    await eventually(lambda: db.llen(OUT) == 3)
    assert len(begun_with) < 100
    await cancelled(task)
    assert len(await drained(destination) + await drained(source)) == 2970


async def test_all_results_of_an_input_go_in_one_step(pipe: Pipe, two: Pair, db: redis.Redis) -> None:
    source, destination = await two(2, bound=5)
    await destination.put_many([b"x"] * 3)

    async def five(item: bytes) -> Many[bytes]:
        return Many([item] * 5)

    task = await begun(pipe(source, five, destination))
    for left in (3, 2, 1):
        while (await source.statistics()).in_flight == 0:
            await asyncio.sleep(0.005)
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert db.llen(OUT) == left
        assert await destination.get() == b"x"
    assert [await in_time(destination.get()) for _ in range(10)] == [b"0"] * 5 + [b"1"] * 5
    await in_time(task)


async def test_more_results_than_the_bound_are_a_failed_attempt(
    pipe: Pipe, two: Pair, open_queue: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    source, destination = await two(5, bound=3, max_attempts=2)

    async def transform(item: bytes) -> Many[bytes]:
        return Many([item] * (4 if item == b"2" else 1))

    task = await begun(pipe(source, transform, destination, retry=Backoff(0)))
    assert [await in_time(destination.get()) for _ in range(4)] == [b"0", b"1", b"3", b"4"]
    done = await in_time(task)
    assert (done.handled, done.failed) == (4, 2)
    assert "more results for one step than the queue 'out' can hold: its bound is 3 messages" in caplog.text
    assert await drained(await open_queue("in:dead", create=False)) == [b"2"]


async def test_a_closed_destination_gives_everything_back(pipe: Pipe, two: Pair) -> None:
    source, destination = await two(20, closed=False)
    await destination.close()
    with pytest.raises(QueueClosedError, match="'out' is closed"):
        await in_time(pipe(source, same, destination))
    await tidy(source, destination)
    assert await drained(source) == items(20)


@pytest.mark.parametrize("how", ["close", "delete", "unblock"])
async def test_a_destination_that_ends_while_it_is_waited_for(pipe: Pipe, two: Pair, db: redis.Redis, how: str) -> None:
    source, destination = await two(20, bound=3)
    task = await begun(pipe(source, same, destination))
    await eventually(lambda: db.llen(OUT) == 3)
    await blocked(db)
    moved = await destination.get_many(2) if how == "close" else []
    if how == "close":
        await eventually(lambda: db.llen(OUT) == 3)
        await blocked(db)
    await getattr(destination, how)()
    error = {"close": QueueClosedError, "delete": QueueDoesNotExistError}.get(how, Exception)
    with pytest.raises(error, match="out"):
        await in_time(task)
    await tidy(source)
    back = await drained(source)
    if how != "delete":
        moved += await drained(destination)
        assert moved + back == items(20)
    assert back == items(20)[20 - len(back) :]


async def test_the_producer_role_is_waited_for(pipe: Pipe, two: Pair, open_queue: Opener, db: redis.Redis) -> None:
    source, destination = await two(5)
    holder = await open_queue("out", create=False)
    async with holder.producer(exclusive=True, close=False):
        task = await begun(pipe(source, same, destination))
        await blocked(db, 1)
        assert db.llen(OUT) == 0
    await in_time(task)
    assert await drained(destination) == items(5)
    async with destination.producer(exclusive=True, close=False):
        with pytest.raises(QueueInUseError, match="itself"):
            again = await open_queue("again")
            await again.put(b"1")
            await in_time(pipe(again, same, destination))


async def test_a_step_by_step_producer_is_waited_for(pipe: Pipe, two: Pair, db: redis.Redis) -> None:
    source, destination = await two(5)
    assert db.rpop(f"{OUT}:producer_free")
    task = await begun(pipe(source, same, destination))
    await blocked(db, 1)
    db.lpush(f"{OUT}:producer_free", 1)
    await in_time(task)
    await tidy(destination)
    assert await drained(destination) == items(5)


async def test_a_full_server_refuses_what_grows_and_lets_pass_what_does_not(
    pipe: Pipe, make_server: Any, server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made = make_server("redis" if "redis" in server.software.lower() else "valkey")
    async with AsyncQueue("in", url=made.url) as source, AsyncQueue("out", url=made.url) as destination:
        await source.create()
        await destination.create()
        await source.put_many([b"1", b"22"])

        async def transform(item: bytes) -> bytes:
            return item if item == b"1" else item * 2

        with admin(made) as db:
            held = Held()

            async def first_wait(item: bytes) -> bytes:
                await held(item)
                return await transform(item)

            task = await begun(pipe(source, first_wait, destination))
            await eventually(lambda: held.begun)
            db.config_set("maxmemory-policy", "noeviction")
            db.config_set("maxmemory", 1)
            held.go.set()
            await eventually(lambda: "continues after an error" in caplog.text)
            assert db.lrange(OUT, 0, -1) in ([b"1"], [])  # with the second one, the first may have been refused
            db.config_set("maxmemory", 0)
            assert [await in_time(destination.get()) for _ in range(2)] == [b"1", b"2222"]
            await source.close()
            await in_time(task)
            await tidy(source, destination)


async def test_a_wait_for_room_is_no_standstill(
    pipe: Pipe, two: Pair, db: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However long the destination stays full: its consumers may be paused for a night."""
    consumer = AsyncQueue.consumer
    monkeypatch.setattr(
        AsyncQueue, "consumer", lambda self, *args, **options: consumer(self, *args, **{**options, "max_hold": 2})
    )
    source, destination = await two(5, bound=3)
    await destination.pause()
    task = await begun(pipe(source, same, destination, lease=2))
    await eventually(lambda: db.llen(OUT) == 3)
    await asyncio.sleep(6)
    await destination.resume()
    assert [await in_time(destination.get()) for _ in range(5)] == items(5)
    assert (await in_time(task)).handled == 5
    assert "max_hold" not in caplog.text
    await tidy(source, destination)
