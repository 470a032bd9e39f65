"""What costs leave on the server, and what happens where something is wrong; see `CostContract`, too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from apressure import AsyncQueue, Client, EventQueue, FileQueue, QueueEmptyError, TaskQueue, UnsupportedError, sync
from apressure.embedded import EmbeddedServer
from tests.integration.acl_roles import allow, documented
from tests.integration.commands import Commands
from tests.integration.conftest import fails, in_time
from tests.integration.events.remote.conftest import serving

HOUR = 3600.0
CONTROL = {
    AsyncQueue: "apressure:__pressure__:jobs:control",
    EventQueue: "apressure:queue:{jobs}:control",
    TaskQueue: "apressure:blueque:control:jobs",
}
Kind = Any


@pytest.fixture(params=CONTROL, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(params=[EventQueue, TaskQueue], ids=lambda kind: kind.__name__)
def keeping(request: pytest.FixtureRequest) -> Kind:
    """A kind that keeps costs."""
    return request.param


@pytest.fixture
async def queue(kind: Kind, url: str) -> AsyncIterator[Any]:
    async with kind("jobs", url=url, codec="text") as queue:
        await queue.create()
        yield queue
        await queue.delete()


def ahead(db: redis.Redis, kind: Kind) -> float:
    """By how many seconds what was handed out is ahead."""
    seconds, microseconds = db.time()
    return float(db.hget(CONTROL[kind], "next")) / 1000 - seconds - microseconds / 1e6


async def test_each_spend_counts_for_what_it_says(queue: Any, kind: Kind, db: redis.Redis) -> None:
    await queue.set_rate(100, per=HOUR, burst=10)
    await queue.spend(7)
    assert ahead(db, kind) == pytest.approx(7 * 36, abs=20)
    await queue.spend(-3)
    assert ahead(db, kind) == pytest.approx(4 * 36, abs=20)
    assert not db.hexists(CONTROL[kind], "debt")
    await queue.spend(96)
    assert ahead(db, kind) == pytest.approx(HOUR, abs=20)
    assert db.hexists(CONTROL[kind], "debt")
    await queue.spend(-95)
    assert ahead(db, kind) == pytest.approx(5 * 36, abs=20)
    assert not db.hexists(CONTROL[kind], "debt")
    await queue.spend(-(10**9))
    assert ahead(db, kind) < 0
    await queue.set_rate(None)
    assert not {b"next", b"debt", b"spent"} & set(db.hkeys(CONTROL[kind]))


async def test_a_spend_whose_step_is_sent_again_counts_once(queue: Any, kind: Kind, db: redis.Redis) -> None:
    await queue.set_rate(100, per=HOUR, burst=10)
    for number in (1, 1, 2, 1, 2):
        await queue._limit({"spent": f"5:0123456789abcdef:{number}"})
    assert ahead(db, kind) == pytest.approx(10 * 36, abs=20)
    await asyncio.gather(*(queue.spend(1) for _ in range(100)))
    await queue._limit({"spent": "5:0123456789abcdef:2"})
    assert ahead(db, kind) == pytest.approx(110 * 36, abs=20)
    for number in range(200):
        await queue._limit({"spent": f"1:{number:016x}:1"})
    assert db.hget(CONTROL[kind], "spent").count(b";") == 100


async def test_a_lost_reply_to_spend(kind: Kind, own: EmbeddedServer) -> None:
    """The connections are killed again and again: what is counted in the end is what was said."""
    with redis.Redis.from_url(own.url) as there:
        async with Client(own.url) as client, kind("jobs", client=client) as queue:
            await queue.create()
            await queue.set_rate(100, per=HOUR, burst=1)
            await queue.spend(1)
            begun = float(there.hget(CONTROL[kind], "next"))
            for _ in range(4):
                spending = asyncio.gather(*(queue.spend(1) for _ in range(5)))
                await asyncio.sleep(0)
                there.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                await in_time(spending)
            assert float(there.hget(CONTROL[kind], "next")) - begun == pytest.approx(20 * 36_000, abs=1)
            await queue.delete()


async def test_a_debt_outlives_no_clock_that_was_set_back(queue: Any, kind: Kind, db: redis.Redis) -> None:
    await queue.put("1")
    await queue.put("2")
    await queue.set_rate(100, per=1.0, burst=1)
    await queue.spend(10)
    later = (time.time() + HOUR) * 1000
    db.hset(CONTROL[kind], mapping={"next": f"{later + 100:.3f}", "debt": f"{later:.0f}"})  # as an hour ago
    assert await in_time(queue.get()) == "1"
    db.hset(CONTROL[kind], mapping={"next": f"{later:.3f}", "debt": f"{later - 2 * HOUR * 1000:.0f}"})
    await fails(QueueEmptyError, queue.get(timeout=0.1))  # a debt of two hours


async def test_without_a_rate_nothing_is_noted(queue: Any, kind: Kind, db: redis.Redis) -> None:
    await queue.spend(5)
    await queue.spend(-5)
    assert not db.exists(CONTROL[kind])


async def test_the_same_rate_again_forgives_no_debt(queue: Any, kind: Kind, db: redis.Redis) -> None:
    await queue.put("1")
    await queue.set_rate(10, per=HOUR, burst=2)
    await queue.spend(50)
    await queue.set_rate(10, per=HOUR, burst=2)
    assert ahead(db, kind) == pytest.approx(50 * 360, abs=20)
    await fails(QueueEmptyError, queue.get_nowait())
    await queue.set_rate(10, per=HOUR, burst=3)
    await fails(QueueEmptyError, queue.get_nowait())
    assert ahead(db, kind) == pytest.approx(3 * 360, abs=20)


async def test_a_delivery_whose_reply_was_lost_says_its_cost(keeping: Kind, own: EmbeddedServer) -> None:
    with redis.Redis.from_url(own.url) as there:
        async with keeping("jobs", url=own.url, codec="text") as queue:
            await queue.create()
            for _ in range(5):
                await queue.put("x" * 1_000_000, cost=7)
                receiving = asyncio.ensure_future(queue.receive())
                await asyncio.sleep(0)
                there.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                delivery = await in_time(receiving)
                assert delivery.cost == 7
                await delivery.ack()
            await queue.delete()


async def test_damaged_fields_keep_nothing_back(queue: Any, kind: Kind, db: redis.Redis) -> None:
    await queue.set_rate(100, per=1.0, burst=1)
    for debt in ("x", "", "-1", "9" * 40, "1e9"):
        db.hset(CONTROL[kind], mapping={"debt": debt, "next": f"{(time.time() + HOUR) * 1000:.3f}", "spent": "?"})
        await queue.put("1")
        assert await in_time(queue.get()) == "1"
        await queue.spend(1)


async def test_costs_that_another_program_has_damaged_count_for_one(keeping: Kind, url: str, db: redis.Redis) -> None:
    async with keeping("jobs", url=url, codec="text") as queue:
        await queue.create()
        await queue.set_rate(10, per=HOUR, burst=3)
        ids = [await queue.put(f"{number}", cost=5) for number in range(3)]
        for damaged, message_id in zip(("", "x", "$;"), ids, strict=True):
            if keeping is EventQueue:
                db.hset("apressure:queue:{jobs}:expires", message_id, f"${damaged};")
            else:
                db.hset(f"blueque_task_{message_id}", "cost", damaged)
        deliveries = await queue.receive_many(5)
        assert [(one.item, one.cost) for one in deliveries] == [("0", 1), ("1", 1), ("2", 1)]
        for delivery in deliveries:
            await delivery.ack()
        await queue.delete()


async def test_nothing_is_left_of_costs(keeping: Kind, url: str, db: redis.Redis) -> None:
    async with keeping("jobs", url=url, codec="text") as queue:
        await queue.create()
        await queue.put_many(["x"] * 20, cost=5)
        await queue.put("x", cost=7, delay=60.0)
        assert len(await queue.get_many(10)) == 10
        for delivery in await queue.receive_many(5):
            await delivery.ack()
        assert await queue.purge() == 6
        assert not db.exists("apressure:queue:{jobs}:expires")
        await queue.delete()


async def test_a_get_that_is_given_back_keeps_its_cost(url: str) -> None:
    async with EventQueue("jobs", url=url) as queue:
        await queue.create()
        for _ in range(30):
            await queue.put_many([b"1", b"2"], cost=9)
            getting = asyncio.ensure_future(queue.get_many(2))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            getting.cancel()
            await asyncio.wait([getting])
            if getting.cancelled():
                deliveries = await queue.receive_many(2)
                assert [one.cost for one in deliveries] == [9, 9]
                for one in deliveries:
                    await one.ack()
        await queue.delete()


async def test_a_task_shows_its_cost(url: str, db: redis.Redis) -> None:
    async with TaskQueue("jobs", url=url, codec="text") as queue:
        task_id = await queue.put("x", cost=12, key="a")
        assert (db.hget(f"blueque_task_{task_id}", "cost"), db.hget(f"blueque_task_{task_id}", "key")) == (b"12", b"a")
        await queue.purge()
        await queue.delete()


async def test_kinds_that_keep_no_costs(url: str, tmp_path: Any) -> None:
    async with FileQueue(tmp_path / "spool") as files:
        await fails(UnsupportedError, files.put(b"1", cost=2), "keeps no cost")
        await fails(UnsupportedError, files.spend(1))
        await files.put(b"1", cost=1)
    async with AsyncQueue("jobs", url=url) as queue:
        await queue.create()
        await fails(UnsupportedError, queue.put(b"1", cost=2), "spend")
        await fails(UnsupportedError, queue.put_many([b"1"], cost=2), "Nothing was put")
        assert await queue.qsize() == 0
        await queue.delete()
    async with serving(url) as address, EventQueue("jobs", url=address) as queue:
        await queue.create()
        await queue.set_rate(1)
        await fails(UnsupportedError, queue.put(b"1", cost=2), "keeps no cost")
        await fails(UnsupportedError, queue.spend(1), "Nothing was counted")
        await queue.delete()


@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_the_documented_rights_of_a_role_are_enough(own: EmbeddedServer, role: str) -> None:
    async with AsyncQueue("orders", url=own.url) as owner:
        await owner.create()
        async with AsyncQueue("orders", url=allow(own, role, documented(plain=False)[role])) as queue:
            await queue.set_rate(10, per=HOUR, burst=10)
            await queue.spend(4)
            await queue.spend(-2)
            await queue.hold(5)
            await queue.hold(0)
            await queue.set_rate(None)
        await owner.delete()


def test_without_asyncio(url: str) -> None:
    with sync.Queue(TaskQueue("jobs", url=url)) as queue:
        queue.create()
        queue.set_rate(2, per=HOUR, burst=2)
        queue.put("x", cost=2)
        queue.put_many(["y"], cost=2)
        queue.get()
        with pytest.raises(QueueEmptyError):
            queue.get_nowait()
        queue.spend(-2)
        queue.get()
        queue.delete()


def test_the_command(cli: Commands, db: redis.Redis) -> None:
    task_id = cli("put", "tasks:jobs", "x", "--cost", "1200", "--ids").stdout.strip().decode()
    assert db.hget(f"blueque_task_{task_id}", "cost") == b"1200"
    cli("put", "tasks:jobs", "x", "--cost", "0", code=2)
    cli("create", "jobs")
    assert b"keeps no cost" in cli("put", "jobs", "x", "--cost", "2", code=1).stderr
    for address in ("tasks:jobs", "jobs"):
        cli("delete", address)
