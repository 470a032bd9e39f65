"""Clients that share the consumer role, and trouble: deaths, lost replies, other programs' writes, full servers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Callable
from typing import Any

import pytest
import redis

from apressure import AsyncQueue, Client, LeaseLostError, OutOfMemoryError, QueueClosedError, ServerError
from apressure.connection.wire.script import Series
from apressure.embedded import EmbeddedServer
from apressure.pressure.engine.steps import Steps
from apressure.testing.proxy import Proxy, Trouble
from tests.integration.conftest import Opener, eventually, fails, in_time
from tests.integration.leases.test_leases import running
from tests.integration.shared.test_shared import APART, BASE, LEASE, open_some
from tests.servers import SERVERS, admin

Queue = AsyncQueue[Any]

MEMBER = """
async with queue.consumer(shared=True, lease=0.6, prefetch=3) as consumer:
    async for item in consumer:
        print(item.decode(), flush=True)
        if item == b"2":
            await asyncio.sleep(60)
"""
STOPPED = """
try:
    async with queue.consumer(shared=True, lease=0.5, ack="manual", prefetch=1) as consumer:
        delivery = await anext(consumer)
        print("2", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await delivery.ack()
except LeaseLostError as error:
    print(type(error).__name__, error.role, flush=True)
"""


# Deaths


async def test_what_a_killed_member_had_comes_first_and_the_others_never_stop(
    open_queue: Opener, url: str, db: redis.Redis
) -> None:
    queue = await open_queue()
    await queue.put_many([b"%d" % number for number in range(5)])
    seen: list[tuple[bytes, int]] = []
    with running(MEMBER, url) as process:

        async def work() -> None:
            async with queue.consumer(shared=True, prefetch=1) as consumer:
                async for item in consumer:
                    seen.append((item, consumer.attempts))

        await eventually(lambda: db.get(f"{BASE}:stats:consumed_messages") == b"2")  # their acknowledgements have come
        process.kill()
        process.wait()
        working = asyncio.create_task(work())
        for number in range(100, 110):
            await queue.put(b"%d" % number)
            await eventually(lambda number=number: (b"%d" % number, 1) in seen)
        await eventually(lambda: (b"2", 2) in seen)
    await queue.close()
    await in_time(working)
    again = [item for item, attempts in seen if attempts == 2]
    assert again == sorted(again)
    assert again[0] == b"2"
    firsts = {item for item, attempts in seen if attempts == 1}
    assert not firsts & set(again)
    assert firsts | set(again) == {b"2", b"3", b"4", *(b"%d" % number for number in range(100, 110))}
    assert (await queue.statistics()).in_flight == 0


async def test_a_member_that_was_stopped_is_told_when_it_comes_back(open_queue: Opener, url: str) -> None:
    queue = await open_queue()
    await queue.put(b"x")
    with running(STOPPED, url) as process:
        os.kill(process.pid, signal.SIGSTOP)
        async with queue.consumer(shared=True, ack="manual") as consumer:
            delivery = await in_time(anext(consumer))
            assert (delivery.item, delivery.attempts) == (b"x", 2)
            assert [member.holder != "victim" for member in (await queue.statistics()).members] == [True]
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            os.kill(process.pid, signal.SIGCONT)
            after, _ = await asyncio.to_thread(process.communicate)
            assert after.split() == ["LeaseLostError", "consumer"]
            statistics = await queue.statistics()
            assert (statistics.in_flight, statistics.consumed_messages) == (1, 0)
            await delivery.ack()


async def test_the_last_member_was_killed_and_the_role_is_free_again(
    open_queue: Opener, url: str, db: redis.Redis
) -> None:
    queue = await open_queue()
    await queue.put_many([b"%d" % number for number in range(5)])
    with running(MEMBER, url) as process:
        await eventually(lambda: db.get(f"{BASE}:stats:consumed_messages") == b"2")
        process.kill()
        got: list[bytes] = []
        while len(got) < 3:
            got += await in_time(queue.get_many(5))
    assert got == [b"2", b"3", b"4"]


# Lost replies: each step is sent again by hand


class Member:
    """A member that is moved step by step."""

    def __init__(self, queue: Queue, token: bytes = b"t") -> None:
        self.steps: Steps = queue._engine.steps  # type: ignore[union-attr]
        self.token = token
        self.receives: Series = self.steps.series()
        self.settles: Series = self.steps.series()

    async def _do(self, series: Series, name: str, arguments: list[Any]) -> Any:
        return await self.steps._ask(series.call(name, self.steps.keys.line), arguments, None, "consumer")

    async def join(self, again: bytes = b"0", series: Series | None = None) -> Any:
        series = series or self.steps.series()
        return await self._do(series, "join", [b"uid", b"0", self.token, 60000, 1, again])

    async def receive(
        self, sequence: int, most: int = 10, again: bytes = b"0", number: int = 1, hand: tuple[int, ...] = (),
        acks: tuple[int, ...] = (), place: bytes = b"place",
    ) -> Any:  # fmt: skip
        arguments = [b"uid", self.token, most, 60000, sequence, again, 0, place, number, len(hand), *hand, *acks]
        return await self._do(self.receives, "receive_shared", arguments)

    async def settle(
        self, sequence: int, again: bytes = b"0", leave: bytes = b"0", acks: tuple[int, ...] = (),
        nacks: tuple[int, ...] = (), unseen: int = 0,
    ) -> Any:  # fmt: skip
        arguments = [self.token, 60000, leave, sequence, again, unseen, b"place", len(acks), *acks, *nacks]
        return await self._do(self.settles, "settle_shared", arguments)


async def test_a_join_that_is_repeated_is_one(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(bound=7)
    member, series = Member(queue), queue._engine.steps.series()
    assert await member.join(series=series) == 7
    before = db.hgetall(LEASE)
    assert await member.join(again=b"1", series=series) == 7
    assert db.hgetall(LEASE) == before
    assert await member.settle(1, leave=b"1") == 0
    # One that arrives after its repeat, and after the end, must not take the role.
    await fails(LeaseLostError, member.join(series=series))
    assert db.llen(f"{BASE}:consumer_free") == 1


async def test_a_receive_that_is_repeated_brings_the_same(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many([b"%d" % number for number in range(5)])
    member = Member(queue)
    await member.join()
    first = await member.receive(1, 2)
    assert first == [[[b"0"], [b"1"]], [], 0, 1]
    assert await member.receive(1, 2, again=b"1") == [[[b"0", b"1"]], [1, 1], 0, 1]
    await fails(LeaseLostError, member.receive(1, 2))  # late, after its repeat
    # Acknowledgements travel with a receive, and with its repeat.
    assert (await member.receive(2, 1, number=3, hand=(2, 2), acks=(1, 1, 1)))[3] == 3
    assert (await member.receive(2, 1, again=b"1", number=3, hand=(2, 2), acks=(1, 1, 1)))[0] == [[b"2"]]
    statistics = await queue.statistics()
    assert (statistics.in_flight, statistics.consumed_messages, statistics.length) == (2, 1, 2)
    await fails(LeaseLostError, member.receive(1, 2, again=b"1"))
    assert await member.settle(1, leave=b"1") == 2
    assert await queue.get_many(5) == [b"1", b"2", b"3", b"4"]


async def test_what_a_lost_receive_had_brought_comes_back(open_queue: Opener) -> None:
    """Its reply never came, and the client gave up: the next receive says what it has in hand."""
    queue = await open_queue()
    await queue.put_many([b"%d" % number for number in range(3)])
    member = Member(queue)
    await member.join()
    await member.receive(1, 2)
    chunks, attempts, dead, first = await member.receive(2, 10, number=1)
    assert ([message for chunk in chunks for message in chunk], attempts) == ([b"0", b"1", b"2"], [])  # all new to it
    assert (dead, first) == (0, 3)
    statistics = await queue.statistics()
    assert (statistics.in_flight, statistics.length) == (3, 0)
    assert await member.settle(1, acks=(3, 5, 3)) == 3
    await member.settle(2, leave=b"1")
    assert (await queue.statistics()).consumed_messages == 3


async def test_what_a_server_that_took_over_has_not_heard_of_comes_back(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2", b"3"])
    async with queue.consumer(shared=True, ack="manual", prefetch=1) as consumer:
        first, second = await in_time(anext(consumer)), await in_time(anext(consumer))
        behind = {key: db.dump(key) for key in db.keys("*") if db.ttl(key) == -1}
        await first.ack()
        await (await in_time(anext(consumer))).ack()
        db.flushdb()
        for key, value in behind.items():
            db.restore(key, 0, value, replace=True)
        again = await in_time(anext(consumer))
        assert (again.item, again.attempts) == (b"1", 2)
        last = await in_time(anext(consumer))
        assert last.item == b"3"
        await queue.close()
        for delivery in (second, again, last):
            await delivery.ack()
        await fails(StopAsyncIteration, anext(consumer))
    statistics = await queue.statistics()
    assert (statistics.consumed_messages, statistics.in_flight, statistics.length) == (3, 0, 0)


async def test_a_settlement_that_is_repeated_is_one(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many([b"%d" % number for number in range(5)])
    member = Member(queue)
    await member.join()
    await member.receive(1, 4)
    assert await member.settle(1, acks=(1, 2, 2), nacks=(3,)) == 3
    assert await member.settle(1, again=b"1", acks=(1, 2, 2), nacks=(3,)) == 3
    statistics = await queue.statistics()
    assert (statistics.in_flight, statistics.consumed_messages, statistics.length) == (1, 2, 2)
    assert await member.settle(2, leave=b"1") == 1
    assert await member.settle(2, again=b"1", leave=b"1") == 1
    assert (await queue.statistics()).consumer.state == "free"
    async with queue.consumer() as consumer:
        got = [(await in_time(anext(consumer)), consumer.attempts) for _ in range(3)]
    assert sorted(got) == [(b"2", 2), (b"3", 2), (b"4", 1)]


async def test_steps_of_others_settle_nothing(open_queue: Opener) -> None:
    queue, other = await open_some(open_queue, 2)
    await queue.put_many([b"%d" % number for number in range(4)])
    one, two = Member(queue, b"one"), Member(other, b"two")
    await one.join()
    await two.join()
    await one.receive(1, 2)
    await two.receive(1, 2)
    assert await two.settle(1, acks=(1, 2, 2), nacks=(1, 2)) == 0
    await two.receive(2, 1, number=5, hand=(3, 4), acks=(1, 1, 1))
    statistics = await queue.statistics()
    assert (statistics.in_flight, statistics.consumed_messages) == (4, 0)
    for member in (two, one):  # who leaves last is first in line
        await member.settle(9, leave=b"1")
    assert await queue.get_many(5) == [b"0", b"1", b"2", b"3"]


async def test_scripts_that_the_server_forgets(open_queue: Opener, db: redis.Redis) -> None:
    """The server learns them again, and steps may overtake each other meanwhile."""
    queues = await open_some(open_queue, 3)
    items = [b"%d" % number for number in range(900)]
    seen: list[bytes] = []

    async def work(queue: Queue) -> None:
        async with queue.consumer(shared=True, ack="manual", prefetch=8) as consumer:
            async for delivery in consumer:
                if len(seen) % 10 == 0:
                    db.script_flush()
                if delivery.attempts == 1 and int(delivery.item) % 5 == 0:
                    await delivery.nack()
                else:
                    seen.append(delivery.item)
                    await delivery.ack()

    await queues[0].put_many(items)
    await queues[0].close()
    await in_time(asyncio.gather(*map(work, queues)))
    assert sorted(seen) == sorted(items)
    assert (await queues[0].statistics()).consumed_messages == 900


# What other programs write

RECORDS = [
    "garbage",
    "",
    "1:1:1:1:1:1:1-9999999999999:u",
    "9999999999999:9999999999999:1:1:1:9999999999999:1-9999999999999:u",
    "1:1:1:1:1:1:9-3:u",
    "1:1:1:1:1:1:- - -:u",
    "::::::::",
    "9" * 400,
]


@pytest.mark.parametrize("record", RECORDS, ids=range(len(RECORDS)))
async def test_a_malformed_member_loses_nothing_and_stops_nobody(
    open_queue: Opener, db: redis.Redis, record: str
) -> None:
    one, two = await open_some(open_queue, 2)
    await one.put_many([b"%d" % number for number in range(6)])
    async with two.consumer(shared=True, lease=0.5) as second:
        async with one.consumer(shared=True, lease=0.5, ack="manual", prefetch=1) as first:
            delivery = await in_time(anext(first))
            db.hset(LEASE, mapping={"member:x": record, "other": "field", "earliest": "1"})
            got = [await in_time(anext(second)) for _ in range(3)]
            await delivery.ack()
            await two.statistics()
        db.hdel(LEASE, "member:x")
        await one.close()
        got += [item async for item in second]
    assert sorted(got) == [b"%d" % number for number in range(1, 6)]
    statistics = await one.statistics()
    assert (statistics.length, statistics.in_flight, statistics.consumer.state) == (0, 0, "free")


@pytest.mark.parametrize("field", ["member", "next", "earliest", "deadline", "duration", "token", "since", "uid"])
@pytest.mark.parametrize("value", ["garbage", None])
async def test_a_field_of_the_lease_that_others_write_or_delete(
    open_queue: Opener, db: redis.Redis, field: str, value: str | None
) -> None:
    """A member may lose its lease by that. Nothing is lost, and nobody has to wait for longer than a lease."""
    one, two = await open_some(open_queue, 2)
    items = [b"%d" % number for number in range(20)]
    await one.put_many(items)
    seen: list[bytes] = []

    async def work(queue: Queue) -> None:
        while True:
            try:
                async with queue.consumer(shared=True, lease=0.5, prefetch=2) as consumer:
                    async for item in consumer:
                        seen.append(item)
                        await asyncio.sleep(0.01)
                    return
            except LeaseLostError:
                continue

    working = [asyncio.create_task(work(queue)) for queue in (one, two)]
    await eventually(lambda: len(seen) > 5)
    name = (
        next(name.decode() for name in db.hkeys(LEASE) if name.startswith(b"member:")) if field == "member" else field
    )
    if value is None:
        db.hdel(LEASE, name)
    else:
        db.hset(LEASE, name, value)
    await one.close()
    await in_time(asyncio.gather(*working))
    assert set(seen) == set(items)
    statistics = await one.statistics()
    assert (statistics.length, statistics.in_flight) == (0, 0)
    await eventually(lambda: db.llen(f"{BASE}:consumer_free"))  # one who waited hands it back


@pytest.mark.parametrize("where", ["apart", "inflight"])
async def test_what_others_write_among_the_deliveries_is_handled_like_a_message(
    open_queue: Opener, db: redis.Redis, where: str
) -> None:
    queue = await open_queue()
    await queue.put(b"1")
    async with queue.consumer(shared=True, ack="manual") as consumer:
        delivery = await in_time(anext(consumer))
        if where == "apart":
            db.hset(APART, mapping={"x": "1:foreign", "77": "foreign"})
        else:
            db.lpush(f"apressure:{BASE}:inflight", "foreign")
        await queue.close()
        await delivery.ack()
        got = [one.item async for one in _acked(consumer)]
    assert set(got) == {b"foreign"} or where == "inflight"
    statistics = await queue.statistics()
    assert (statistics.length, statistics.in_flight) == (0, 0)


async def _acked(consumer: Any) -> Any:
    async for delivery in consumer:
        await delivery.ack()
        yield delivery


@pytest.mark.parametrize("word", ["inflight", "apart", "redelivered"])
async def test_keys_of_the_wrong_type_cost_no_message(open_queue: Opener, db: redis.Redis, word: str) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    db.set(f"apressure:{BASE}:{word}", "x")
    with pytest.raises(ServerError, match="WRONGTYPE"):
        async with queue.consumer(shared=True, lease=0.5) as consumer:
            await in_time(anext(consumer))
    assert db.llen(BASE) == 2
    db.delete(f"apressure:{BASE}:{word}")
    other = await open_queue(create=False)
    assert await in_time(other.get_many(2)) == [b"1", b"2"]


async def test_dead_letters_that_cannot_be_moved_stay(open_queue: Opener, db: redis.Redis) -> None:
    one, two = await open_some(open_queue, 2, max_attempts=1)
    await one.put_many([b"1", b"2"])
    db.set("__pressure__:jobs:dead", "x")
    db.set("__pressure__:jobs:dead:bound", "0")
    async with one.consumer(shared=True, ack="manual", prefetch=1) as first:
        await in_time(anext(first))
        async with two.consumer(shared=True, ack="manual", prefetch=1) as second:
            await in_time(anext(second))
        with pytest.raises(ServerError, match="dead-letter"):
            await in_time(anext(first))
        assert (db.llen(BASE), db.hlen(APART)) == (1, 1)
        db.delete("__pressure__:jobs:dead", "__pressure__:jobs:dead:bound")
    await one.purge()


# A full server


@pytest.mark.parametrize("kind", SERVERS)
async def test_members_work_on_a_full_server(make_server: Callable[..., EmbeddedServer], kind: str) -> None:
    server = make_server(kind, config={"maxmemory-policy": "noeviction"})
    async with AsyncQueue("jobs", url=server.url) as one, AsyncQueue("jobs", url=server.url) as two:
        await one.create()
        await one.put_many([b"%d" % number for number in range(10)])
        await one.put(b"x" * 100)
        with admin(server) as db:
            async with one.consumer(shared=True, ack="manual", prefetch=1, lease=5) as first:
                await in_time(anext(first))
                db.config_set("maxmemory", "1")
                await fails(OutOfMemoryError, one.put(b"y"))
                async with two.consumer(shared=True, ack="manual", prefetch=1, lease=5) as second:
                    for number in range(1, 4):
                        delivery = await in_time(anext(second))
                        assert delivery.item == b"%d" % number
                        await (delivery.nack() if number == 3 else delivery.ack())
                    assert (await in_time(anext(second))).attempts == 2
            assert await in_time(two.get()) == b"0"
            db.config_set("maxmemory", "0")


# A bad line


async def test_over_a_line_that_loses_replies(open_queue: Opener, url: str) -> None:
    queue = await open_queue()
    items = [b"%d" % number for number in range(150)]
    firsts: list[bytes] = []
    async with Proxy(url, random.Random(14)) as line, contextlib.AsyncExitStack() as stack:
        settings: dict[str, Any] = {"response_timeout": 0.4, "connect_timeout": 0.4, "retry_timeout": 30.0}
        clients = [await stack.enter_async_context(Client(line.url, **settings)) for _ in range(3)]

        async def work(client: Client) -> None:
            mine: Queue = AsyncQueue("jobs", client=client)
            while True:
                try:
                    async with mine.consumer(shared=True, prefetch=2, lease=10) as consumer:
                        async for item in consumer:
                            if consumer.attempts == 1 or item not in firsts:
                                firsts.append(item)
                    return
                except (LeaseLostError, QueueClosedError):
                    continue

        working = [asyncio.create_task(work(client)) for client in clients]
        line.trouble = Trouble(lose=0.04, cut=0.02, silence=0.001, delay=0.001)
        for begin in range(0, 150, 10):
            await queue.put_many(items[begin : begin + 10])
            await asyncio.sleep(0.01)
        await queue.close()
        await in_time(asyncio.gather(*working))
    assert sorted(firsts) == sorted(items)
