"""Where the released C, Python and Go clients deviate from the specification, and how apressure handles it."""

from __future__ import annotations

import asyncio

import pytest
import redis

from apressure import AsyncQueue, Client, QueueFullError, QueueInUseError, ServerError, recovery
from apressure.pressure.engine import batching
from apressure.pressure.engine.keys import Keys
from tests.integration.commands import Commands
from tests.integration.conftest import blocking
from tests.integration.interoperability.both import (
    NAME,
    PATIENCE,
    PREFIX,
    a_queue,
    in_thread,
    nothing_left,
    open_queue,
    outcome_of,
)
from tests.reference import ReferenceQueue, snapshot

KEYS = Keys(PREFIX, NAME)
QUICK = 0.005
"""Seconds between the doctor's two looks, where nothing but the test changes the queue."""


# A closed queue without a permit


async def test_a_closed_queue_that_was_drained_without_a_permit_is_healthy(url: str, db: redis.Redis) -> None:
    """Of a closed queue the released C and Python clients get by BRPOP, and leave everything else as it is."""
    async with a_queue(url, 1) as queue:
        await queue.put(b"1")
        await queue.close()
        assert db.brpop(KEYS.messages, 1) is not None
        assert db.llen(KEYS.not_full) == 0
        report = await recovery.examine(queue, QUICK)
        assert (report.healthy, report.findings) == (True, ())
        db.lpush(KEYS.free("producer"), 1)  # another fault, which the doctor repairs
        repaired = await recovery.repair(queue, patience=QUICK)
        assert [action.kind for action in repaired.done] == ["doubled_token"]


# The counters of the Go client


def count_as_go_does(db: redis.Redis, name: str = NAME) -> None:
    for counter in ("produced_messages", "produced_bytes", "consumed_messages", "consumed_bytes"):
        db.incr(f"{PREFIX}:{name}:stats_{counter}")


async def test_counters_of_the_go_client_are_no_queues(url: str, db: redis.Redis, cli: Commands) -> None:
    async with Client(url) as client:
        await AsyncQueue(NAME, client=client).create()
        count_as_go_does(db)
        count_as_go_does(db, "gone")
        assert await recovery.find(client) == [NAME]
        assert await client.queues() == [NAME]
        listed = await asyncio.to_thread(cli, "doctor", "--all")
        assert listed.stdout.splitlines() == [f"{NAME}\thealthy".encode()]
        # A list of such a name belongs to a queue that was deleted.
        db.delete(f"{PREFIX}:{NAME}:stats_consumed_bytes")
        db.lpush(f"{PREFIX}:{NAME}:stats_consumed_bytes", 1)
        assert await recovery.find(client) == [NAME, f"{NAME}:stats_consumed_bytes"]
    db.flushall()


async def test_counters_of_the_go_client_go_with_the_queue(url: str, db: redis.Redis, scripting: bool) -> None:
    async with a_queue(url, scripting=scripting):
        count_as_go_does(db)
    assert nothing_left(db)


async def test_a_queue_that_is_called_like_a_counter_stays(url: str, db: redis.Redis, scripting: bool) -> None:
    name = f"{NAME}:stats_produced_bytes"
    async with open_queue(url, scripting=scripting) as queue, open_queue(url, name, scripting=scripting) as other:
        await queue.create()
        await other.create()
        await other.put(b"1")
        await queue.delete(timeout=PATIENCE)
        assert await other.get(timeout=PATIENCE) == b"1"
        await other.delete(timeout=PATIENCE)
        assert nothing_left(db)


# A bound below 0


async def test_a_negative_bound_is_no_bound(url: str, db: redis.Redis, scripting: bool) -> None:
    """As for the released C and Go clients."""
    ReferenceQueue(db, NAME).create(-1)
    async with open_queue(url, scripting=scripting) as queue:
        assert await queue.bound() == 0
        for number in range(3):
            await queue.put_nowait(b"%d" % number)
            assert db.llen(KEYS.not_full) == 1
        assert await queue.get_nowait() == b"0"
        assert db.llen(KEYS.not_full) == 1
        await queue.put_many([b"3", b"4"], timeout=PATIENCE)
        assert await queue.get_many(9, timeout=0) == [b"1", b"2", b"3", b"4"]
        assert db.llen(KEYS.not_full) == 1
        await queue.delete(timeout=PATIENCE)


async def test_a_consumer_reads_ahead_as_without_a_bound(url: str, db: redis.Redis) -> None:
    ReferenceQueue(db, NAME).create(-1)
    async with open_queue(url) as queue:
        await queue.put_many([b"%d" % number for number in range(50)])
        in_flight = []
        async with queue.consumer() as consumer:
            for _ in range(50):
                await anext(consumer)
                in_flight.append(db.llen(KEYS.inflight))
        assert max(in_flight) > 2
        await queue.delete(timeout=PATIENCE)


async def test_the_doctor_notes_a_negative_bound(url: str, db: redis.Redis) -> None:
    ReferenceQueue(db, NAME).create(-1)
    async with open_queue(url) as queue:
        (finding,) = (await recovery.examine(queue, QUICK)).findings
        assert (finding.kind, finding.fault) == ("negative_bound", False)
        assert "SET __pressure__:jobs:bound 0" in finding.advice
        db.lpush(KEYS.free("producer"), 1)
        repaired = await recovery.repair(queue, patience=QUICK)
        assert [action.kind for action in repaired.done] == ["doubled_token"]
        await queue.delete(timeout=PATIENCE)


# Who brings a permit that was lost


async def test_a_plain_put_that_fails_leaves_one_permit(url: str, db: redis.Redis) -> None:
    async with a_queue(url, 2, scripting=False) as queue:
        db.lpush(KEYS.not_full, 0)  # as a client of protocol 0.1 leaves it, or a consumer brings it meanwhile
        db.set(KEYS.messages_count("producer"), "no number")
        with pytest.raises(ServerError):
            await queue.put_nowait(b"1")
        assert db.llen(KEYS.not_full) == 1


async def test_a_put_of_ours_waits_for_the_permit_that_a_consumer_brings(url: str, db: redis.Redis) -> None:
    async with a_queue(url, 1) as queue:
        await queue.put(b"1")
        assert db.rpop(KEYS.free("consumer")) is not None  # the consumer has got the message, and nothing else yet
        assert db.rpop(KEYS.messages) == b"1"
        with pytest.raises(QueueFullError):
            await queue.put_nowait(b"2")
        putting = await blocking(db, queue.put(b"2", timeout=PATIENCE))
        db.lpush(KEYS.not_full, 0)
        await putting
        assert snapshot(db, PREFIX, NAME)[":not_full"] == 0
        db.lpush(KEYS.free("consumer"), 0)


async def test_a_put_of_ours_does_without_a_permit_that_was_lost(
    url: str, db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer has lost it, and a consumer waits for a message: one of the two has to go on."""
    async with a_queue(url, 1) as queue:
        assert db.rpop(KEYS.not_full) is not None
        theirs = await blocking(db, in_thread(url, lambda one: one.get(PATIENCE)))
        with pytest.raises(QueueFullError):
            await queue.put_nowait(b"1")
        monkeypatch.setattr(batching, "SLICE", 0)
        await queue.put(b"1", timeout=PATIENCE)
        assert await theirs == b"1"
        assert snapshot(db, PREFIX, NAME)[":not_full"] == 1


async def test_a_permit_that_died_with_a_consumer_comes_back_when_its_role_does(url: str, db: redis.Redis) -> None:
    """A producer waits for it, with its role: no step of ours may guess whether it has the permit."""
    async with a_queue(url, 1) as queue:
        await queue.put(b"1")
        blocked = await blocking(db, outcome_of(in_thread(url, lambda one: one.put(b"2", PATIENCE))))
        assert db.rpop(KEYS.free("consumer")) is not None
        db.set(KEYS.holder("consumer"), "dead")
        assert db.rpop(KEYS.messages) == b"1"
        assert (await recovery.repair(queue, patience=QUICK)).done == ()
        repaired = await recovery.repair(queue, "dead", patience=QUICK)
        assert [action.kind for action in repaired.done] == ["stuck_role", "lost_permit"]
        assert await blocked is None
        assert await queue.get(timeout=PATIENCE) == b"2"


async def test_a_permit_that_died_with_a_producer_comes_back_when_its_role_does(url: str, db: redis.Redis) -> None:
    async with a_queue(url, 1) as queue:
        assert db.rpop(KEYS.free("producer")) is not None
        db.set(KEYS.holder("producer"), "dead")
        assert db.rpop(KEYS.not_full) is not None
        assert await outcome_of(queue.get_nowait()) == "QueueEmptyError"
        assert db.llen(KEYS.not_full) == 0
        finding = (await recovery.examine(queue, QUICK)).findings[0]
        assert "redis-cli LPUSH __pressure__:jobs:not_full 0" in finding.advice
        repaired = await recovery.repair(queue, "dead", patience=QUICK)
        assert [action.kind for action in repaired.done] == ["stuck_role", "lost_permit"]


async def test_the_next_step_brings_a_permit_back_when_nobody_has_a_role(url: str, db: redis.Redis) -> None:
    async with a_queue(url, 1) as queue:
        assert db.rpop(KEYS.not_full) is not None
        assert await outcome_of(queue.get_nowait()) == "QueueEmptyError"
        assert db.llen(KEYS.not_full) == 1


# Closed queues and the Go client


def get_as_go_does(db: redis.Redis) -> str:
    """Its Get takes a list of messages that exists for an empty one, if the queue is closed."""
    assert db.rpop(KEYS.free("consumer")) is not None
    db.set(KEYS.holder("consumer"), "go")
    assert db.exists(KEYS.closed)
    if db.exists(KEYS.messages):
        db.lpush(KEYS.free("consumer"), 0)
        return "closed"
    return "waits for ever, with the role"  # BRPOP list 0


async def test_what_the_go_client_leaves_in_a_closed_queue_comes_to_us(
    url: str, db: redis.Redis, scripting: bool
) -> None:
    async with a_queue(url, 3, scripting=scripting) as queue:
        await queue.put_many([b"1", b"2"])
        await queue.close()
        assert get_as_go_does(db) == "closed"
        assert [item async for item in queue] == [b"1", b"2"]


async def test_the_go_client_keeps_the_role_of_a_queue_that_is_closed_and_empty(
    url: str, db: redis.Redis, scripting: bool
) -> None:
    async with a_queue(url, 3, scripting=scripting) as queue:
        await queue.close()
        assert get_as_go_does(db) == "waits for ever, with the role"
        with pytest.raises(QueueInUseError, match="go"):
            await queue.get(timeout=0)
        if scripting:
            await recovery.repair(queue, holder="go", patience=QUICK)  # when its process has ended
        else:
            db.lpush(KEYS.free("consumer"), 0)
        assert [item async for item in queue] == []
