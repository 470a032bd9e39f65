"""Foreign entries in apressure's own keys: no message is lost, nothing stops, and the doctor repairs them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import redis

from apressure import AsyncQueue, Client, LeaseLostError, ServerError, recovery
from tests.integration.commands import Commands
from tests.integration.conftest import Opener, cancelled, eventually, everything, in_time
from tests.integration.sickness import OURS, QUICK, Damage, expire, key, kinds, lease, usable
from tests.reference import ReferenceQueue

ENTRIES = ["garbage", "x:y", ":", "", "1", "inf:x", "-1:x", "9" * 40 + ":x"]
NUMBERS = ["garbage", "", "-1", "1.5", "nan", "inf", "1e300", "9" * 400, "0x10"]


def now(db: redis.Redis) -> int:
    seconds, microseconds = db.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def last_for(db: redis.Redis, role: str, left: int, **fields: Any) -> None:
    """Somebody has the role, under a lease that ends in so many milliseconds."""
    db.delete(key(f":{role}_free"))
    lease(db, role, now(db) + left)
    db.hset(f"{OURS}{role}_lease", mapping={"duration": 200, **fields})


# Entries of lists and hashes


@pytest.mark.parametrize("entry", ENTRIES)
async def test_a_malformed_redelivery_costs_no_message(open_queue: Opener, db: redis.Redis, entry: str) -> None:
    queue = await open_queue(max_attempts=2)
    await queue.put_many([b"1", b"2"])
    await (await queue.receive()).nack()
    db.rpush(f"{OURS}redelivered", entry)
    async with queue.consumer(ack="manual") as consumer:
        first = await in_time(anext(consumer))
        second = await in_time(anext(consumer))
        assert [(one.item, one.attempts) for one in (first, second)] == [(b"1", 2), (b"2", 1)]
        await first.ack()
        await second.ack()
    assert not db.exists(f"{OURS}redelivered")


async def test_dead_letters_go_back_past_a_malformed_redelivery(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    dead = await open_queue("jobs:dead")
    await dead.put(b"1")
    db.rpush("apressure:__pressure__:jobs:dead:redelivered", "garbage")
    assert await queue.requeue(timeout=0) == 1
    assert await queue.get(timeout=0) == b"1"


async def test_dead_letters_stay_where_the_notes_of_redeliveries_have_the_wrong_type(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue = await open_queue()
    dead = await open_queue("jobs:dead")
    await dead.put(b"1")
    db.set("apressure:__pressure__:jobs:dead:redelivered", "x")
    with pytest.raises(ServerError, match="WRONGTYPE"):
        await queue.requeue(timeout=0)
    assert await dead.get(timeout=0) == b"1"


@pytest.mark.parametrize("damage", [{"5": "garbage"}, {"5": ":"}, {"5": ""}, {"x": "2:x", "nan": "1:y"}], ids=str)
async def test_malformed_entries_of_what_is_in_flight_come_back_as_messages(
    open_queue: Opener, db: redis.Redis, damage: dict[str, str]
) -> None:
    queue = await open_queue()
    await queue.put(b"later")
    expire(db, "consumer")
    db.hset(f"{OURS}apart", mapping=damage)
    messages = {value.rpartition(":")[2] if value[:1].isdigit() else value for value in damage.values()}
    got = await queue.get_many(5, timeout=0)
    assert {message.decode() for message in got[:-1]} == messages
    assert got[-1] == b"later"
    assert not db.exists(f"{OURS}apart")


async def test_notes_of_the_wrong_type_double_no_message(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    expire(db, "consumer")
    db.hset(f"{OURS}apart", mapping={"1": "2:a"})
    db.set(f"{OURS}redelivered", "x")
    for _ in range(2):
        with pytest.raises(ServerError, match="WRONGTYPE"):
            await queue.put(b"b")
    assert db.llen(key("")) == 0
    assert (await recovery.repair(queue, patience=QUICK)).report.healthy
    assert await queue.get_many(5, timeout=0) == [b"a"]
    db.delete(*db.keys(f"{OURS}redelivered.damaged-*"))


async def test_a_delete_with_a_key_of_the_wrong_type_leaves_the_queue_whole(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue = await open_queue()
    db.set(key(":closed"), "x")
    with pytest.raises(ServerError, match="WRONGTYPE"):
        await queue.delete(timeout=0)
    assert await queue.exists()
    db.delete(key(":closed"))


# Numbers of leases and claims


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_a_lease_whose_deadline_cannot_be_read_has_ended(
    open_queue: Opener, db: redis.Redis, role: str, number: str
) -> None:
    queue = await open_queue(bound=2)
    for heal in (lambda: queue.put_nowait(b"1"), lambda: recovery.repair(queue, patience=QUICK)):
        last_for(db, role, 10**6, deadline=number, since=number, duration=number)
        assert (await queue.statistics()).length == 0
        assert kinds(await recovery.examine(queue, QUICK)) == ["expired_lease"]
        await heal()
        assert not db.exists(f"{OURS}{role}_lease")
        assert (await recovery.examine(queue, QUICK)).healthy
        await usable(queue, db)


async def test_a_lease_without_a_deadline_has_ended(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    expire(db, "consumer")
    db.hdel(f"{OURS}consumer_lease", "deadline")
    assert kinds(await recovery.examine(queue, QUICK)) == ["expired_lease"]
    await queue.put(b"1")
    assert await queue.get(timeout=0) == b"1"


@pytest.mark.parametrize("number", ["garbage", "", str(10**12), "nan"])
async def test_a_consumer_whose_numbers_were_overwritten_loses_its_lease_and_no_message(
    open_queue: Opener, db: redis.Redis, number: str
) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    with pytest.raises(LeaseLostError):
        async with queue.consumer(lease=0.3, prefetch=1) as consumer:
            assert await anext(consumer) == b"1"
            db.hset(f"{OURS}consumer_lease", "next", number)
            await in_time(anext(consumer))
    assert await in_time(queue.get_many(5)) == [b"1", b"2"]


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_claim_whose_time_cannot_be_read_ends(open_queue: Opener, db: redis.Redis, number: str) -> None:
    queue = await open_queue()
    db.rpoplpush(key(":consumer_free"), f"{OURS}consumer_claim")
    db.set(f"{OURS}consumer_claim_until", number)
    await queue.put(b"1")
    assert now(db) < int(db.get(f"{OURS}consumer_claim_until")) <= now(db) + 5000
    db.set(f"{OURS}consumer_claim_until", 1)
    assert await queue.get(timeout=0) == b"1"


async def test_times_that_nobody_can_show_are_left_out(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    last_for(db, "consumer", 200, deadline="9" * 30, since="x")
    consumer = (await queue.statistics()).consumer
    assert (consumer.state, consumer.holder, consumer.since, consumer.expires) == ("leased", "victim", None, None)


# A server's clock that was put back


@pytest.mark.parametrize("step", ["put", "get", "repair", "watch"])
@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_a_lease_lasts_no_longer_than_it_was_given_for(
    open_queue: Opener, db: redis.Redis, role: str, step: str
) -> None:
    queue = await open_queue()
    last_for(db, role, 3_600_000, duration=600_000)
    if step in ("put", "get"):
        with pytest.raises((asyncio.QueueEmpty, TimeoutError)):
            await queue.get(timeout=0)
            await queue.put(b"1", timeout=0)
    elif step == "repair":
        assert "overlong_lease" in kinds(await recovery.examine(queue, QUICK))
        (action,) = (await recovery.repair(queue, patience=QUICK)).done
        assert (action.kind, action.holder) == ("overlong_lease", "victim")
        assert kinds(await recovery.examine(queue, QUICK)) == ["leased"]
    else:
        healed: asyncio.Queue[recovery.Repair] = asyncio.Queue()
        watching = asyncio.create_task(recovery.watch(queue, 0.02, healed.put_nowait))
        assert [action.kind for action in (await in_time(healed.get())).done] == ["overlong_lease"]
        await cancelled(watching)
    left = int(db.hget(f"{OURS}{role}_lease", "deadline")) - now(db)
    assert left <= 600_000
    assert left > 300_000  # its owner may live, and had no time to renew it
    db.delete(f"{OURS}{role}_lease")
    db.lpush(key(f":{role}_free"), 1)


async def test_what_a_dead_consumer_had_comes_back_although_the_clock_was_put_back(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue = await open_queue()
    last_for(db, "consumer", 3_600_000)
    db.lpush(f"{OURS}inflight", "first", "second")
    assert await in_time(queue.get_many(5)) == [b"first", b"second"]


async def test_a_live_consumer_outlives_a_clock_that_was_put_back(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    async with queue.consumer(prefetch=1) as consumer:
        assert await anext(consumer) == b"1"
        db.hset(f"{OURS}consumer_lease", "deadline", now(db) + 3_600_000)
        await queue.put(b"3")  # heals
        assert await anext(consumer) == b"2"
        assert int(db.hget(f"{OURS}consumer_lease", "deadline")) <= now(db) + 30_000
        assert await anext(consumer) == b"3"


async def test_a_lease_of_an_older_version_lasts_a_day_at_most(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    last_for(db, "producer", 50_000)
    db.hdel(f"{OURS}producer_lease", "duration")
    assert kinds(await recovery.examine(queue, QUICK)) == ["leased"]
    db.hset(f"{OURS}producer_lease", "deadline", now(db) + 3 * 86_400_000)
    (action,) = (await recovery.repair(queue, patience=QUICK)).done
    assert action.kind == "overlong_lease"
    assert int(db.hget(f"{OURS}producer_lease", "deadline")) <= now(db) + 86_400_000
    db.delete(f"{OURS}producer_lease")
    db.lpush(key(":producer_free"), 1)


async def test_a_claim_lasts_no_longer_than_it_may(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    db.rpoplpush(key(":producer_free"), f"{OURS}producer_claim")
    db.set(f"{OURS}producer_claim_until", now(db) + 3_600_000)
    with pytest.raises(asyncio.QueueEmpty):
        await queue.get(timeout=0)
    assert int(db.get(f"{OURS}producer_claim_until")) <= now(db) + 5000
    db.set(f"{OURS}producer_claim_until", 1)


# The doctor


OUR_KEYS: dict[str, Damage] = {
    "lease": lambda db: db.set(f"{OURS}consumer_lease", 1),
    "claim": lambda db: db.hset(f"{OURS}producer_claim", "x", 1),
    "claim time": lambda db: db.lpush(f"{OURS}producer_claim_until", 1),
    "items in flight": lambda db: db.sadd(f"{OURS}inflight", 1),
    "redelivered": lambda db: db.set(f"{OURS}redelivered", 1),
}


@pytest.mark.parametrize("name", OUR_KEYS)
async def test_a_key_of_ours_that_has_the_wrong_type_is_put_out_of_the_way(
    open_queue: Opener, db: redis.Redis, name: str
) -> None:
    queue = await open_queue()
    OUR_KEYS[name](db)
    before = everything(db)
    (finding,) = (await recovery.examine(queue, QUICK)).findings
    assert (finding.kind, finding.repair) == ("wrong_type", "automatic")
    repaired = await recovery.repair(queue, patience=QUICK)
    assert [action.kind for action in repaired.done] == ["wrong_type"]
    assert repaired.report.healthy
    (aside,) = db.keys(f"{OURS}*.damaged-*")
    assert aside.decode() in repaired.done[0].text
    assert everything(db)[aside] in before.values()
    await usable(queue, db)
    db.delete(aside)


async def test_the_doctor_repairs_entries_that_are_not_ours(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    await (await queue.receive()).nack()
    db.rpush(f"{OURS}redelivered", "garbage", "x")
    async with queue.consumer(ack="manual", prefetch=1) as consumer:
        delivery = await anext(consumer)
        db.rpush(f"{OURS}redelivered", "garbage", "x")
        db.hset(f"{OURS}apart", "what", "is this")
        assert kinds(await recovery.examine(queue, QUICK)) == ["leased", "foreign_entry", "foreign_entry"]
        repaired = await recovery.repair(queue, patience=QUICK)
        assert [action.kind for action in repaired.done] == ["foreign_entry"] * 2
        assert repaired.report.healthy
        await delivery.ack()
    assert await queue.get_many(5, timeout=0) == [b"is this", b"2"]


async def test_a_dead_clients_lease_is_ended_with_its_name(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(bound=2)
    for role in ("producer", "consumer"):
        last_for(db, role, 80_000_000, duration=86_400_000)
    db.lpush(f"{OURS}inflight", "first", "second")
    assert (await recovery.repair(queue, "somebody", QUICK)).done == ()
    repaired = await recovery.repair(queue, "victim", QUICK)
    assert [(action.kind, action.role, action.holder) for action in repaired.done][:2] == [
        ("leased", "producer", "victim"), ("leased", "consumer", "victim"),
    ]  # fmt: skip
    assert "put 2 messages back" in repaired.done[1].text
    assert await queue.get_many(5, timeout=0) == [b"first", b"second"]
    assert (await recovery.repair(queue, "victim", QUICK)).done == ()
    await usable(queue, db)


async def test_a_client_that_lives_is_told_that_its_lease_was_ended(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(client_id="alive")
    other = await open_queue(create=False)
    await queue.put_many([b"1", b"2"])
    with pytest.raises(LeaseLostError):
        async with queue.consumer(prefetch=1) as consumer:
            assert await anext(consumer) == b"1"
            await eventually(lambda: db.hget(f"{OURS}consumer_lease", "uid") == b"alive")
            (action,) = (await recovery.repair(other, "alive", QUICK)).done
            assert action.kind == "leased"
            await in_time(anext(consumer))
    assert await other.get_many(5, timeout=0) == [b"1", b"2"]


async def test_watching_all_queues_goes_on_beside_a_damaged_one(client: Client, db: redis.Redis) -> None:
    names = ["damaged", "well"]
    for name in names:
        await AsyncQueue(name, client=client).create()
    db.hset("apressure:__pressure__:damaged:consumer_lease", mapping={"deadline": "x", "since": "x", "uid": "x"})
    db.sadd("apressure:__pressure__:damaged:redelivered", "x")
    healed: asyncio.Queue[recovery.Repair] = asyncio.Queue()
    watching = asyncio.create_task(recovery.watch(client, 0.02, healed.put_nowait))
    db.lpush("__pressure__:well:consumer_free", 1)
    assert (await in_time(healed.get())).name == "well"
    await cancelled(watching)
    db.delete(*db.keys("apressure:__pressure__:damaged:*"))
    for name in names:
        await AsyncQueue(name, client=client).delete()


# The command line


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_odd_keys_hide_no_queue(cli: Commands, db: redis.Redis) -> None:
    cli.create("well", 3)
    ReferenceQueue(db, "damaged").create(5)
    db.hset("apressure:__pressure__:damaged:consumer_lease", mapping={"deadline": "9" * 30, "since": "x", "uid": "u"})
    odd = ["__pressure__::bound", f"__pressure__:{'x' * 5000}:bound", b"__pressure__:\xff\n:bound"]
    for one in odd:
        db.set(one, 1)
    lines = [["damaged", "0", "5", "open"], ["well", "0", "3", "open"], ["\\udcff\\n", "0", "1", "open"]]
    assert [line.split("\t") for line in cli("ls").stdout.decode().splitlines()] == lines
    assert [one["name"] for one in cli.json("ls")] == ["damaged", "well", "\udcff\n"]
    told = [json.loads(line) for line in cli("doctor", "--all", "--json", code=1).stdout.splitlines()]
    assert [one["name"] for one in told] == ["damaged", "well", "\udcff\n"]
    assert b"consumer_holder\tu" in cli("stat", "damaged").stdout
    db.flushdb()


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_a_name_that_nobody_has_is_told_once(cli: Commands, db: redis.Redis) -> None:
    cli.create("jobs")
    cli.create("other")
    last_for(db, "consumer", 80_000_000, duration=86_400_000)
    done = cli("doctor", "--all", "--repair", "--holder", "nobody", code=1)
    assert done.stderr.decode().startswith("apressure: gave back no role of 'nobody': ")
    assert done.stderr.count(b"\n") == 1
    done = cli("doctor", "--all", "--repair", "--holder", "victim")
    assert (b"ended the lease of 'victim' on the consumer role" in done.stdout, done.stderr) == (True, b"")
    cli.delete("jobs")
    cli.delete("other")
