"""A stage between two queues of events: results are put in the step that acknowledges their inputs, or not at all."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    Backoff,
    Client,
    Durability,
    DurabilityError,
    EventQueue,
    ExactlyOnceError,
    FileQueue,
    LeaseLostError,
    Many,
    OutOfMemoryError,
    QueueClosedError,
    QueueDoesNotExistError,
    pipe,
)
from apressure.events.engine.keys import EventKeys
from apressure.events.engine.steps import Unit
from tests import event_steps
from tests.integration.events.conftest import PATIENCE, Open, in_time
from tests.okq import Okq
from tests.topologies import cluster

IN, OUT = EventKeys("in"), EventKeys("out")
ITEMS = [b"%d" % number for number in range(10)]


async def same(item: Any) -> Any:
    return item


async def two(open_queue: Open, messages: int = 10, bound: int = 0, **options: Any) -> tuple[Any, Any]:
    """A closed source with events, and an empty destination."""
    source, destination = await open_queue("in", bound=0, **options), await open_queue("out", bound=bound)
    await source.put_many(ITEMS[:messages])
    await source.close()
    return source, destination


class Moves:
    """The step, by hand."""

    def __init__(self, destination: EventQueue[bytes]) -> None:
        self.steps = destination._driver.steps
        self.series = self.steps.series()

    async def __call__(self, *units: tuple[list[Any], list[bytes]], expected: bool = False) -> int:
        return await self.steps.move(self.series, IN, self.packed(units), expected)

    def packed(self, units: Any) -> list[Unit]:
        return [
            ([one.claim for one in deliveries], [(b"r" + result, result) for result in results])
            for deliveries, results in units
        ]

    async def again(self, number: int, repeated: bytes, deliveries: list[Any], results: list[bytes]) -> Any:
        """The step with a number, as a late one or as a repeat."""
        ((claims, events),) = self.packed([(deliveries, results)])
        flat = [part for pair in (*claims, *events) for part in pair]
        call = self.series.call("move", lambda: IN.as_source)
        arguments = [number, repeated, b"0", len(claims), len(events), *flat]
        return await self.steps._ask(lambda on_answer: self.steps._send(call, arguments, on_answer, 1))


async def test_a_repeat_is_answered_and_a_late_step_is_not_carried_out(open_queue: Open, db: redis.Redis) -> None:
    source, destination = await two(open_queue, 3)
    one, other, third = await source.receive_many(3)
    move = Moves(destination)
    assert await move(([one], [b"a"])) == 1
    assert await move.again(1, b"1", [one], [b"a"]) == 1
    assert await move(([other], [b"b"])) == 1
    assert await move.again(1, b"1", [one], [b"late"]) == 0
    assert await move.again(3, b"1", [third], [b"c"]) == 1  # the first time got lost
    assert await move.again(3, b"0", [third], [b"c"]) == 1
    assert await destination.get_many(9) == [b"a", b"b", b"c"]
    assert not db.exists(*IN.okq, IN.lock(one.id.encode()))


async def test_what_was_moved_cannot_be_moved_again_even_without_a_record(open_queue: Open, db: redis.Redis) -> None:
    source, destination = await two(open_queue, 3)
    first, second, third = await source.receive_many(3)
    move = Moves(destination)
    assert await move(([first, second], [b"a", b"b"])) == 1
    db.delete(*db.keys("apressure:queue:{out}:op:*"))
    for units in ([([first], [b"x"])], [([third, first], [b"x"])]):
        with pytest.raises(LeaseLostError):
            await move(*units)
    assert await move(([third], [b"c"]), ([first], [b"x"])) == 1  # up to the one that is lost
    assert await destination.get_many(9) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("how", ["nacked", "expired", "taken by another", "acknowledged by id", "flushed"])
async def test_a_lost_claim_puts_nothing(open_queue: Open, db: redis.Redis, okq: Okq, how: str) -> None:
    source, destination = await two(open_queue, 1)
    delivery = await source.receive()
    if how == "nacked":
        await event_steps.settle(source._driver.steps, [delivery.claim], "nack")
    elif how == "acknowledged by id":
        assert okq.ack("in", delivery.id) == 1
    elif how == "flushed":
        await source._driver.steps.flush()
    else:
        db.delete(IN.lock(delivery.id.encode()))
        db.zadd(IN.ours[2], {delivery.id: 1})
        await source._driver.steps.heal()
        if how == "taken by another":
            again = await in_time(source.receive())
    with pytest.raises(LeaseLostError):
        await Moves(destination)(([delivery], [b"x"]))
    mover = await source.mover(destination)
    with pytest.raises(LeaseLostError, match="went back before their results were put: nothing was put"):
        await mover.move([([delivery], [b"x"])])
    assert await destination.qsize() == 0
    if how == "taken by another":
        await again.ack()
    await source.purge()


@pytest.mark.parametrize("lost", [True, False])
async def test_a_destination_that_another_stage_has_closed(
    open_queue: Open, okq: Okq, db: redis.Redis, lost: bool
) -> None:
    """Whose claims are gone has nothing to put: that the destination is closed is no error of his."""
    source, destination = await two(open_queue, 1)
    delivery = await source.receive()
    if lost:
        assert okq.ack("in", delivery.id) == 1
    await destination.close()
    db.delete(OUT.room)
    with pytest.raises(LeaseLostError if lost else QueueClosedError):
        await Moves(destination)(([delivery], [b"x"]))
    assert db.llen(OUT.room) == 1  # the next one that waits for room learns that it is closed
    assert await destination.qsize() == 0
    if not lost:
        await delivery.ack()


async def test_a_lock_that_has_just_expired_is_still_the_movers(open_queue: Open, db: redis.Redis) -> None:
    source, destination = await two(open_queue, 1)
    delivery = await source.receive()
    db.delete(IN.lock(delivery.id.encode()))
    assert await Moves(destination)(([delivery], [b"a"])) == 1
    assert await destination.get() == b"a"
    assert not db.exists(*IN.okq)


async def test_as_many_units_as_there_is_room_for(open_queue: Open) -> None:
    source, destination = await two(open_queue, 10, bound=4)
    found = await source.receive_many(10)
    move = Moves(destination)
    assert await move(*(([one], [one.raw]) for one in found)) == 4
    assert await move(([found[4]], [b"x"])) == 0
    await destination.get_many(3)
    assert await move((found[4:6], [b"a", b"b"]), ([found[6]], []), ([found[7]], [b"c", b"d"])) == 2
    with pytest.raises(ValueError, match="its bound is 4"):
        await move(([found[7]], ITEMS[:5]))
    assert await destination.get_many(9) == [b"3", b"a", b"b"]
    assert await move(([found[7]], [b"c", b"d"]), ([found[8]], []), ([found[9]], [])) == 3
    assert (await source.statistics()).in_flight == 0


async def test_a_full_destination_is_waited_for(open_queue: Open, long_slices: None) -> None:
    source, destination = await two(open_queue, 10, bound=2)
    stage = asyncio.create_task(pipe(source, same, destination, exactly_once=True, close=True, concurrency=3))
    got = []
    async with destination.consumer(prefetch=1) as consumer:
        async with asyncio.timeout(PATIENCE):
            async for item in consumer:
                assert await destination.qsize() <= 2
                got.append(item)
    done = await in_time(stage)
    assert (done.handled, done.put, done.exactly_once) == (10, 10, True)
    assert got == ITEMS


async def test_more_results_than_the_bound_are_a_failed_attempt(open_queue: Open) -> None:
    source, destination = await two(open_queue, 2, bound=2, max_attempts=1)

    async def transform(item: bytes) -> Any:
        return Many([item] * (3 if item == b"0" else 2))

    done = await in_time(pipe(source, transform, destination, exactly_once=True, retry=Backoff(0)))
    assert (done.handled, done.failed, done.put) == (1, 1, 2)
    (letter,) = await source.dead_letters()
    assert letter.error is not None
    assert letter.error.type == "ValueError"
    assert "its bound is 2" in letter.error.message


async def test_a_full_server_still_moves_what_makes_no_more_of_it(open_queue: Open, db: redis.Redis) -> None:
    source, destination = await two(open_queue, 2)
    first, second = await source.receive_many(2)
    move = Moves(destination)
    assert await move(([first], [])) == 1  # the server knows the script
    before = db.config_get("maxmemory")["maxmemory"]
    db.config_set("maxmemory", 1)
    try:
        with pytest.raises(OutOfMemoryError):
            await move(([second], [b"much more than it was"]))
        assert await move(([second], [b"x"])) == 1
    finally:
        db.config_set("maxmemory", before)
    assert await destination.get() == b"x"


@pytest.mark.parametrize("how", ["closed", "deleted"])
async def test_a_destination_that_takes_nothing_gives_everything_back(open_queue: Open, how: str) -> None:
    source, destination = await open_queue("in", bound=0), await open_queue("out", bound=1)
    await source.put_many(ITEMS)
    stage = asyncio.create_task(pipe(source, same, destination, exactly_once=True))
    async with asyncio.timeout(PATIENCE):
        while await destination.qsize() == 0:
            await asyncio.sleep(0.01)
    await (destination.close() if how == "closed" else destination.delete())
    with pytest.raises(QueueClosedError if how == "closed" else QueueDoesNotExistError):
        await in_time(stage)
    assert (await source.statistics()).in_flight == 0
    assert await source.qsize() == 9
    await source.purge()


@pytest.mark.parametrize("what", ["bound", "attempts"])
async def test_a_damaged_queue_puts_nothing(open_queue: Open, db: redis.Redis, what: str) -> None:
    for keys in (IN, OUT):
        source, destination = await two(open_queue, 1)
        delivery = await source.receive()
        key = keys.ours[0 if what == "bound" else 3]
        value = db.dump(key)
        db.delete(key)
        db.set(key, "many")
        with pytest.raises(Exception, match=r"is damaged|WRONGTYPE|not a queue"):
            await Moves(destination)(([delivery], [b"x"]))
        db.delete(key)
        if value is not None:
            db.restore(key, 0, value)
        assert await destination.qsize() == 0
        assert await Moves(destination)(([delivery], [b"a"])) == 1
        assert await destination.get() == b"a"
        await source.delete()
        await destination.delete()


@pytest.mark.parametrize("how", ["one client", "two clients", "another name of the server"])
async def test_one_server_is_recognized(open_queue: Open, url: str, caplog: pytest.LogCaptureFixture, how: str) -> None:
    caplog.set_level(logging.INFO)
    source, destination = await two(open_queue, 3)
    if how == "one client":
        async with Client(url) as client:
            pair: Any = [EventQueue(name, client=client) for name in ("in", "out")]
            done = await in_time(pipe(pair[0], same, pair[1], exactly_once=True))
    else:
        other = url.replace("127.0.0.1", "localhost") if how.startswith("another") else url
        done = await in_time(pipe(source, same, EventQueue("out", url=other), exactly_once=True))
    assert (done.handled, done.put, done.exactly_once) == (3, 3, True)
    assert "the pipe from 'in' to 'out' works exactly once" in caplog.text
    assert await destination.get_many(9) == ITEMS[:3]


@pytest.mark.parametrize("how", ["another database", "AsyncQueue", "FileQueue", "durability", "itself"])
async def test_where_it_is_impossible(open_queue: Open, url: str, tmp_path: Any, how: str) -> None:
    source, _ = await two(open_queue, 3)
    destination: Any
    if how == "AsyncQueue":
        destination = AsyncQueue("other", url=url)
    elif how == "FileQueue":
        destination = FileQueue(tmp_path / "out")
    elif how == "durability":
        destination = EventQueue("out", url=url, durability=Durability(1, timeout=0.01))
    elif how == "itself":
        destination = EventQueue("in", url=url)
    else:
        destination = EventQueue("out", url=url.removesuffix("/0") + "/1")
    why = {
        "another database": "in different databases", "AsyncQueue": "is of class AsyncQueue",
        "FileQueue": "is of class FileQueue",
        "durability": "have different durability=", "itself": "cannot lead from the queue 'in' to itself",
    }[how]  # fmt: skip
    async with destination:
        if how != "itself":
            await destination.create(exist_ok=True)
        with pytest.raises(ValueError if how == "itself" else ExactlyOnceError, match=why):
            await pipe(source, same, destination, exactly_once=True)
        assert await source.qsize() == 3
        if how in ("another database", "AsyncQueue", "FileQueue"):
            assert not (await in_time(pipe(source, same, destination))).exactly_once
            assert (await destination.statistics()).length == 3
            await destination.delete()


async def test_a_move_that_too_few_confirm_was_made(open_queue: Open, url: str) -> None:
    source, destination = await two(open_queue, 2)
    found = await source.receive_many(2)
    async with Client(url, durability=Durability(1, timeout=0.01)) as client:
        unsure: Any = [EventQueue(name, client=client) for name in ("in", "out")]
        mover = await unsure[0].mover(unsure[1])
        with pytest.raises(DurabilityError, match="0 of 1 replicas have confirmed it"):
            await mover.move([([one], [one.raw]) for one in found])
    assert all(one.settled for one in found)
    assert await destination.get_many(20) == ITEMS[:2]


async def test_a_stage_that_waits_for_room_is_not_stuck(open_queue: Open) -> None:
    source, destination = await two(open_queue, 3, bound=1)
    mover = await source.mover(destination)
    async with source.consumer("manual", prefetch=2, lease=1, max_hold=1) as consumer:
        first = await in_time(anext(consumer))
        await mover.move([([first], [b"a"])])
        assert first.settled
        second = await in_time(anext(consumer))
        moving = asyncio.create_task(mover.move([([second], [b"b"])]))
        await asyncio.sleep(3)  # three times as long as `max_hold`
        assert not moving.done()
        assert await destination.get() == b"a"
        await in_time(moving)
    assert await destination.get() == b"b"
    assert await source.get_many(5) == [b"2"]


@pytest.mark.parametrize("kind", ["valkey"])
async def test_in_a_cluster_it_is_at_least_once(kind: str) -> None:
    with cluster(kind, nodes=3) as nodes:
        async with EventQueue("in", url=nodes.url) as source, EventQueue("out", url=nodes.url) as destination:
            await source.put_many(ITEMS)
            await source.close()
            with pytest.raises(ExactlyOnceError, match="each queue of events has a slot of its own"):
                await pipe(source, same, destination, exactly_once=True)
            assert not (await in_time(pipe(source, same, destination))).exactly_once
            assert await destination.get_many(20) == ITEMS
