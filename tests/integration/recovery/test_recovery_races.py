"""The doctor beside live clients: it leaves healthy queues alone, and roles that have changed since it looked."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
import redis

from apressure import Client, QueueClosedError, recovery
from apressure.pressure.doctor.findings import Snapshot, diagnose
from apressure.pressure.engine.keys import Keys
from apressure.pressure.engine.steps import Steps
from tests import reference
from tests.integration.conftest import Opener, blocking, everything, in_time
from tests.integration.sickness import (
    OURS,
    QUICK,
    Damage,
    key,
    kinds,
    tokens,
    usable,
)
from tests.reference import ProtocolError, ReferenceQueue, connect

# Notes, which are no faults


async def test_more_messages_than_the_bound_are_no_fault(open_queue: Opener) -> None:
    queue = await open_queue(bound=1)
    await queue.put_many([b"1", b"2", b"3"], force=True)
    report = await recovery.examine(queue)
    assert (kinds(report), report.healthy) == (["overfull"], True)
    assert "3 messages wait, more than the bound of 1" in report.findings[0].text


async def test_a_lease_is_shown_with_its_age(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    delivery = await queue.receive()
    repaired = await recovery.repair(queue)
    (finding,) = repaired.report.findings
    assert (repaired.done, finding.kind, finding.fault, finding.role) == ((), "leased", False, "consumer")
    assert finding.holder == queue.client.id
    assert "1 messages are in flight" in finding.text
    await delivery.ack()


async def test_a_plain_client_that_waits_is_no_fault(open_queue: Opener, url: str, db: redis.Redis) -> None:
    queue = await open_queue(bound=1)
    with connect(url) as mine, connect(url) as theirs:
        getting = await blocking(db, asyncio.to_thread(ReferenceQueue(mine, "jobs", client_id="getter").get))
        report = await recovery.examine(queue, QUICK)
        assert (kinds(report), report.healthy, report.findings[0].holder) == (["waiting_role"], True, "getter")
        assert "may be waiting for a message" in report.findings[0].text
        before = everything(db)
        assert (await recovery.repair(queue, patience=QUICK)).done == ()
        assert everything(db) == before
        await queue.put(b"1")
        assert await in_time(getting) == b"1"
        await queue.put(b"2")
        putting = await blocking(db, asyncio.to_thread(ReferenceQueue(theirs, "jobs", client_id="putter").put, b"3"))
        (finding,) = (await recovery.examine(queue, QUICK)).findings
        assert (finding.kind, finding.fault, finding.holder) == ("waiting_role", False, "putter")
        assert "may be waiting for room" in finding.text
        assert (await recovery.repair(queue, patience=QUICK)).done == ()
        assert await queue.get() == b"2"
        await in_time(putting)
        assert await queue.get() == b"3"


@pytest.mark.leaves_keys("apressure:*:op:*")
async def test_a_queue_under_load_has_no_fault_and_is_not_touched(
    open_queue: Opener, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await open_queue(bound=3)
    doctor = await open_queue("jobs", create=False)
    consuming = await open_queue("jobs", create=False)
    stop = threading.Event()
    put: list[bytes] = []
    got: list[bytes] = []
    repairs: list[recovery.Repair] = []
    doubts = 0

    def suspicious(snapshot: Snapshot) -> bool:
        """One look is not enough: a client is in the middle of an operation, and does not only wait."""
        nonlocal doubts
        at_once = diagnose(snapshot, snapshot)
        doubts += any(finding.fault for finding in at_once)
        return diagnose(None, snapshot) != at_once

    monkeypatch.setattr(recovery, "suspicious", suspicious)

    async def produce(label: int) -> None:
        count = 0
        while not stop.is_set():
            put.append(b"%d:%d" % (label, count))
            await queue.put(put[-1])
            count += 1

    def produce_plainly() -> None:
        count = 0
        with connect(url) as mine:
            plain = ReferenceQueue(mine, "jobs", client_id="plain producer")
            while not stop.is_set():
                put.append(b"plain:%d" % count)
                plain.put(put[-1])
                count += 1

    def consume_plainly() -> None:
        with connect(url) as mine:
            plain = ReferenceQueue(mine, "jobs", client_id="plain consumer")
            while True:
                try:
                    got.append(plain.get(timeout=0.1))
                except reference.QueueClosedError:
                    return
                except ProtocolError:
                    continue  # nothing came, or somebody else has the role

    async def consume() -> None:
        while not await consuming.closed():
            async with consuming.consumer(lease=1.0, prefetch=2) as consumer:
                async for item in consumer:
                    got.append(item)
                    if len(got) % 10 == 0:
                        break
            with contextlib.suppress(TimeoutError, QueueClosedError):
                got.append(await consuming.get(timeout=0.1))

    async with asyncio.TaskGroup() as consumers:
        consumers.create_task(consume())
        consumers.create_task(asyncio.to_thread(consume_plainly))
        async with asyncio.TaskGroup() as producers:
            for label in range(2):
                producers.create_task(produce(label))
            producers.create_task(asyncio.to_thread(produce_plainly))
            while doubts < 4:
                repairs.append(await recovery.repair(doctor, patience=0.5))
            stop.set()
        await queue.close()
    for repaired in repairs:
        assert repaired.done == ()
        assert repaired.report.healthy, repaired.report
        assert set(kinds(repaired.report)) <= {"leased", "waiting_role", "overfull"}
    with contextlib.suppress(QueueClosedError):
        while True:
            got += await queue.get_many(100)
    assert sorted(got) == sorted(put)
    assert (await recovery.examine(doctor)).findings == ()


# Races


async def test_a_role_is_given_back_once_however_often_its_holder_is_named(
    open_queue: Opener, db: redis.Redis, client: Client
) -> None:
    queue = await open_queue()
    db.rpop(key(":producer_free"))
    db.set(key(":producer"), "victim")
    keys = Keys(client.prefix, "jobs")
    steps = Steps(client, keys, "jobs")
    marks = (await steps.examine())[1]
    assert [action[0] for action in await steps.repair(marks, True, b"victim")] == [b"stuck_role"]
    # A client has taken the token, and has not yet written its name: everything looks as it did before.
    assert db.rpop(key(":producer_free"))
    assert await steps.repair(marks, True, b"victim") == []
    assert tokens(db, "producer") == 0
    # Also where the doctor goes by the same name.
    db.set(key(":producer"), client.id)
    marks = (await steps.examine())[1]
    assert len(await steps.repair(marks, True, client.id.encode())) == 1
    assert db.rpop(key(":producer_free"))
    assert await steps.repair(marks, True, client.id.encode()) == []
    db.lpush(key(":producer_free"), 1)
    await usable(queue, db)


async def test_a_holder_that_has_moved_since_the_look_keeps_its_role(
    open_queue: Opener, db: redis.Redis, client: Client
) -> None:
    await open_queue()
    db.rpop(key(":producer_free"))
    db.set(key(":producer"), "alive")
    steps = Steps(client, Keys(client.prefix, "jobs"), "jobs")
    marks = (await steps.examine())[1]
    db.incr(key(":stats:produced_messages"))
    assert await steps.repair(marks, True, b"alive") == []
    assert tokens(db, "producer") == 0
    db.lpush(key(":producer_free"), 1)


MOVING: dict[str, tuple[Damage, Damage]] = {
    # What a look sees, and what has happened since: an operation is under way.
    "create": (
        lambda db: (db.flushall(), db.set(key(":bound"), 2)),
        lambda db: db.lpush(key(":producer_free"), 1),
    ),
    "delete": (
        lambda db: (db.delete(key(":bound"), key(":producer_free")), db.lpush(key(":closed"), 0, 0)),
        lambda db: db.delete(key(":stats:produced_messages")),
    ),
    "deleted beside apressure": (
        lambda db: (db.flushall(), db.lpush(f"{OURS}redelivered", "1:x")),
        lambda db: db.lpush(f"{OURS}redelivered", "1:y"),
    ),
    "put": (
        lambda db: (db.set(key(":producer"), "alive"), db.rpop(key(":producer_free")), db.rpop(key(":not_full"))),
        lambda db: None,
    ),
    "get": (
        lambda db: (db.set(key(":consumer"), "alive"), db.rpop(key(":consumer_free")), db.rpop(key(":not_full"))),
        lambda db: db.incr(key(":stats:consumed_messages")),
    ),
}


@pytest.mark.leaves_keys
@pytest.mark.parametrize("operation", MOVING)
async def test_an_operation_under_way_is_left_alone_on_the_server_too(
    client: Client, db: redis.Redis, operation: str
) -> None:
    ReferenceQueue(db, "jobs").create(2)
    ReferenceQueue(db, "jobs").put(b"1")
    look, move = MOVING[operation]
    look(db)
    steps = Steps(client, Keys(client.prefix, "jobs"), "jobs")
    marks = (await steps.examine())[1]
    move(db)
    before = everything(db)
    assert await steps.repair(marks, True, None) == []
    assert everything(db) == before


async def test_repairs_at_once_beside_live_clients_make_no_second_token_and_lose_nothing(
    open_queue: Opener, url: str, db: redis.Redis
) -> None:
    queue = await open_queue(bound=50)
    doctors = [await open_queue("jobs", create=False) for _ in range(8)]
    stop = threading.Event()
    put: list[bytes] = []
    got: list[bytes] = []
    inside = {"producer": threading.Lock(), "consumer": threading.Lock()}
    two_at_once: list[str] = []

    def work(role: str, number: int) -> None:
        """A client in a role, step by step, who looks whether it is alone."""
        with connect(url) as mine:
            while not stop.is_set():
                if mine.brpop(key(f":{role}_free"), 0.05) is None:
                    continue
                alone = inside[role].acquire(blocking=False)
                if not alone:
                    two_at_once.append(role)
                if role == "producer":
                    message = b"%d:%d" % (number, len(put))
                    if mine.llen(key("")) < 50:
                        mine.lpush(key(""), message)
                        put.append(message)
                elif (item := mine.rpop(key(""))) is not None:
                    got.append(item)
                mine.set(key(f":{role}"), f"worker {number}")
                if alone:
                    inside[role].release()
                mine.lpush(key(f":{role}_free"), 1)

    async def repair_all() -> None:
        await asyncio.gather(*(recovery.repair(doctor, "victim", patience=0.0) for doctor in doctors))

    async with asyncio.TaskGroup() as group:
        for number in range(2):
            for role in inside:
                group.create_task(asyncio.to_thread(work, role, number))
        try:
            for turn in range(12):
                role = ("producer", "consumer")[turn % 2]
                while await asyncio.to_thread(db.brpop, key(f":{role}_free"), 5) is None:
                    pass
                db.set(key(f":{role}"), "victim")
                await repair_all()
        finally:
            stop.set()
    assert two_at_once == []
    assert [tokens(db, role) for role in inside] == [1, 1]
    got += await queue.get_many(100, timeout=0) if await queue.qsize() else []
    assert sorted(got) == sorted(put)
    assert len(put) > 0
