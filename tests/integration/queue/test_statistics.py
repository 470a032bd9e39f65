"""Statistics: every number and every state of a role."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from apressure import QueueDoesNotExistError, RoleStatistics
from tests.integration.conftest import Opener, blocked, in_time


async def test_a_fresh_queue(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(bound=7, scripting=scripting)
    free = RoleStatistics(state="free", holder=None, since=None, expires=None)
    assert dataclasses.asdict(await queue.statistics()) == {
        "name": "jobs", "length": 0, "bound": 7, "closed": False, "paused": False, "delayed": 0, "next_due": None,
        "expired": 0, "schedules": 0, "dedup_ids": 0, "parked": 0, "paused_since": None, "workers": (),
        "waiting_producers": (),
        "limits": {"rate": None, "concurrency": None, "held_for": 0.0, "key": None},
        "producer": dataclasses.asdict(free), "consumer": dataclasses.asdict(free),
        "members": (), "produced_messages": 0, "produced_bytes": 0, "consumed_messages": 0, "consumed_bytes": 0,
        "in_flight": 0, "waiting_putters": 0, "waiting_receivers": 0, "late_renewals": 0,
        "put_count": 0, "received_count": 0, "deleted_count": 0, "dead_lettered_count": 0, "replaced_count": 0,
        "blocked": {"full": 0.0, "empty": 0.0, "limited": 0.0, "paused": 0.0, "role": 0.0},
    }  # fmt: skip


async def test_messages_and_bytes_are_counted(open_queue: Opener, scripting: bool) -> None:
    queue = await open_queue(client_id="me", scripting=scripting)
    await queue.put_many([b"a", b"bb", b"ccc"])
    await queue.get_many(2)
    await queue.close()
    statistics = await queue.statistics()
    assert (statistics.produced_messages, statistics.produced_bytes) == (3, 6)
    assert (statistics.consumed_messages, statistics.consumed_bytes) == (2, 3)
    assert (statistics.length, statistics.closed) == (1, True)
    assert (await queue.qsize(), await queue.closed(), await queue.bound()) == (1, True, 0)
    assert (statistics.producer.state, statistics.producer.holder) == ("free", "me")
    assert (statistics.consumer.state, statistics.consumer.holder) == ("free", "me")


async def test_a_snapshot_cannot_be_changed(open_queue: Opener) -> None:
    statistics = await (await open_queue()).statistics()
    with pytest.raises(dataclasses.FrozenInstanceError):
        statistics.length = 5  # type: ignore[misc]


@pytest.mark.parametrize("question", ["qsize", "bound", "closed", "statistics"])
async def test_questions_about_a_missing_queue_raise(open_queue: Opener, scripting: bool, question: str) -> None:
    queue = await open_queue(create=False, scripting=scripting)
    with pytest.raises(QueueDoesNotExistError, match="'jobs' does not exist"):
        await getattr(queue, question)()
    await queue.create()
    await getattr(queue, question)()
    await queue.delete()
    with pytest.raises(QueueDoesNotExistError):
        await getattr(queue, question)()


async def test_waiting_tasks_of_this_object_are_counted(open_queue: Opener, db: redis.Redis, scripting: bool) -> None:
    full = await open_queue("full", bound=1, scripting=scripting)
    empty = await open_queue("empty", scripting=scripting)
    await full.put(b"x")
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(full.put(b"y")) for _ in range(2)]
    tasks += [asyncio.create_task(empty.get()) for _ in range(3)]
    await blocked(db, 2)
    full_statistics, empty_statistics = await full.statistics(), await empty.statistics()
    assert (full_statistics.waiting_putters, full_statistics.waiting_receivers) == (2, 0)
    assert (empty_statistics.waiting_putters, empty_statistics.waiting_receivers) == (0, 3)
    for task in tasks:
        task.cancel()
    await in_time(asyncio.gather(*tasks, return_exceptions=True))
    assert (await full.statistics()).waiting_putters == 0
    assert (await empty.statistics()).waiting_receivers == 0


@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_a_role_that_a_step_by_step_client_has_is_held(
    open_queue: Opener, db: redis.Redis, scripting: bool, role: str
) -> None:
    queue = await open_queue(scripting=scripting)
    db.rpop(f"__pressure__:jobs:{role}_free")
    db.set(f"__pressure__:jobs:{role}", "plain-client:7")
    found = getattr(await queue.statistics(), role)
    assert found == RoleStatistics(state="held", holder="plain-client:7", since=None, expires=None)
    db.lpush(f"__pressure__:jobs:{role}_free", 0)
    assert getattr(await queue.statistics(), role).state == "free"


@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_a_role_on_its_way_to_who_waited_is_claimed(open_queue: Opener, db: redis.Redis, role: str) -> None:
    queue = await open_queue()
    db.lmove(f"__pressure__:jobs:{role}_free", f"apressure:__pressure__:jobs:{role}_claim")
    assert getattr(await queue.statistics(), role).state == "claimed"
    db.lmove(f"apressure:__pressure__:jobs:{role}_claim", f"__pressure__:jobs:{role}_free")


def _check_lease(role: RoleStatistics, holder: str, seconds: float) -> None:
    assert (role.state, role.holder) == ("leased", holder)
    assert role.since is not None
    assert role.expires is not None
    assert role.since.tzinfo is UTC
    assert timedelta(0) < role.expires - role.since < timedelta(seconds=3 * seconds)
    assert abs(datetime.now(UTC) - role.since) < timedelta(seconds=60)


async def test_a_consumer_block_leases_the_consumer_role(open_queue: Opener) -> None:
    queue = await open_queue(client_id="me")
    await queue.put_many([b"1", b"2"])
    async with queue.consumer(lease=20, prefetch=1) as consumer:
        _check_lease((await queue.statistics()).consumer, "me", 20)
        assert await anext(consumer) == b"1"
        statistics = await queue.statistics()
        assert (statistics.in_flight, statistics.length, statistics.consumed_messages) == (1, 1, 0)
    statistics = await queue.statistics()
    assert (statistics.in_flight, statistics.length, statistics.consumed_messages) == (0, 1, 1)
    assert statistics.consumer == RoleStatistics(state="free", holder="me", since=None, expires=None)


async def test_an_exclusive_producer_leases_the_producer_role(open_queue: Opener) -> None:
    queue = await open_queue(client_id="me")
    async with queue.producer(exclusive=True, lease=20):
        _check_lease((await queue.statistics()).producer, "me", 20)
    assert (await queue.statistics()).producer.state == "free"


async def test_a_receive_leases_the_consumer_role_until_all_is_settled(open_queue: Opener) -> None:
    queue = await open_queue(client_id="me")
    await queue.put_many([b"1", b"2"])
    deliveries = [await queue.receive(lease=20), await queue.receive(lease=20)]
    _check_lease((await queue.statistics()).consumer, "me", 20)
    await deliveries[0].ack()
    assert (await queue.statistics()).consumer.state == "leased"
    await deliveries[1].ack()
    assert (await queue.statistics()).consumer.state == "free"
