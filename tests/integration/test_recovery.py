"""What the doctor finds, what it mends, and that it leaves alone what is healthy."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import fakeredis
import pytest
import redis

from apressure import AsyncQueue, Client, QueueClosedError, ScriptingRefusedError, recovery
from apressure.embedded import EmbeddedServer
from apressure.queue.keys import Keys
from apressure.queue.recovery import Report
from apressure.queue.steps import Steps
from tests import reference
from tests.integration.conftest import Opener, blocked, eventually, everything, in_time
from tests.reference import TWELVE, ProtocolError, ReferenceQueue, connect
from tests.topologies import cluster

QUICK = 0.02
"""Patience for what a test itself holds still."""

OURS = "apressure:__pressure__:jobs:"


def key(suffix: str) -> str:
    return f"__pressure__:jobs{suffix}"


def kinds(report: Report) -> list[str]:
    return [finding.kind for finding in report.findings]


def tokens(db: redis.Redis, role: str) -> int:
    """Every place where a role's token can be seen."""
    free, claim = db.llen(key(f":{role}_free")), db.llen(f"{OURS}{role}_claim")
    return int(free + claim + db.exists(f"{OURS}{role}_lease"))


async def usable(queue: AsyncQueue[Any], db: redis.Redis) -> None:
    """Both kinds of clients can put and get, and the tokens are where they belong."""
    while await queue.qsize():
        await queue.get_nowait()
    plain = ReferenceQueue(db, queue.name)
    plain.put(b"plain", timeout=5)
    await queue.put(b"ours", timeout=5)
    assert await queue.get(timeout=5) == b"plain"
    assert plain.get(timeout=5) == b"ours"
    assert [tokens(db, role) for role in ("producer", "consumer")] == [1, 1]
    assert db.llen(key(":not_full")) == 1


def lease(db: redis.Redis, role: str, deadline: int) -> None:
    db.hset(
        f"{OURS}{role}_lease",
        mapping={"token": "t", "uid": "victim", "since": 1, "deadline": deadline, "next": 3, "hold": 1},
    )


def expire(db: redis.Redis, role: str) -> None:
    db.delete(key(f":{role}_free"))
    lease(db, role, 2)


def in_flight(db: redis.Redis) -> None:
    db.hset(f"{OURS}inflight", mapping={"1": "first", "2": "second"})


def claim(db: redis.Redis, role: str) -> None:
    db.rpoplpush(key(f":{role}_free"), f"{OURS}{role}_claim")
    db.set(f"{OURS}{role}_claim_until", 5)


def fill(db: redis.Redis) -> None:
    db.lpush(key(""), "1", "2")


def far(db: redis.Redis) -> int:
    return (int(db.time()[0]) + 60) * 1000


Damage = Callable[[redis.Redis], object]
AUTOMATIC: dict[str, tuple[Damage, str, str, str]] = {
    # How it comes about; what is found, with a word that must be in it; a word of what was done.
    "no permit": (
        lambda db: (db.delete(key(":not_full")), db.set(key(":producer"), "p")), "lost_permit", "the bound is 2",
        "brought back",
    ),
    "permits": (lambda db: db.lpush(key(":not_full"), 1, 1), "extra_permits", "there are 3", "removed 2"),
    "permit when full": (fill, "extra_permits", "where none belongs", "removed 1"),
    "two producer tokens": (
        lambda db: db.lpush(key(":producer_free"), 1), "doubled_token", "2 tokens of the prod", "removed 1 of the 2",
    ),
    "three consumer tokens": (
        lambda db: db.lpush(key(":consumer_free"), 1, 1), "doubled_token", "3 in the free list", "removed 2 of the 3",
    ),
    "free and claimed": (
        lambda db: db.lpush(f"{OURS}consumer_claim", 1), "doubled_token", "1 claimed", "removed 1 of the 2",
    ),
    "claimed twice": (
        lambda db: (db.delete(key(":producer_free")), db.lpush(f"{OURS}producer_claim", 1, 1),
                    db.set(f"{OURS}producer_claim_until", 5)),
        "abandoned_claim", "token of the producer", "gave back the producer role",
    ),
    "expired exclusive producer": (
        lambda db: expire(db, "producer"), "expired_lease", "'victim' on the producer role", "'victim' let run out",
    ),
    "expired consumer": (
        lambda db: (expire(db, "consumer"), in_flight(db)), "expired_lease", "2 messages are in flight",
        "put 2 messages back",
    ),
    "orphaned items": (in_flight, "orphaned_items", "2 messages are in flight", "put 2 messages back"),
    "claim of a dead client": (
        lambda db: claim(db, "consumer"), "abandoned_claim", "consumer role was given", "gave back the consumer role",
    ),
    "statistic of words": (
        lambda db: db.set(key(":stats:produced_bytes"), "many" * 100), "broken_statistic", "put refuses", "manymany",
    ),
    "statistic too large": (
        lambda db: db.set(key(":stats:consumed_messages"), "9" * 19), "broken_statistic", "get refuses", "it was '9999",
    ),
    "statistic with a zero in front": (
        lambda db: db.set(key(":stats:consumed_bytes"), "007"), "broken_statistic", "'007'", "to 0; it was '007'",
    ),
    "statistic of another type": (
        lambda db: db.sadd(key(":stats:produced_messages"), "x"), "broken_statistic", "but a set", "it was a set",
    ),
    "created by halves, bound only": (
        lambda db: db.delete(key(":producer_free"), key(":consumer_free"), key(":not_full")),
        "half_created", "nobody has ever used it", "made the tokens",
    ),
    "created by halves, one token": (
        lambda db: db.delete(key(":consumer_free"), key(":not_full")), "half_created", "died on the way", "made the",
    ),
    "created by halves, two tokens": (
        lambda db: db.delete(key(":not_full")), "half_created", "not all of its tokens", "made the",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AUTOMATIC)
async def test_what_needs_no_human_is_found_and_mended(open_queue: Opener, db: redis.Redis, name: str) -> None:
    damage, kind, word, done = AUTOMATIC[name]
    queue = await open_queue(bound=2)
    damage(db)
    before = everything(db)
    report = await recovery.examine(queue, QUICK)
    assert (report.exists, report.healthy) == (True, False)
    assert everything(db) == before
    finding = next(finding for finding in report.findings if finding.kind == kind)
    assert (finding.fault, finding.repair) == (True, "automatic")
    assert word in finding.text
    assert finding.advice
    repaired = await recovery.repair(queue, patience=QUICK)
    assert any(action.kind == kind and done in action.text for action in repaired.done)
    assert repaired.report.healthy
    assert (await recovery.repair(queue, patience=QUICK)).done == ()
    await usable(queue, db)


async def test_a_statistic_that_was_lost_is_told_in_short_and_the_others_stay(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue = await open_queue()
    await queue.put(b"1234")
    db.set(key(":stats:produced_messages"), "x" * 10000)
    (action,) = (await recovery.repair(queue, patience=QUICK)).done
    assert "x" * 100 in action.text
    assert "x" * 101 not in action.text
    assert db.get(key(":stats:produced_messages")) == b"0"
    assert db.get(key(":stats:produced_bytes")) == b"4"


async def test_what_was_in_flight_comes_first_in_its_order(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put(b"third")
    expire(db, "consumer")
    in_flight(db)
    await recovery.repair(queue)
    assert await queue.get_many(5) == [b"first", b"second", b"third"]


async def test_a_claim_that_nobody_noted_yet_is_given_back_when_its_time_is_up(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue = await open_queue()
    db.rpoplpush(key(":producer_free"), f"{OURS}producer_claim")
    (finding,) = (await recovery.examine(queue, QUICK)).findings
    assert (finding.kind, finding.role) == ("abandoned_claim", "producer")
    repairing = asyncio.create_task(recovery.repair(queue, patience=QUICK))
    await eventually(lambda: db.exists(f"{OURS}producer_claim_until"))
    assert db.llen(f"{OURS}producer_claim") == 1
    (action,) = (await in_time(repairing)).done
    assert action.kind == "abandoned_claim"
    await usable(queue, db)


async def test_of_a_token_beside_a_lease_the_lease_stays(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(bound=2)
    async with queue.producer(exclusive=True) as producer:
        db.lpush(key(":producer_free"), 1)
        db.lpush(f"{OURS}producer_claim", 1)
        assert "doubled_token" in kinds(await recovery.examine(queue, QUICK))
        assert [action.kind for action in (await recovery.repair(queue, patience=QUICK)).done] == ["doubled_token"]
        assert tokens(db, "producer") == db.exists(f"{OURS}producer_lease") == 1
        await producer.put(b"still ours")
    assert tokens(db, "producer") == 1


BY_HAND: dict[str, tuple[Damage, str, str]] = {
    "bound of words": (lambda db: db.set(key(":bound"), "ten"), "broken_bound", "'ten'"),
    "negative bound": (lambda db: db.set(key(":bound"), -1), "broken_bound", "'-1'"),
    "bound of another type": (
        lambda db: (db.delete(key(":bound")), db.lpush(key(":bound"), 5)), "broken_bound", "but list",
    ),
    "messages that are a string": (
        lambda db: db.set(key(""), "x"), "wrong_type", "is a string, where a queue has a list",
    ),
    "token that is a hash": (
        lambda db: (db.delete(key(":not_full")), db.hset(key(":not_full"), "a", 1)), "wrong_type", "is a hash",
    ),
    "holder that is a list": (lambda db: db.lpush(key(":producer"), 1), "wrong_type", "is a list"),
    "lease that is a string": (lambda db: db.set(f"{OURS}consumer_lease", 1), "wrong_type", "is a string"),
    "items in a set": (lambda db: db.sadd(f"{OURS}inflight", 1), "wrong_type", "is a set"),
    "another queue on a key": (
        lambda db: ReferenceQueue(db, "jobs:closed").create(), "collision", "'__pressure__:jobs:closed'",
    ),
}  # fmt: skip


@pytest.mark.leaves_keys
@pytest.mark.parametrize("name", BY_HAND)
async def test_what_only_a_human_can_mend_is_told_and_left(url: str, db: redis.Redis, name: str) -> None:
    damage, kind, word = BY_HAND[name]
    ReferenceQueue(db, "jobs").create(2)
    damage(db)
    in_flight(db) if not db.exists(f"{OURS}inflight") else None  # not even what could be mended, otherwise
    before = everything(db)
    async with AsyncQueue("jobs", url=url) as queue:
        (finding,) = (await recovery.examine(queue, QUICK)).findings
        assert (finding.kind, finding.fault, finding.repair) == (kind, True, "by hand")
        assert word in finding.text
        assert "redis-cli" in finding.advice or kind == "collision"
        repaired = await recovery.repair(queue, holder="", patience=QUICK)
    assert repaired.done == ()
    assert repaired.report.findings == (finding,)
    assert everything(db) == before


async def test_beside_a_key_of_the_wrong_type_statistics_can_be_mended(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    db.set(key(":closed"), "x")
    db.set(key(":stats:consumed_bytes"), "x")
    repaired = await recovery.repair(queue, patience=QUICK)
    assert [action.kind for action in repaired.done] == ["broken_statistic"]
    assert kinds(repaired.report) == ["wrong_type"]
    db.delete(key(":closed"))
    await usable(queue, db)


# Notes: what is not a fault


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
        getting = asyncio.create_task(asyncio.to_thread(ReferenceQueue(mine, "jobs", client_id="getter").get))
        await blocked(db)
        report = await recovery.examine(queue, QUICK)
        assert (kinds(report), report.healthy, report.findings[0].holder) == (["waiting_role"], True, "getter")
        assert "may be waiting for a message" in report.findings[0].text
        before = everything(db)
        assert (await recovery.repair(queue, patience=QUICK)).done == ()
        assert everything(db) == before
        await queue.put(b"1")
        assert await in_time(getting) == b"1"
        await queue.put(b"2")
        putting = asyncio.create_task(asyncio.to_thread(ReferenceQueue(theirs, "jobs", client_id="putter").put, b"3"))
        await blocked(db)
        (finding,) = (await recovery.examine(queue, QUICK)).findings
        assert (finding.kind, finding.fault, finding.holder) == ("waiting_role", False, "putter")
        assert "may be waiting for room" in finding.text
        assert (await recovery.repair(queue, patience=QUICK)).done == ()
        assert await queue.get() == b"2"
        await in_time(putting)
        assert await queue.get() == b"3"


@pytest.mark.leaves_keys("apressure:*:op:*")
async def test_a_queue_under_load_has_no_fault_and_is_not_touched(
    open_queue: Opener, url: str, db: redis.Redis
) -> None:
    queue = await open_queue(bound=3)
    doctor = await open_queue("jobs", create=False)
    consuming = await open_queue("jobs", create=False)
    stop = threading.Event()
    put: list[bytes] = []
    got: list[bytes] = []

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
            try:
                for _ in range(3):
                    repaired = await recovery.repair(doctor)
                    assert repaired.done == ()
                    assert repaired.report.healthy, repaired.report
                    assert set(kinds(repaired.report)) <= {"leased", "waiting_role", "overfull"}
            finally:
                stop.set()
        await queue.close()
    with contextlib.suppress(QueueClosedError):
        while True:
            got += await queue.get_many(100)
    assert sorted(got) == sorted(put)
    assert (await recovery.examine(doctor)).findings == ()


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


@pytest.mark.parametrize("bound", [0, 2, 3])
@pytest.mark.parametrize("operation", OPERATIONS)
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
        deleting = asyncio.create_task(asyncio.to_thread(ReferenceQueue(mine, "jobs").delete))
        await blocked(db)
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


# Watching


async def test_watching_heals_what_foreign_clients_cannot(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(bound=2)
    repairs: list[recovery.Repair] = []
    healed = asyncio.Event()

    def note(repaired: recovery.Repair) -> None:
        repairs.append(repaired)
        healed.set()

    watching = asyncio.create_task(recovery.watch(queue, 0.02, note))
    for damage, kind in (
        (lambda: (expire(db, "consumer"), in_flight(db)), "expired_lease"),
        (lambda: db.delete(key(":not_full"), key("")), "lost_permit"),
        (lambda: claim(db, "producer"), "abandoned_claim"),
        (lambda: in_flight(db), "orphaned_items"),
    ):
        healed.clear()
        damage()
        await in_time(healed.wait())
        assert kind in {action.kind for action in repairs[-1].done}
    # What a human has to decide, and what loses something, is not touched.
    db.rpop(key(":consumer_free"))
    db.set(key(":stats:produced_bytes"), "x")
    healed.clear()
    db.lpush(key(":producer_free"), 1)
    await in_time(healed.wait())
    assert [action.kind for action in repairs[-1].done] == ["doubled_token"]
    assert db.llen(key(":consumer_free")) == 0
    assert db.get(key(":stats:produced_bytes")) == b"x"
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    db.lpush(key(":consumer_free"), 1)
    db.delete(key(":stats:produced_bytes"))


async def test_watching_a_client_sees_queues_that_come_and_go(client: Client, db: redis.Redis) -> None:
    healed: asyncio.Queue[recovery.Repair] = asyncio.Queue()
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(recovery.watch(client, 0.02, healed.put_nowait))
        for name in ("jobs", "other"):
            queue = AsyncQueue(name, client=client)
            await queue.create()
            db.lpush(f"__pressure__:{name}:consumer_free", 1)
            assert (await in_time(healed.get())).name == name
            await queue.delete()
        watching.cancel()


# Where


async def test_every_queue_is_found_and_what_is_left_of_others(client: Client, url: str, db: redis.Redis) -> None:
    await AsyncQueue("jobs:closed", client=client).create()
    await AsyncQueue("a*b", client=client).create()
    db.lpush("__pressure__:messages only", "1")
    db.lpush("__pressure__:no bound:consumer_free", "1")
    db.set("__pressure__:statistics:stats:consumed_bytes", 5)
    db.hset("apressure:__pressure__:ours", "x", 1)
    db.hset("apressure:__pressure__:only ours:inflight", "x", 1)
    db.set("apressure:__pressure__:record:op:inflight", 1)
    db.set("__pressure__other:bound", 1)
    names = ["a*b", "jobs:closed", "messages only", "no bound", "only ours", "statistics"]
    assert await recovery.find(client) == names
    for name in names[2:]:
        queue = AsyncQueue(name, client=client)
        assert len((await recovery.repair(queue, patience=QUICK)).done) == 1
    assert await recovery.find(client) == names[:2]
    for name in names[:2]:
        await AsyncQueue(name, client=client).delete()
    db.delete("apressure:__pressure__:ours", "apressure:__pressure__:record:op:inflight", "__pressure__other:bound")


async def test_without_scripts_there_is_no_recovery(open_queue: Opener) -> None:
    queue = await open_queue(scripting=False)
    for call in (recovery.examine, recovery.repair, recovery.watch):
        with pytest.raises(ScriptingRefusedError, match="recovery needs scripts"):
            await call(queue)


async def test_of_a_queue_that_never_was_there_is_nothing_to_say(client: Client) -> None:
    queue = AsyncQueue("jobs", client=client)
    assert await recovery.examine(queue) == Report("jobs", exists=False, findings=())
    assert (await recovery.repair(queue)).done == ()


async def test_a_server_without_memory_can_be_mended(
    make_server: Callable[..., EmbeddedServer], server: EmbeddedServer
) -> None:
    own = make_server("redis" if "redis" in server.software.lower() else "valkey")
    with connect(own.url) as db:
        async with AsyncQueue("jobs", url=own.url) as queue:
            for damage in (
                lambda: (expire(db, "consumer"), in_flight(db)),
                lambda: (db.set(key(":stats:consumed_bytes"), "x"), db.delete(key(":not_full"))),
            ):
                await queue.create()
                damage()
                db.config_set("maxmemory", 1)
                with pytest.raises(redis.ResponseError, match="maxmemory"):
                    db.set("x", 1)
                assert (await recovery.repair(queue, patience=QUICK)).report.healthy
                db.config_set("maxmemory", 0)
                await queue.delete()


async def test_a_fake_server_can_be_examined() -> None:
    fake = fakeredis.FakeAsyncRedis()
    async with AsyncQueue("jobs", redis=fake) as queue:
        await queue.create(bound=2)
        assert (await recovery.examine(queue)).findings == ()
        await fake.lpush(key(":producer_free"), 1)
        await fake.set(key(":stats:produced_bytes"), "x")
        repaired = await recovery.repair(queue)
        assert [action.kind for action in repaired.done] == ["broken_statistic", "doubled_token"]
        assert repaired.report.healthy
        assert await recovery.find(queue.client) == ["jobs"]


async def test_the_queues_of_a_cluster_are_found_and_mended_wherever_they_are() -> None:
    with cluster("valkey", nodes=2) as nodes:
        host, port = nodes.addresses[0]
        with redis.RedisCluster(host=host, port=port) as db:
            async with Client(nodes.url) as client:
                names = ["{a}", "{b}", "{c}", "{d}"]
                for name in names:
                    await AsyncQueue(name, client=client).create(2)
                    db.lpush(f"__pressure__:{name}:producer_free", 1)
                db.lpush("__pressure__:of somebody else", 1)  # its keys would be in several slots
                assert await recovery.find(client) == ["of somebody else", *names]
                repaired = await recovery.repair(AsyncQueue("{a}", client=client))
                assert [action.kind for action in repaired.done] == ["doubled_token"]
                healed: asyncio.Queue[recovery.Repair] = asyncio.Queue()
                watching = asyncio.create_task(recovery.watch(client, 0.05, healed.put_nowait))
                assert [(await in_time(healed.get())).name for _ in range(3)] == names[1:]
                watching.cancel()
                await asyncio.wait((watching,))
                with pytest.raises(ValueError, match="braces"):
                    await recovery.examine(AsyncQueue("of somebody else", client=client))
