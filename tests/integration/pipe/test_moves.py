"""The step that puts results and acknowledges their inputs."""

from __future__ import annotations

import random
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    pipe,
)
from apressure.core.waiting import FULL, Wait
from apressure.testing.proxy import Proxy
from tests.integration.conftest import eventually, everything, in_time
from tests.integration.dead_letters.test_dead_letters import lose_one
from tests.integration.pipe.conftest import OUT, Held, Pair, Queue, begun, drained, items, tidy


class Moves:
    """The step, by hand, with three deliveries of the source in flight."""

    def __init__(self, source: Queue, destination: Queue, token: bytes) -> None:
        self.source, self.token = source._engine.keys, token
        self.steps = destination._engine.steps  # type: ignore[union-attr]
        self.series = self.steps.series()

    async def __call__(self, runs: list[int], results: list[bytes], token: bytes | None = None) -> Any:
        return await self.steps.move(self.series, self.source, token or self.token, False, runs, results)

    async def again(self, runs: list[int], results: list[bytes], number: int, repeated: bytes) -> Any:
        """The step with a number, as a late one or as a repeat."""
        uid = self.steps._uid
        arguments = [uid, number, repeated, b"0", self.token, b"0", len(runs), *runs, *results]
        return await self.steps._ask(self.series.call("move", lambda: self.source.for_script("none")), arguments)


async def in_hand(source: Queue, destination: Queue) -> tuple[Moves, list[Any]]:
    deliveries = await source.receive_many(10)
    return Moves(source, destination, deliveries[0]._lease.token), deliveries


async def test_a_lost_reply_moves_nothing_twice(two: Pair, db: redis.Redis, url: str) -> None:
    source, destination = await two(3, closed=False)
    move, deliveries = await in_hand(source, destination)
    assert await move([1, 0, 1, 1, 1, 1], []) == 1  # the server knows the script
    for delivery in deliveries[:0:-1]:
        await delivery.nack()
    async with Proxy(url, random.Random(1)) as line:
        here, there = AsyncQueue("in", url=line.url), AsyncQueue("out", url=line.url)
        held = Held()
        task = await begun(pipe(here, held, there, concurrency=2, exactly_once=True))
        await eventually(lambda: len(held.begun) == 2)

        async def finish() -> None:
            held.go.set()
            await eventually(lambda: line.cuts)

        await lose_one(line, finish(), lambda: db.llen(OUT) == 2)
        await source.put(b"3")
        await source.close()
        assert (await in_time(task)).put == 3
    assert await drained(destination) == items(4)[1:]
    here_seen, there_seen = await source.statistics(), await destination.statistics()
    assert (here_seen.consumed_messages, there_seen.produced_messages) == (4, 3)
    await tidy(source, destination)


async def test_a_repeat_is_answered_and_a_late_step_is_not_carried_out(two: Pair) -> None:
    source, destination = await two(3)
    move, _ = await in_hand(source, destination)
    assert await move([1, 1, 1, 1, 1, 1], [b"a"]) == 1
    assert await move.again([1, 1, 1, 1, 1, 1], [b"a"], 1, b"1") == 1
    assert await move([1, 1, 1, 2, 2, 1], [b"b"]) == 1
    assert await move.again([1, 1, 1, 3, 3, 1], [b"late"], 1, b"0") == 0
    assert await move([1, 1, 1, 3, 3, 1], [b"c"]) == 1
    assert await drained(destination) == [b"a", b"b", b"c"]
    await tidy(source, destination)


@pytest.mark.parametrize("forgotten", [True, False])
async def test_what_was_moved_cannot_be_moved_again_even_without_a_record(
    two: Pair, db: redis.Redis, forgotten: bool
) -> None:
    source, destination = await two(3)
    move, _ = await in_hand(source, destination)
    assert await move([2, 1, 1, 1, 2, 2], [b"a", b"b"]) == 2
    if forgotten:
        for key in db.keys("apressure:__pressure__:out:op:*"):
            db.delete(key)
    before = everything(db)
    for runs in ([2, 1, 1, 1, 2, 2], [2, 1, 1, 2, 3, 2], [2, 1, 1, 3, 4, 2]):
        with pytest.raises(Exception, match="lease"):
            await move(runs, [b"x", b"y"])
    with pytest.raises(Exception, match="lease"):
        await move([1, 1, 1, 3, 3, 1], [b"x"], token=b"other")
    assert everything(db) == before
    assert await move([1, 1, 1, 3, 3, 1], [b"c"]) == 1
    assert await drained(destination) == [b"a", b"b", b"c"]
    await tidy(source, destination)


async def test_as_many_units_as_there_is_room_for(two: Pair, db: redis.Redis) -> None:
    source, destination = await two(10, bound=4)
    move, _ = await in_hand(source, destination)
    many = [b"%d" % number for number in range(10)]
    assert await move([10, 1, 1, 1, 10, 10], many) == 4
    assert await move([6, 1, 1, 5, 10, 6], many) == 0
    assert (await source.statistics()).consumed_bytes == 4
    await destination.get_many(3)
    # Two deliveries that cannot be torn apart, one without a result, and one with too many for now.
    runs = [1, 2, 2, 5, 5, 1, 7, 7, 1, 1, 0, 1, 6, 6, 1, 1, 2, 1, 8, 8, 1]
    assert await move(runs, [b"a", b"b", b"c", b"d"]) == 2
    assert await move([1, 2, 1, 8, 8, 1], [b"c", b"d"]) == Wait("few", 20)
    with pytest.raises(ValueError, match="its bound is 4"):
        await move([1, 5, 1, 8, 8, 1], many[:5])
    await destination.get_many(1)
    assert await move([1, 2, 1, 8, 8, 1], [b"c", b"d"]) == 1
    assert await destination.get_many(9) == [b"a", b"b", b"c", b"d"]
    assert await move([1, 0, 1, 9, 9, 1, 1, 0, 1, 10, 10, 1], []) == 2
    seen = await source.statistics()
    assert (seen.consumed_messages, seen.consumed_bytes) == (10, 10)
    await tidy(source)


async def test_the_permit_of_a_foreign_consumer_is_waited_for(two: Pair, db: redis.Redis) -> None:
    source, destination = await two(3, bound=1)
    move, deliveries = await in_hand(source, destination)
    db.rpop(f"{OUT}:not_full")
    db.rpop(f"{OUT}:consumer_free")
    assert await move([1, 1, 1, 1, 1, 1], [b"a"]) == FULL
    db.lpush(f"{OUT}:not_full", 1)
    db.lpush(f"{OUT}:consumer_free", 1)
    assert await move([1, 1, 1, 1, 1, 1], [b"a"]) == 1
    for delivery in deliveries[1:]:
        await delivery.nack()


@pytest.mark.parametrize("where", ["in", "out"])
@pytest.mark.parametrize("what", [":bound", ":stats:consumed_bytes", ":stats:produced_bytes"])
async def test_a_damaged_queue(two: Pair, db: redis.Redis, where: str, what: str) -> None:
    source, destination = await two(3)
    move, deliveries = await in_hand(source, destination)
    key = f"__pressure__:{where}{what}"
    relevant = (where, what) not in {("in", ":stats:produced_bytes"), ("out", ":stats:consumed_bytes")}
    value = db.get(key)
    db.set(key, "many")
    before = everything(db)
    if relevant:
        with pytest.raises(Exception, match="damaged"):
            await move([1, 1, 1, 1, 1, 1], [b"a"])
        assert everything(db) == before
    db.set(key, value or 0)
    assert await move([1, 1, 1, 1, 1, 1], [b"a"]) == 1
    for delivery in deliveries[1:]:
        await delivery.nack()
