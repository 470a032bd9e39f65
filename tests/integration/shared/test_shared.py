"""Clients that share the consumer role: each message is with one of them, and comes again when that one is gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import fakeredis
import pytest
import redis

from apressure import (
    AsyncQueue,
    LeaseLostError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueInUseError,
    ServerError,
)
from tests.integration.conftest import (
    PATIENCE,
    Opener,
    blocked,
    blocking,
    cancelled,
    eventually,
    everything,
    fails,
    in_time,
)
from tests.integration.leases.test_leases import expire
from tests.reference import QueueInUseError as ReferenceInUseError
from tests.reference import ReferenceQueue

BASE = "__pressure__:jobs"
LEASE = f"apressure:{BASE}:consumer_lease"
APART = f"apressure:{BASE}:apart"

Queue = AsyncQueue[Any]


async def open_some(open_queue: Opener, count: int, **options: Any) -> list[Queue]:
    """Open the queue "jobs" for so many members, each with a client of its own."""
    return [await open_queue(create=number == 0, client_id=f"client{number}", **options) for number in range(count)]


async def expire_member(db: redis.Redis, uid: str) -> None:
    """Let a member's lease run out, as if its process had stood still for long enough."""
    for field, record in db.hgetall(LEASE).items():
        if field.startswith(b"member:") and record.endswith(f":{uid}".encode()):
            db.hset(LEASE, mapping={field: b"1:" + record.partition(b":")[2], b"earliest": 1})


# Sharing


async def test_each_message_is_handled_once(open_queue: Opener, db: redis.Redis) -> None:
    queues = await open_some(open_queue, 4)
    seen: Counter[bytes] = Counter()
    shares = Counter[int]()

    async def work(number: int) -> None:
        async with queues[number].consumer(shared=True) as consumer:
            async for item in consumer:
                assert consumer.attempts == 1
                seen[item] += 1
                shares[number] += 1
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(work(number))
        items = [b"%d" % number for number in range(2000)]
        await queues[0].put_many(items)
        await queues[0].close()
    assert seen == Counter(items)
    statistics = await queues[0].statistics()
    assert (statistics.length, statistics.in_flight, statistics.consumed_messages) == (0, 0, 2000)
    assert statistics.consumed_bytes == sum(map(len, items))
    assert statistics.consumer.state == "free"
    assert statistics.members == ()
    assert not db.exists(LEASE, APART)


async def test_deliveries_are_settled_by_their_numbers(open_queue: Opener) -> None:
    one, two = await open_some(open_queue, 2)
    await one.put_many([b"%d" % number for number in range(6)])
    async with one.consumer(shared=True, ack="manual") as first, two.consumer(shared=True, ack="manual") as second:
        mine, theirs = [], []
        for _ in range(3):
            mine.append(await in_time(anext(first)))
            theirs.append(await in_time(anext(second)))
        assert {one.item for one in [*mine, *theirs]} == {b"%d" % number for number in range(6)}
        await mine[2].ack()
        await mine[0].ack()
        await theirs[1].nack()
        await mine[1].extend(30)
        await theirs[0].extend(30)
        assert (await one.statistics()).in_flight == 3
        again = await in_time(anext(first))
        assert (again.item, again.attempts, again.redelivered) == (theirs[1].item, 2, True)
        for delivery in (mine[1], again, theirs[0], theirs[2]):
            await delivery.ack()
        await one.close()
        for consumer in (first, second):
            await fails(StopAsyncIteration, anext(consumer))
    statistics = await one.statistics()
    assert (statistics.consumed_messages, statistics.in_flight, statistics.length) == (6, 0, 0)


async def test_a_member_takes_no_more_than_its_share(open_queue: Opener) -> None:
    queues = await open_some(open_queue, 4)
    async with contextlib.AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(queue.consumer(shared=True, prefetch=100, ack="manual")) for queue in queues
        ]
        await queues[0].put_many([b"x"] * 10)
        await in_time(anext(members[0]))
        assert (await queues[0].statistics()).in_flight == 3  # a quarter of ten, rounded up
        await in_time(anext(members[1]))
        assert (await queues[0].statistics()).in_flight == 5
    async with queues[0].consumer(shared=True, prefetch=100, ack="manual") as alone:
        delivery = await in_time(anext(alone))
        assert delivery.attempts == 2
        assert (await queues[0].statistics()).in_flight == 10
    assert await queues[0].purge() == 10


async def test_statistics_show_the_members(open_queue: Opener) -> None:
    queues = await open_some(open_queue, 3)
    async with contextlib.AsyncExitStack() as stack:
        for queue in queues:
            await stack.enter_async_context(queue.consumer(shared=True))
        statistics = await queues[0].statistics()
        assert sorted(member.holder for member in statistics.members) == ["client0", "client1", "client2"]
        assert statistics.consumer.state != "free"
        assert statistics.consumer.holder in {"client0", "client1", "client2"}
    assert (await queues[0].statistics()).members == ()


async def test_the_holder_that_others_see_is_a_living_member(open_queue: Opener, db: redis.Redis) -> None:
    one, two = await open_some(open_queue, 2)
    async with one.consumer(shared=True):
        async with two.consumer(shared=True):
            assert db.get(f"{BASE}:consumer") == b"client1"
        assert db.get(f"{BASE}:consumer") == b"client0"


# Others


async def test_others_see_the_role_taken(open_queue: Opener, db: redis.Redis) -> None:
    one, two = await open_some(open_queue, 2)
    plain = await open_queue(create=False, scripting=False)
    await one.put(b"1")
    reference = ReferenceQueue(db, "jobs")
    async with one.consumer(shared=True):
        with pytest.raises(ReferenceInUseError):
            reference.get_nowait()
        with pytest.raises(ReferenceInUseError):
            reference.get(timeout=0.05)
        for other in (two, plain):
            error = await fails(QueueInUseError, other.get(timeout=0.05))
            assert error.role == "consumer"
        assert (await fails(QueueInUseError, two.get_nowait())).holder == "client0"
        await fails(QueueInUseError, two.receive(timeout=0.05))
        await fails(QueueInUseError, two.consumer(timeout=0.05).__aenter__())
    await eventually(lambda: db.llen(f"{BASE}:consumer_free"))  # one who waited hands it back
    assert reference.get_nowait() == b"1"


async def test_members_are_busy_behind_others(open_queue: Opener) -> None:
    one, two = await open_some(open_queue, 2)
    async with one.consumer():
        error = await fails(QueueInUseError, two.consumer(shared=True, timeout=0.05).__aenter__())
        assert error.holder == "client0"
    async with two.consumer(shared=True, timeout=PATIENCE):
        pass


@pytest.mark.usefixtures("long_slices")
@pytest.mark.parametrize("holder", ["foreign", "exclusive", "receive"])
async def test_all_members_that_wait_get_in_together(open_queue: Opener, db: redis.Redis, holder: str) -> None:
    queues = await open_some(open_queue, 6)
    own = await open_queue(create=False)
    await own.put(b"1")
    async with contextlib.AsyncExitStack() as members:
        async with contextlib.AsyncExitStack() as held:
            if holder == "foreign":
                assert db.rpop(f"{BASE}:consumer_free")
                held.callback(db.lpush, f"{BASE}:consumer_free", 0)
            elif holder == "exclusive":
                await held.enter_async_context(own.consumer())
            else:
                delivery = await own.receive()
                held.push_async_callback(delivery.nack)
            joining = [
                asyncio.create_task(members.enter_async_context(queue.consumer(shared=True, lease=60)))
                for queue in queues
            ]
            await blocked(db, 12)  # for the role, and in line
            assert not any(task.done() for task in joining)
        await in_time(asyncio.gather(*joining))
        assert len((await own.statistics()).members) == 6
    assert await own.get() == b"1"


@pytest.mark.usefixtures("long_slices")
async def test_a_get_that_waits_gets_its_turn_when_the_last_member_leaves(open_queue: Opener, db: redis.Redis) -> None:
    one, two, three = await open_some(open_queue, 3)
    async with one.consumer(shared=True):
        async with two.consumer(shared=True):
            getting = await blocking(db, three.get())
        assert not getting.done()
    await one.put(b"1")
    assert await in_time(getting) == b"1"


# Leaving


@pytest.mark.parametrize("how", ["well", "raises", "is cancelled"])
async def test_a_member_that_leaves_returns_what_it_has(open_queue: Opener, how: str) -> None:
    one, two = await open_some(open_queue, 2)
    items = [b"%d" % number for number in range(12)]
    await one.put_many(items)
    held = asyncio.Event()
    go_on = asyncio.Event()

    async def leave() -> None:
        async with one.consumer(shared=True, prefetch=4, ack="manual") as consumer:
            await (await anext(consumer)).ack()
            await anext(consumer)
            held.set()
            await go_on.wait()
            if how == "raises":
                raise RuntimeError(how)

    leaving = asyncio.create_task(leave())
    await in_time(held.wait())
    async with two.consumer(shared=True, prefetch=1) as consumer:
        got = [(await in_time(anext(consumer)), consumer.attempts)]
        if how == "is cancelled":
            await cancelled(leaving)
        else:
            go_on.set()
            with contextlib.suppress(RuntimeError):
                await in_time(leaving)
        assert [member.holder for member in (await two.statistics()).members] == ["client1"]
        await two.close()
        got += [(item, consumer.attempts) async for item in consumer]
    # What had been handed out is marked, what was only prefetched is not; all of it was first in line.
    assert got == [(b"4", 1), (b"1", 2), (b"2", 1), (b"3", 1), *((item, 1) for item in items[5:])]
    statistics = await two.statistics()
    assert (statistics.consumed_messages, statistics.consumer.state) == (12, "free")


async def test_what_a_leaving_member_returns_keeps_its_order(open_queue: Opener) -> None:
    one, two = await open_some(open_queue, 2)
    await one.put_many([b"%d" % number for number in range(5)])
    async with one.consumer(shared=True, prefetch=5, ack="manual") as consumer:
        deliveries = [await in_time(anext(consumer)) for _ in range(5)]
        deliveries[1]._lease.settling.give_back(2)
        del deliveries
    async with two.consumer(shared=True) as consumer:
        assert [await in_time(anext(consumer)) for _ in range(5)] == [b"%d" % number for number in range(5)]


async def test_two_members_of_one_client_are_two(open_queue: Opener, db: redis.Redis) -> None:
    one = await open_queue()
    two: Queue = await open_queue(create=False, client=one.client)
    await one.put_many([b"1", b"2"])
    async with one.consumer(shared=True, ack="manual", prefetch=1) as first:
        delivery = await in_time(anext(first))
        async with two.consumer(shared=True, ack="manual", prefetch=1) as second:
            await in_time(anext(second))
            db.set(f"{BASE}:stats:consumed_bytes", "x")  # what cannot be counted cannot be acknowledged
            with contextlib.suppress(ServerError):
                await second.__aexit__(None, None, None)
        db.set(f"{BASE}:stats:consumed_bytes", 0)
        assert len((await one.statistics()).members) == 1
        await delivery.ack()
        again = await in_time(anext(first))
        assert (again.item, again.attempts) == (b"2", 2)
        await again.ack()


async def test_a_long_lease_of_a_member_that_left_keeps_nobody_waiting(open_queue: Opener, db: redis.Redis) -> None:
    one, two = await open_some(open_queue, 2)
    await one.put(b"1")
    async with two.consumer(shared=True, lease=5):
        async with one.consumer(shared=True, ack="manual") as consumer:
            delivery = await in_time(anext(consumer))
            await delivery.extend(3600)
            assert int(db.hget(LEASE, "deadline") or 0) > int(db.time()[0]) * 1000 + 3_000_000
            await delivery.ack()
        assert int(db.hget(LEASE, "deadline") or 0) < int(db.time()[0]) * 1000 + 60_000


# Late


async def test_a_late_member_is_told_and_its_acknowledgements_count_nothing(
    open_queue: Opener, db: redis.Redis
) -> None:
    one, two = await open_some(open_queue, 2)
    await one.put_many([b"1", b"2", b"3"])
    async with two.consumer(shared=True, ack="manual", prefetch=1) as other:
        with pytest.raises(LeaseLostError):
            async with one.consumer(shared=True, ack="manual", prefetch=1) as consumer:
                late = await in_time(anext(consumer))
                await expire_member(db, "client0")
                delivery = await in_time(anext(other))
                assert (delivery.item, delivery.attempts) == (b"1", 2)
                await fails(LeaseLostError, late.ack())
                await fails(LeaseLostError, anext(consumer))
        assert [member.holder for member in (await two.statistics()).members] == ["client1"]
        assert (await two.statistics()).consumed_messages == 0
        await delivery.ack()
        assert [(await in_time(anext(other))).item for _ in range(2)] == [b"2", b"3"]


async def test_all_members_late_heal_by_any_step(open_queue: Opener, db: redis.Redis) -> None:
    one, two, three = await open_some(open_queue, 3)
    await one.put_many([b"1", b"2", b"3"])
    async with contextlib.AsyncExitStack() as stack:
        for queue in (one, two):
            consumer = await stack.enter_async_context(queue.consumer(shared=True, ack="manual", prefetch=1))
            await in_time(anext(consumer))
            await in_time(anext(consumer)) if queue is one else None
        expire(db, "consumer")
        assert await in_time(three.get_many(5)) == [b"1", b"2", b"3"]
        stack.pop_all()
    for queue in (one, two):
        await queue.aclose()


# The end


@pytest.mark.usefixtures("long_slices")
async def test_draining_ends_when_the_last_message_is_settled(open_queue: Opener, db: redis.Redis) -> None:
    queues = await open_some(open_queue, 4)
    await queues[0].put(b"1")

    async def drain(queue: Queue) -> list[bytes]:
        async with queue.consumer(shared=True, lease=600) as consumer:
            return [item async for item in consumer]

    for how in ("ack", "step"):
        async with queues[0].consumer(shared=True, ack="manual", lease=600) as consumer:
            delivery = await in_time(anext(consumer))
            draining = [asyncio.create_task(drain(queue)) for queue in queues[1:]]
            await eventually(lambda: len(db.keys(f"apressure:{BASE}:watch")) == 1)
            await queues[0].close()
            # They wait in line for the end, and for nothing else.
            await eventually(lambda: sum(one["cmd"] == "brpop" for one in db.client_list()) == 3)
            assert not any(task.done() for task in draining)
            db.delete(f"apressure:{BASE}:watch")  # they have waited for so long that nobody knows of it there
            if how == "ack":
                await delivery.ack()
            else:
                delivery._lease.state.unsettled.ack(delivery._number)  # it travels with the next receive
                await fails(StopAsyncIteration, anext(consumer))
            assert await in_time(asyncio.gather(*draining)) == [[], [], []]
        await queues[0].delete()
        await queues[0].create()
        await queues[0].put(b"1")


@pytest.mark.usefixtures("long_slices")
async def test_a_message_that_comes_back_while_others_drain_is_handled(open_queue: Opener, db: redis.Redis) -> None:
    one, two = await open_some(open_queue, 2)
    await one.put(b"1")

    async def drain() -> list[tuple[bytes, int]]:
        async with two.consumer(shared=True, lease=600) as consumer:
            return [(item, consumer.attempts) async for item in consumer]

    async with one.consumer(shared=True, ack="manual", lease=600) as consumer:
        delivery = await in_time(anext(consumer))
        draining = asyncio.create_task(drain())
        await one.close()
        await eventually(lambda: any(client["cmd"] == "brpop" for client in db.client_list()))
        await delivery.nack()
        assert await in_time(draining) == [(b"1", 2)]


async def test_what_a_late_member_had_is_handled_while_others_drain(open_queue: Opener, db: redis.Redis) -> None:
    one, two = await open_some(open_queue, 2)
    await one.put(b"1")

    async def drain() -> list[tuple[bytes, int]]:
        async with two.consumer(shared=True) as consumer:
            return [(item, consumer.attempts) async for item in consumer]

    with pytest.raises(LeaseLostError):
        async with one.consumer(shared=True, ack="manual", lease=600) as consumer:
            late = await in_time(anext(consumer))
            await one.close()
            await expire_member(db, "client0")
            assert await in_time(drain()) == [(b"1", 2)]
            await late.ack()


@pytest.mark.parametrize("members", [1, 4])
async def test_members_that_delete_the_queue_at_its_end(open_queue: Opener, members: int) -> None:
    queues = await open_some(open_queue, members)
    await queues[0].put_many([b"%d" % number for number in range(50)])

    async def work(queue: Queue) -> int:
        async with queue.consumer(shared=True, delete=True) as consumer:
            return len([item async for item in consumer])

    working = [asyncio.create_task(work(queue)) for queue in queues]
    await queues[0].close()
    assert sum(await in_time(asyncio.gather(*working))) == 50
    assert not await queues[0].exists()


@pytest.mark.usefixtures("long_slices")
async def test_deletion_underneath(open_queue: Opener, db: redis.Redis) -> None:
    queues = await open_some(open_queue, 4)
    other = await open_queue(create=False)
    holding, told = asyncio.Event(), []

    async def work(queue: Queue) -> None:
        with pytest.raises(QueueDoesNotExistError):
            async with queue.consumer(shared=True) as consumer:
                await anext(consumer)

    async def hold(queue: Queue) -> None:
        with pytest.raises((QueueDoesNotExistError, LeaseLostError)) as raised:
            async with queue.consumer(shared=True, ack="manual", lease=0.6) as consumer:
                delivery = await anext(consumer)
                holding.set()
                while True:
                    await delivery.extend(0.1)
                    await asyncio.sleep(0.01)
        told.append(raised.type)

    await other.put(b"1")
    tasks = [asyncio.create_task(hold(queues[0]))]
    await in_time(holding.wait())
    tasks += [asyncio.create_task(work(queue)) for queue in queues[1:]]
    await blocked(db, 4)
    await in_time(other.delete())
    await in_time(asyncio.gather(*tasks))
    assert len(told) == 1
    assert not [key for key in db.keys("*") if db.ttl(key) == -1]


async def test_purge_underneath(open_queue: Opener) -> None:
    one, two = await open_some(open_queue, 2)
    await one.put_many([b"%d" % number for number in range(10)])
    async with one.consumer(shared=True, ack="manual", prefetch=1) as first, two.consumer(shared=True) as second:
        delivery = await in_time(anext(first))
        assert await two.purge() == 9
        await one.close()
        await delivery.nack()
        assert await in_time(anext(second)) == b"0"
        await fails(StopAsyncIteration, anext(second))
        await fails(StopAsyncIteration, anext(first))


async def test_closing_the_object_gives_everything_back(open_queue: Opener) -> None:
    one, two = await open_some(open_queue, 2)
    await one.put_many([b"1", b"2"])
    async with contextlib.AsyncExitStack() as stack:
        consumer = await stack.enter_async_context(one.consumer(shared=True, ack="manual"))
        await in_time(anext(consumer))
        await one.aclose()
        await one.client.aclose()
        assert (await two.statistics()).members == ()
        assert await two.get_many(5) == [b"1", b"2"]
        stack.pop_all()


# Dead letters, and other options


async def test_a_message_that_fails_too_often_becomes_a_dead_letter(open_queue: Opener) -> None:
    one, two = await open_some(open_queue, 2, max_attempts=2)
    dead = await open_queue("jobs:dead", create=False)
    await one.put_many([b"bad", b"good"])
    seen: list[tuple[bytes, int]] = []

    async def work(queue: Queue) -> None:
        async with queue.consumer(shared=True, ack="manual") as consumer:
            async for delivery in consumer:
                seen.append((delivery.item, delivery.attempts))
                await (delivery.nack() if delivery.item == b"bad" else delivery.ack())

    await one.close()
    await in_time(asyncio.gather(work(one), work(two)))
    assert sorted(seen) == [(b"bad", 1), (b"bad", 2), (b"good", 1)]
    assert await dead.get_many(5) == [b"bad"]


async def test_durability(open_queue: Opener) -> None:
    one, two = await open_some(open_queue, 2, durability=0)
    await one.put_many([b"1", b"2"])
    async with one.consumer(shared=True) as first, two.consumer(shared=True) as second:
        assert {await in_time(anext(first)), await in_time(anext(second))} == {b"1", b"2"}


@pytest.fixture
async def fakes() -> AsyncIterator[list[Queue]]:
    server = fakeredis.FakeServer()
    async with contextlib.AsyncExitStack() as stack:
        queues = [
            await stack.enter_async_context(AsyncQueue("jobs", redis=fakeredis.FakeAsyncRedis(server=server)))
            for _ in range(3)
        ]
        await queues[0].create()
        yield queues


async def test_on_fakeredis(fakes: list[Queue]) -> None:
    async def work(queue: Queue) -> list[bytes]:
        async with queue.consumer(shared=True) as consumer:
            return [item async for item in consumer]

    working = [asyncio.create_task(work(queue)) for queue in fakes]
    await asyncio.sleep(0.05)
    await fakes[0].put_many([b"%d" % number for number in range(30)])
    await fakes[0].close()
    found = await in_time(asyncio.gather(*working))
    assert sorted(item for items in found for item in items) == sorted(b"%d" % number for number in range(30))


async def test_nothing_stays_behind(open_queue: Opener, db: redis.Redis) -> None:
    one, two = await open_some(open_queue, 2)
    before = everything(db)
    for _ in range(2):
        async with one.consumer(shared=True), two.consumer(shared=True):
            pass
    after = everything(db)
    del after[f"{BASE}:consumer".encode()]
    assert after == before
    with pytest.raises(QueueClosedError):
        await one.close()
        await one.get()
