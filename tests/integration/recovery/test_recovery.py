"""The faults that the doctor finds, and its repairs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import fakeredis
import pytest
import redis

from apressure import AsyncQueue, Client, ScriptingRefusedError, recovery
from apressure.embedded import EmbeddedServer
from apressure.pressure.doctor.recovery import Report
from tests.integration.conftest import Opener, cancelled, eventually, everything, in_time
from tests.integration.sickness import (
    OURS,
    QUICK,
    Damage,
    claim,
    expire,
    fill,
    in_flight,
    key,
    kinds,
    tokens,
    usable,
)
from tests.reference import ReferenceQueue, connect
from tests.topologies import cluster

AUTOMATIC: dict[str, tuple[Damage, str, str, str]] = {
    # The damage; the finding, with a word that must be in its text; a word of the repair's text.
    "no permit": (
        lambda db: (db.delete(key(":not_full")), db.set(key(":producer"), "p")), "lost_permit", "the bound is 2",
        "restored",
    ),
    "permits": (lambda db: db.lpush(key(":not_full"), 1, 1), "extra_permits", "There are 3", "removed 2"),
    "permit when full": (fill, "extra_permits", "instead of none", "removed 1"),
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
        lambda db: expire(db, "producer"), "expired_lease", "'victim' on the producer role",
        "of 'victim', whose lease had expired",
    ),
    "expired consumer": (
        lambda db: (expire(db, "consumer"), in_flight(db)), "expired_lease", "2 messages are in flight",
        "put 2 messages back",
    ),
    "orphaned items": (in_flight, "orphaned_items", "2 messages are in flight", "put 2 messages back"),
    "claim of a dead client": (
        lambda db: claim(db, "consumer"), "abandoned_claim", "consumer role went to", "gave back the consumer role",
    ),
    "statistic of words": (
        lambda db: db.set(key(":stats:produced_bytes"), "many" * 100), "broken_statistic", "every put fails",
        "manymany",
    ),
    "statistic too large": (
        lambda db: db.set(key(":stats:consumed_messages"), "9" * 19), "broken_statistic", "every get fails",
        "it was '9999",
    ),
    "statistic with a zero in front": (
        lambda db: db.set(key(":stats:consumed_bytes"), "007"), "broken_statistic", "'007'", "to 0; it was '007'",
    ),
    "statistic of another type": (
        lambda db: db.sadd(key(":stats:produced_messages"), "x"), "broken_statistic", "but a set", "it was a set",
    ),
    "created by halves, bound only": (
        lambda db: db.delete(key(":producer_free"), key(":consumer_free"), key(":not_full")),
        "half_created", "it was never used", "added the missing tokens",
    ),
    "created by halves, one token": (
        lambda db: db.delete(key(":consumer_free"), key(":not_full")), "half_created", "died in between", "added the",
    ),
    "created by halves, two tokens": (
        lambda db: db.delete(key(":not_full")), "half_created", "lacks tokens", "added the",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AUTOMATIC)
async def test_what_needs_no_human_is_found_and_repaired(open_queue: Opener, db: redis.Redis, name: str) -> None:
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


@pytest.mark.parametrize("server", ["valkey"], indirect=True)  # it takes five seconds
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
    "bound of another type": (
        lambda db: (db.delete(key(":bound")), db.lpush(key(":bound"), 5)), "broken_bound", "but a list",
    ),
    "messages that are a string": (
        lambda db: db.set(key(""), "x"), "wrong_type", "is a string, where a queue has a list",
    ),
    "token that is a hash": (
        lambda db: (db.delete(key(":not_full")), db.hset(key(":not_full"), "a", 1)), "wrong_type", "is a hash",
    ),
    "holder that is a list": (lambda db: db.lpush(key(":producer"), 1), "wrong_type", "is a list"),
    "another queue on a key": (
        lambda db: ReferenceQueue(db, "jobs:closed").create(), "collision", "'__pressure__:jobs:closed'",
    ),
}  # fmt: skip


@pytest.mark.leaves_keys
@pytest.mark.parametrize("name", BY_HAND)
async def test_what_only_a_human_can_repair_is_told_and_left(url: str, db: redis.Redis, name: str) -> None:
    damage, kind, word = BY_HAND[name]
    ReferenceQueue(db, "jobs").create(2)
    damage(db)
    in_flight(db) if not db.exists(f"{OURS}inflight") else None  # not even a fault that it repairs otherwise
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


async def test_beside_a_key_of_the_wrong_type_statistics_can_be_repaired(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    db.set(key(":closed"), "x")
    db.set(key(":stats:consumed_bytes"), "x")
    repaired = await recovery.repair(queue, patience=QUICK)
    assert [action.kind for action in repaired.done] == ["broken_statistic"]
    assert kinds(repaired.report) == ["wrong_type"]
    db.delete(key(":closed"))
    await usable(queue, db)


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
    await cancelled(watching)
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
    db.lpush("apressure:__pressure__:only ours:inflight", 1)
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


async def test_a_server_without_memory_can_be_repaired(
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


async def test_the_queues_of_a_cluster_are_found_and_repaired_wherever_they_are() -> None:
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
