"""Several stages share a source: each item goes through one of them, once, and the last one closes the destination."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    Backoff,
    LeaseLostError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueInUseError,
    pipe,
)
from apressure.pressure.engine.sending import script
from apressure.testing.proxy import Proxy, Trouble
from tests.integration.conftest import Opener, cancelled, eventually, everything, fails, in_time
from tests.integration.pipe.conftest import OUT, Held, Pair, Queue, begun, drained, items, same, tidy
from tests.integration.pipe.test_moves import Moves
from tests.integration.shared.test_shared_trouble import Member

LEASE = "apressure:__pressure__:in:consumer_lease"
TURNS = "apressure:__pressure__:in:turns"


def expire(db: redis.Redis, token: bytes = b"") -> None:
    """Let the leases of all members run out, or that of one."""
    for field, record in db.hgetall(LEASE).items():
        if field.startswith(b"member:" + token):
            db.hset(LEASE, mapping={field: b"1:" + record.partition(b":")[2], b"earliest": 1})


async def settle_down() -> None:
    """Give stages the time to do what they must not do."""
    for _ in range(20):
        await asyncio.sleep(0.01)


async def member(source: Queue, token: bytes, most: int) -> Member:
    """A member that has received so many messages, if they are there."""
    made = Member(source, token)
    await made.join()
    await made.receive(1, most)
    return made


# The step, by hand


async def test_a_repeat_is_answered_and_a_late_step_is_not_carried_out(two: Pair) -> None:
    source, destination = await two(3)
    one = await member(source, b"one", 3)
    move = Moves(source, destination, b"one")
    assert await move([1, 1, 1, 1, 1, 1], [b"a"]) == 1
    assert await move.again([1, 1, 1, 1, 1, 1], [b"a"], 1, b"1") == 1
    assert await move([1, 1, 1, 2, 2, 1], [b"b"]) == 1
    assert await move.again([1, 1, 1, 3, 3, 1], [b"late"], 1, b"0") == 0
    assert await move([1, 1, 1, 3, 3, 1], [b"c"]) == 1
    assert await drained(destination) == [b"a", b"b", b"c"]
    assert await one.settle(1, leave=b"1") == 0
    await tidy(source, destination)


async def test_a_member_moves_only_what_it_has(two: Pair, db: redis.Redis) -> None:
    source, destination = await two(5)
    await Member(source, b"two").join()
    one = await member(source, b"one", 2)
    two_ = Member(source, b"two")
    await two_.receive(1, 2)  # numbers 3 and 4
    move = Moves(source, destination, b"one")
    before = everything(db)
    foreign = ([1, 1, 1, 3, 3, 1], [2, 1, 1, 2, 3, 2], [4, 0, 1, 1, 4, 4], [1, 1, 2, 1, 1, 1, 4, 4, 1])
    for runs in (*foreign, [2, 1, 1, 5, 6, 2]):
        with pytest.raises(LeaseLostError):
            await move(runs, [b"x"] * runs[0] * runs[1])
    for token in (b"nobody", b"shared:1"):
        with pytest.raises(LeaseLostError):
            await move([1, 1, 1, 1, 1, 1], [b"x"], token=token)
    assert everything(db) == before
    assert await move([2, 1, 1, 1, 2, 2], [b"a", b"b"]) == 2
    for runs in ([2, 1, 1, 1, 2, 2], [1, 1, 1, 2, 2, 1]):  # it has left, also where no record says so
        with pytest.raises(LeaseLostError):
            await move(runs, [b"x"] * runs[0])
    assert await Moves(source, destination, b"two")([1, 2, 2, 3, 3, 1, 4, 4, 1], [b"c", b"d"]) == 1
    assert await drained(destination) == [b"a", b"b", b"c", b"d"]
    seen = await source.statistics()
    assert (seen.consumed_messages, seen.consumed_bytes, seen.in_flight, seen.length) == (4, 4, 0, 1)
    assert [await each.settle(1, leave=b"1") for each in (one, two_)] == [0, 0]
    assert await drained(source) == [b"4"]
    await tidy(source, destination)


async def test_as_many_units_as_there_is_room_for(two: Pair) -> None:
    source, destination = await two(6, bound=4)
    one = await member(source, b"one", 6)
    move = Moves(source, destination, b"one")
    assert await move([6, 1, 1, 1, 6, 6], items(6)) == 4
    assert await move([2, 1, 1, 5, 6, 2], items(6)[4:]) == 0
    assert (await source.statistics()).consumed_bytes == 4
    assert await drained(destination) == items(4)
    assert await move([2, 1, 1, 5, 6, 2], items(6)[4:]) == 2
    assert await drained(destination) == items(6)[4:]
    assert await one.settle(1, leave=b"1") == 0
    await tidy(source, destination)


async def test_a_repeat_after_the_member_was_healed(two: Pair, db: redis.Redis) -> None:
    source, destination = await two(3)
    await member(source, b"one", 2)
    move = Moves(source, destination, b"one")
    assert await move([1, 1, 1, 1, 1, 1], [b"a"]) == 1
    expire(db, b"one")
    other = await member(source, b"other", 9)
    assert db.hkeys(LEASE).count(b"member:one") == 0
    before = everything(db)
    assert await move.again([1, 1, 1, 1, 1, 1], [b"a"], 1, b"1") == 1  # it had been carried out
    for number, repeated in ((2, b"0"), (3, b"1"), (3, b"0")):
        try:
            assert await move.again([1, 1, 1, 2, 2, 1], [b"x"], number, repeated) == 0  # late, after its repeat
        except LeaseLostError:
            assert (number, repeated) != (3, b"0")
    assert everything(db) == before
    # The lease had no other member, so that numbers have begun anew: the token tells whose they are.
    assert await Moves(source, destination, b"other")([2, 1, 1, 1, 2, 2], [b"b", b"c"]) == 2
    assert await other.settle(1, leave=b"1") == 0
    assert await drained(destination) == [b"a", b"b", b"c"]
    await tidy(source, destination)


async def test_the_last_move_wakes_those_who_wait_for_the_end(two: Pair, db: redis.Redis) -> None:
    source, destination = await two(2)
    one = await member(source, b"one", 2)
    waiting = Member(source, b"other")
    await waiting.join()
    move = Moves(source, destination, b"one")
    for number, results in ((1, [b"a"]), (2, [])):
        assert (await waiting.receive(number)).reason == "draining"
        db.delete(TURNS)
        assert await move([1, len(results), 1, number, number, 1], results) == 1
        assert db.llen(TURNS) == 2  # both may wait
    await fails(QueueClosedError, waiting.receive(3))
    for each in (one, waiting):
        assert await each.settle(1, leave=b"1") == 0
    assert await drained(destination) == [b"a"]
    await tidy(source, destination)


@pytest.mark.parametrize("where", ["in", "out"])
@pytest.mark.parametrize("what", [":bound", ":stats:consumed_bytes", ":stats:produced_bytes"])
async def test_a_damaged_queue(two: Pair, db: redis.Redis, where: str, what: str) -> None:
    source, destination = await two(2)
    one = await member(source, b"one", 2)
    move = Moves(source, destination, b"one")
    key = f"__pressure__:{where}{what}"
    value = db.get(key)
    db.set(key, "many")
    before = everything(db)
    if (where, what) not in {("in", ":stats:produced_bytes"), ("out", ":stats:consumed_bytes")}:
        with pytest.raises(Exception, match="damaged"):
            await move([1, 1, 1, 1, 1, 1], [b"a"])
        assert everything(db) == before
    db.set(key, value or 0)
    assert await move([1, 1, 1, 1, 1, 1], [b"a"]) == 1
    assert await one.settle(1, leave=b"1") == 1


@pytest.mark.parametrize("what", ["record", "next number", "message", "message of another"])
async def test_what_other_programs_overwrote(two: Pair, db: redis.Redis, what: str) -> None:
    """A move that cannot be sure puts nothing; what was overwritten elsewhere does not matter to it."""
    source, destination = await two(3)
    await member(source, b"one", 2)
    if what == "record":
        db.hset(LEASE, "member:one", "99:x")
    elif what == "next number":
        db.hset(LEASE, "next", "many")
    else:
        db.hdel("apressure:__pressure__:in:apart", 1 if what == "message" else 2)
    before = everything(db)
    move = Moves(source, destination, b"one")
    if what == "message of another":
        assert await move([1, 1, 1, 1, 1, 1], [b"a"]) == 1
    else:
        with pytest.raises(LeaseLostError):
            await move([1, 1, 1, 1, 1, 1], [b"a"])
        assert everything(db) == before
    db.flushall()


# Stages


async def stages(open_queue: Opener, number: int) -> list[tuple[Queue, Queue]]:
    """Open both queues for so many stages, each with clients of its own."""
    return [
        (await open_queue("in", create=False, client_id=f"stage{one}"), await open_queue("out", create=False))
        for one in range(number)
    ]


@pytest.mark.parametrize("options", [{}, {"concurrency": 5}, {"batch": 7}], ids=str)
async def test_each_item_goes_through_one_of_them(two: Pair, open_queue: Opener, options: dict[str, Any]) -> None:
    source, destination = await two(500, bound=20)
    shares = [0] * 4
    pairs = await stages(open_queue, 4)

    async def run(number: int) -> Any:
        async def transform(found: Any) -> Any:
            shares[number] += 1
            await asyncio.sleep(0.001)
            return found

        return await pipe(pairs[number][0], transform, pairs[number][1], close=True, shared=True, **options)

    async def drain() -> list[bytes]:
        return [item async for item in destination]

    *done, got = await in_time(asyncio.gather(*(run(number) for number in range(4)), drain()))
    assert sorted(got) == sorted(items(500))
    assert sum(one.handled for one in done) == sum(one.put for one in done) == 500
    assert all(shares)
    assert all(one.exactly_once for one in done)
    here, there = await source.statistics(), await destination.statistics()
    assert here.consumed_messages == there.produced_messages == 500
    assert here.consumed_bytes == there.produced_bytes
    await tidy(source, destination)


async def test_the_destination_is_closed_when_nobody_has_an_item_in_hand(two: Pair, open_queue: Opener) -> None:
    source, destination = await two(1)
    (here, there), (here2, there2) = await stages(open_queue, 2)
    held = Held()
    holding = await begun(pipe(here, held, there, close=True, shared=True))
    await eventually(lambda: held.begun)
    idle = await begun(pipe(here2, same, there2, close=True, shared=True))
    while len((await source.statistics()).members) < 2:
        await asyncio.sleep(0.005)
    await settle_down()
    assert not idle.done()
    assert not await destination.closed()
    held.go.set()
    first, second = await in_time(asyncio.gather(holding, idle))
    assert (first.handled, second.handled) == (1, 0)
    assert await destination.closed()
    assert await drained(destination) == items(1)
    # One that comes late finds everything done.
    late = await in_time(pipe(here, same, there, close=True, shared=True))
    assert (late.handled, late.put) == (0, 0)
    await tidy(source, destination)


async def test_a_stage_that_ends_early_closes_nothing_and_the_others_get_what_it_had(
    two: Pair, open_queue: Opener
) -> None:
    source, destination = await two(4)
    (here, there), (here2, there2) = await stages(open_queue, 2)
    held = Held()
    holding = await begun(pipe(here, held, there, close=True, shared=True, concurrency=2))
    await eventually(lambda: held.begun)
    other = Held()
    working = await begun(pipe(here2, other, there2, close=True, shared=True))
    await eventually(lambda: other.begun)
    await cancelled(holding)
    await settle_down()
    assert not await destination.closed()
    other.go.set()
    assert (await in_time(working)).handled == 4
    assert await destination.closed()
    assert sorted(await drained(destination)) == items(4)
    await tidy(source, destination)


async def test_a_failed_item_may_be_tried_again_by_another_stage(two: Pair, open_queue: Opener) -> None:
    source, destination = await two(20)
    failed: list[bytes] = []

    async def transform(item: bytes) -> bytes:
        if item == b"7" and len(failed) < 5:
            failed.append(item)
            raise ValueError(item)
        return item

    work = [
        pipe(here, transform, there, close=True, shared=True, retry=Backoff(0.001))
        for here, there in await stages(open_queue, 3)
    ]
    done = await in_time(asyncio.gather(*work))
    assert sum(one.failed for one in done) == 5
    assert sorted(await drained(destination)) == sorted(items(20))
    await tidy(source, destination)


@pytest.mark.parametrize("carried_out", [False, True], ids=["request lost", "reply lost"])
async def test_a_lease_that_ends_while_the_move_is_on_its_way(
    two: Pair, open_queue: Opener, url: str, db: redis.Redis, carried_out: bool
) -> None:
    source, destination = await two(3)
    held = Held()
    async with Proxy(url, random.Random(1)) as line:
        quick: dict[str, Any] = {"url": line.url, "retry_timeout": 60}
        late = await begun(
            pipe(
                AsyncQueue("in", **quick), held, AsyncQueue("out", **quick),
                concurrency=3, close=True, shared=True, exactly_once=True,
            )
        )  # fmt: skip
        await eventually(lambda: len(held.begun) == 3)
        db.script_load(script("move").source.decode())  # or the server would never get to know it
        line.trouble = Trouble(lose=1.0) if carried_out else Trouble(cut=1.0)
        held.go.set()
        await eventually(lambda: line.cuts and db.llen(OUT) == (3 if carried_out else 0))
        if not carried_out:
            await settle_down()
        expire(db)
        [(here, there)] = await stages(open_queue, 1)
        other = await in_time(pipe(here, same, there, close=True, shared=True, exactly_once=True))
        assert other.put == (0 if carried_out else 3)
        assert await destination.closed()
        line.trouble = Trouble()
        # It may learn that its lease is lost before its move is answered: then it does not know what it has put.
        assert (await in_time(late)).put in ((0, 3) if carried_out else (0,))
    assert sorted(await drained(destination)) == items(3)
    here_seen, there_seen = await source.statistics(), await destination.statistics()
    assert here_seen.consumed_messages == there_seen.produced_messages == 3
    await tidy(source, destination)


@pytest.mark.parametrize("what", ["destination closed", "destination deleted", "source deleted"])
async def test_a_queue_that_ends_underneath(two: Pair, open_queue: Opener, what: str) -> None:
    source, destination = await two(20, bound=3)
    work = [
        await begun(pipe(here, same, there, close=True, shared=True)) for here, there in await stages(open_queue, 2)
    ]
    while await destination.qsize() < 3 or len((await source.statistics()).members) < 2:
        await asyncio.sleep(0.005)
    queue, _, end = what.partition(" ")
    operation = (source if queue == "source" else destination).close
    if end == "deleted":
        operation = (source if queue == "source" else destination).delete
    ending = await begun(operation())
    got: list[bytes] = []
    error = QueueClosedError if end == "closed" else QueueDoesNotExistError
    if queue == "source":
        # Those that wait for room learn of it with their next move.
        while not all(one.done() for one in work):
            got += await drained(destination)
            await asyncio.sleep(0.005)
    for one in work:
        await fails(error, one)
    await in_time(ending)
    if queue == "source":
        got += await drained(destination)
        assert len(set(got)) == len(got)
        return
    back = await drained(source)
    if end == "closed":
        assert sorted(await drained(destination) + back) == sorted(items(20))
    assert len(set(back)) == len(back) == 17
    await tidy(source)


async def test_a_stage_alone_waits_for_those_that_share_and_the_other_way_round(two: Pair, open_queue: Opener) -> None:
    source, destination = await two(2)
    (here, there), (here2, there2) = await stages(open_queue, 2)
    held = Held()
    sharing = await begun(pipe(here, held, there, shared=True))
    await eventually(lambda: held.begun)
    alone = await begun(pipe(here2, same, there2))
    await settle_down()
    assert not alone.done()
    await fails(QueueInUseError, source.receive(timeout=0))
    held.go.set()
    assert [one.handled for one in await in_time(asyncio.gather(sharing, alone))] == [2, 0]
    assert sorted(await drained(destination)) == items(2)
