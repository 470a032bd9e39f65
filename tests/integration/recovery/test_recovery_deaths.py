"""Clients that work step by step and die anywhere: what the doctor makes of what they leave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest
import redis

from apressure import AsyncQueue, Client, recovery
from apressure.pressure.doctor.recovery import Report
from tests.integration.conftest import Opener, blocking, everything, in_time
from tests.integration.sickness import (
    QUICK,
    in_flight,
    key,
    kinds,
    tokens,
    usable,
)
from tests.reference import TWELVE, ReferenceQueue, connect

# A client that works step by step, and dies


class Death(Exception):
    """Raised by a hook: the client died there."""


def dying(db: redis.Redis, commands: int, sent: list[str]) -> ReferenceQueue:
    """A client that dies after so many commands."""

    def hook(command: str) -> None:
        if len(sent) == commands:
            raise Death
        sent.append(command)

    return ReferenceQueue(db, "jobs", client_id="victim", hook=hook)


OPERATIONS: dict[str, Callable[[ReferenceQueue], object]] = {
    "put": lambda queue: queue.put(b"of the victim", timeout=1),
    "put_nowait": lambda queue: queue.put_nowait(b"of the victim"),
    "get": lambda queue: queue.get(timeout=1),
    "get_nowait": lambda queue: queue.get_nowait(),
    "close": lambda queue: queue.close(timeout=1),
}


@pytest.mark.parametrize(
    ("operation", "bound"), [*((operation, 2) for operation in OPERATIONS), ("put", 3), ("get", 0)]
)
async def test_the_role_of_a_client_that_died_anywhere_comes_back_with_its_name(
    url: str, db: redis.Redis, operation: str, bound: int
) -> None:
    role = "consumer" if operation.startswith("get") else "producer"
    complete, commands, stuck = False, 0, 0
    while not complete:
        ReferenceQueue(db, "jobs").create(bound)
        ReferenceQueue(db, "jobs", client_id="before").put(b"1")
        sent: list[str] = []
        try:
            OPERATIONS[operation](dying(db, commands, sent))
            complete = True
        except Death:
            commands += 1
        async with AsyncQueue("jobs", url=url) as queue:
            report = await recovery.examine(queue, QUICK)
            taken = [finding for finding in report.findings if finding.kind in ("stuck_role", "waiting_role")]
            assert bool(taken) == (tokens(db, role) == 0)
            name = "before" if role == "producer" else None
            if f"{operation} SET :{role}" in sent:
                name = "victim"
            if taken:
                stuck += 1
                (finding,) = taken
                assert (finding.role, finding.repair, finding.holder) == (role, "holder", name)
                assert "--holder" in finding.advice
                assert "CLIENT LIST" in finding.advice
                # Not without a name, and not with another.
                for wrong in (None, "victi", "" if name else "victim"):
                    await recovery.repair(queue, wrong, QUICK)
                    assert tokens(db, role) == 0
            repaired = await recovery.repair(queue, name or "", QUICK)
            assert bool(taken) == any(action.kind == "stuck_role" for action in repaired.done)
            assert repaired.report.healthy
            assert kinds(repaired.report) == []
            # What was put is there, what was got is not, whatever else the victim had no time for.
            taken_messages = {f"{operation} BRPOP list", f"{operation} RPOP list"} & set(sent)
            messages = [] if taken_messages else [b"1"]
            messages += [b"of the victim"] if f"{operation} LPUSH list" in sent else []
            assert db.lrange(key(""), 0, -1) == messages[::-1]
            if f"{operation} LPUSH :closed" not in sent:
                await usable(queue, db)
            await queue.delete(timeout=5)
    assert commands > 3
    assert stuck > 1


async def test_a_create_that_died_anywhere_is_finished(url: str, db: redis.Redis) -> None:
    for commands in range(1, 4):
        with contextlib.suppress(Death):
            dying(db, commands, []).create(2)
        async with AsyncQueue("jobs", url=url) as queue:
            (finding,) = (await recovery.examine(queue, QUICK)).findings
            assert finding.kind == "half_created"
            assert len((await recovery.repair(queue, patience=QUICK)).done) == 1
            await usable(queue, db)
            await queue.delete(timeout=5)


async def test_a_fresh_queue_whose_first_client_died_is_not_taken_for_a_create_that_died(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue = await open_queue()
    db.rpop(key(":producer_free"))
    db.rpop(key(":consumer_free"))
    report = await recovery.examine(queue, QUICK)
    assert {(finding.kind, finding.role, finding.holder) for finding in report.findings} == {
        ("stuck_role", "producer", None),
        ("waiting_role", "consumer", None),
    }
    assert all("--holder ''" in finding.advice for finding in report.findings)
    assert (await recovery.repair(queue, patience=QUICK)).done == ()
    assert (await recovery.repair(queue, "", QUICK)).report.findings == ()
    await usable(queue, db)


async def test_a_delete_that_died_anywhere_is_finished(url: str, db: redis.Redis) -> None:
    complete, commands = False, 2
    while not complete:
        ReferenceQueue(db, "jobs").create(2)
        ReferenceQueue(db, "jobs", client_id="p").put(b"1")
        ReferenceQueue(db, "jobs", client_id="p").put(b"2")
        ReferenceQueue(db, "jobs", client_id="c").get()
        in_flight(db)  # whatever else is there
        try:
            dying(db, commands, []).delete(timeout=1)
            complete = True
        except Death:
            commands += 1
        async with AsyncQueue("jobs", url=url) as queue:
            report = await recovery.examine(queue, QUICK)
            assert not report.exists
            assert set(kinds(report)) == {"leftovers" if complete else "half_deleted"}
            named = [finding.holder for finding in report.findings if finding.repair == "holder"]
            assert named in ([], ["p"], ["c"])
            if named:
                # The deleter cannot be told from one that waits for the role.
                assert (await recovery.repair(queue, patience=QUICK)).done == ()
                assert f"was {named[0]!r}" in report.findings[0].text
            repaired = await recovery.repair(queue, named[0] if named else None, QUICK)
            assert repaired.done[-1].kind == ("leftovers" if complete else "half_deleted")
            assert any("removed 2 messages that were in flight" in action.text for action in repaired.done)
            assert repaired.report.findings == ()
            assert everything(db) == {}
    assert commands > 12


async def test_a_delete_under_way_gets_the_role_that_it_waits_for(url: str, db: redis.Redis) -> None:
    ReferenceQueue(db, "jobs").create(2)
    for role in ("producer", "consumer"):
        assert db.rpop(key(f":{role}_free"))
        db.set(key(f":{role}"), "victim")
    with connect(url) as mine:
        deleting = await blocking(db, asyncio.to_thread(ReferenceQueue(mine, "jobs").delete))
        async with AsyncQueue("jobs", url=url) as queue:
            report = await recovery.examine(queue, QUICK)
            assert [(finding.kind, finding.role) for finding in report.findings] == [
                ("half_deleted", "producer"),
                ("half_deleted", "consumer"),
            ]
            assert (await recovery.repair(queue, patience=QUICK)).done == ()
            repaired = await recovery.repair(queue, "victim", QUICK)
            await in_time(deleting)  # it has not been left waiting for a token that is gone
            assert {action.kind for action in repaired.done} == {"stuck_role"}
            assert (await recovery.examine(queue)).findings == ()
    assert everything(db) == {}


async def test_a_deleted_queue_whose_consumer_lives_is_left_to_it(url: str, db: redis.Redis) -> None:
    async with AsyncQueue("jobs", url=url) as queue, AsyncQueue("jobs", url=url) as doctor:
        await queue.create()
        await queue.put(b"1")
        delivery = await queue.receive()
        db.delete(*map(key, TWELVE))
        before = everything(db)
        assert kinds(await recovery.examine(doctor, QUICK)) == ["leased"]
        assert (await recovery.repair(doctor, patience=QUICK)).done == ()
        assert everything(db) == before
        with contextlib.suppress(Exception):
            await delivery.ack()
        # The token that it gave back is a key of a queue that does not exist.
        assert [action.kind for action in (await recovery.repair(doctor, patience=QUICK)).done] == ["half_deleted"]
    assert everything(db) == {}


async def test_the_keys_of_another_queue_are_not_taken_for_what_is_left_of_this_one(
    url: str, db: redis.Redis, client: Client
) -> None:
    other = AsyncQueue("jobs:closed", client=client)
    await other.create()
    await other.put(b"1")
    jobs = AsyncQueue("jobs", client=client)
    assert (await recovery.repair(jobs, patience=QUICK)).report == Report("jobs", False, ())
    assert await recovery.find(client) == ["jobs:closed"]
    assert await other.get() == b"1"
    await other.delete()
