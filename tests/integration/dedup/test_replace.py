"""What `put(dedup_id=, replace=True)` leaves on the server, and what it does where something is wrong.

See `DedupUntilDoneContract`, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    DuplicateEventError,
    DuplicateMessageError,
    Durability,
    DurabilityError,
    EventQueue,
    QueueEmptyError,
    QueueFullError,
    Retry,
    ServerError,
    TaskQueue,
    serve,
    sync,
)
from apressure.core.dedup import Dedup
from apressure.core.putting import Putting
from apressure.embedded import EmbeddedServer
from tests.integration.commands import Commands
from tests.integration.conftest import fails, in_time
from tests.integration.dedup.test_dedup import KEYS

Kind = Any


@pytest.fixture(params=[EventQueue, TaskQueue], ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


async def test_nothing_is_left_of_what_was_replaced(kind: Kind, url: str, db: redis.Redis) -> None:
    async with kind("jobs", url=url, codec="text") as queue:
        await queue.create()
        for _ in range(50):
            await queue.put("x" * 100, dedup_id="a", replace=True, expires=60.0)
            await queue.put("y" * 100, dedup_id="b", replace=True, delay=60.0)
        sizes = {key: db.hlen(key) for key in db.keys("*") if db.type(key) == b"hash"}
        assert sizes.pop(KEYS[kind.__name__].encode()) == 2
        assert max(sizes.values()) < 10
        assert (await queue.qsize(), (await queue.statistics()).delayed) == (1, 1)
        assert await queue.get() == "x" * 100
        assert await queue.purge() == 1
        await queue.delete()


async def test_it_keeps_its_place_in_the_line_of_its_key(kind: Kind, url: str) -> None:
    async with kind("jobs", url=url, codec="text") as queue:
        await queue.create()
        for name in "abc":
            await queue.put(f"{name}1", key="one", dedup_id=name, replace=True)
        await queue.put("d1", key="two")
        delivery = await in_time(queue.receive())  # the others of its key are parked
        other = await in_time(queue.receive())
        assert (delivery.item, other.item) == ("a1", "d1")
        await queue.put("b2", key="one", dedup_id="b", replace=True)
        await queue.put("a2", key="one", dedup_id="a", replace=True)  # behind, since the first one is in flight
        await delivery.ack()
        await other.ack()
        assert [await in_time(queue.get()) for _ in range(3)] == ["b2", "c1", "a2"]
        await queue.delete()


async def test_a_retry_that_was_replaced_keeps_no_other_of_its_key(kind: Kind, url: str) -> None:
    async with kind("jobs", url=url, codec="text") as queue:
        await queue.create()
        await queue.put("a1", key="one", dedup_id="a", replace=True)
        await queue.put("b1", key="one")
        waiting = asyncio.ensure_future(queue.receive_many(1))
        delivery = (await in_time(waiting))[0]
        await delivery.nack(delay=3600.0)
        following = asyncio.ensure_future(queue.receive())
        await asyncio.sleep(0.05)
        assert not following.done()  # the retry comes first
        await queue.put("a2", key="one", dedup_id="a", replace=True, delay=0.1)
        following = await in_time(following)
        assert following.item == "b1"
        await fails(QueueEmptyError, queue.receive(timeout=0.15))
        await following.ack()
        assert await in_time(queue.get()) == "a2"
        await queue.delete()


async def test_while_an_okq_acknowledges_the_older_one(url: str, db: redis.Redis) -> None:
    """It removes the claim first, then the contents and the lock."""
    async with EventQueue("jobs", url=url) as queue:
        await queue.create()
        event_id = await queue.put(b"1", dedup_id="a")
        await queue.receive()
        assert db.lrem("queue:{jobs}:claimed", 1, event_id) == 1
        assert await queue.put(b"2", dedup_id="a", replace=True) != event_id
        db.hdel("queue:{jobs}:items", event_id)
        db.delete(f"queue:{{jobs}}:lock:{event_id}")
        assert await in_time(queue.get()) == b"2"
        await queue.delete()


async def test_many_in_flight_and_claims_of_an_okq(url: str, db: redis.Redis) -> None:
    async with EventQueue("jobs", url=url) as queue:
        await queue.create()
        ids = [await queue.put(b"%d" % number, dedup_id=f"{number}") for number in range(6)]
        deliveries = await queue.receive_many(2)
        db.rpoplpush("queue:{jobs}", "queue:{jobs}:claimed")  # as okq claims one, which no index has yet
        replaced = [await queue.put(b"new", dedup_id=f"{number}", replace=True) for number in range(6)]
        assert [one in ids for one in replaced] == [False, False, False, True, True, True]
        for delivery in deliveries:
            await delivery.ack()
        db.flushdb()


async def test_a_retry_in_its_pause_is_replaced(kind: Kind, url: str) -> None:
    seen: list[tuple[str, int]] = []

    async def handle(delivery: Any) -> None:
        seen.append((delivery.item, delivery.attempts))
        if delivery.item == "old":
            raise Retry(after=3600.0)
        await queue.close()

    async with kind("jobs", url=url, codec="text", max_attempts=3) as queue:
        await queue.create()
        await queue.put("old", dedup_id="a")
        service = asyncio.create_task(serve(handle, queue, deliveries=True, signals=()))
        while (await queue.statistics()).delayed == 0:
            await asyncio.sleep(0.01)
        await queue.put("new", dedup_id="a", replace=True)
        await in_time(service)
        assert seen == [("old", 1), ("new", 1)]
        await queue.delete()


async def test_the_task_says_what_it_is_now(url: str, db: redis.Redis) -> None:
    async with TaskQueue("jobs", url=url, codec="text", max_attempts=5) as queue:
        task_id = await queue.put("1", dedup_id="a", expires=60.0)
        delivery = await in_time(queue.receive())
        await delivery.nack(ValueError("no"))
        assert await queue.put("2", dedup_id="a", replace=True) == task_id
        task = db.hgetall(f"blueque_task_{task_id}")
        assert (task[b"parameters"], task[b"status"]) == (b"2", b"pending")
        assert not {b"attempts", b"failure", b"failed_attempt", b"expires"} & task.keys()
        await queue.purge()
        task_id = await queue.put("3", dedup_id="a", delay=60.0)
        before = float(db.hget(f"blueque_task_{task_id}", "eta"))
        await queue.put("4", dedup_id="a", delay=120.0, replace=True, expires=600.0)
        task = db.hgetall(f"blueque_task_{task_id}")
        assert 55 < float(task[b"eta"]) - before < 65 + 60
        assert db.zscore("blueque_scheduled_tasks_jobs", task_id) == pytest.approx(float(task[b"eta"]))
        assert b"expires" in task
        await queue.delete()


async def test_several_in_one_step(kind: Kind, url: str) -> None:
    async with kind("jobs", url=url, codec="text") as queue:
        await queue.create(bound=3)
        await queue.put("a0", dedup_id="a")
        puts = [
            queue.put("b1", dedup_id="b", replace=True), queue.put("a1", dedup_id="a", replace=True),
            queue.put("b2", dedup_id="b", replace=True, delay=60.0), queue.put("b3", dedup_id="b"),
            queue.put("c1", dedup_id="c", delay=60.0), queue.put("c2", dedup_id="c", replace=True),
            queue.put_nowait("d1", dedup_id="d", replace=True),
            queue.put("a2", dedup_id="a", replace=True, timeout=0.1),
        ]  # fmt: skip
        outcomes = await in_time(asyncio.gather(*puts, return_exceptions=True))
        assert [type(one) for one in outcomes[:7]] == [
            str, str, str, DuplicateMessageError, str, str, QueueFullError,
        ]  # fmt: skip
        assert isinstance(outcomes[7], str | QueueFullError)
        assert outcomes[0] == outcomes[2]
        assert outcomes[4] == outcomes[5]
        last = "a1" if isinstance(outcomes[7], QueueFullError) else "a2"
        assert await queue.get_many(9) == [last, "b2", "c2"]
        await queue.delete()


async def test_ids_of_any_bytes(url: str) -> None:
    async with EventQueue("jobs", url=url) as queue:
        await queue.create()
        for event_id in ("a b:3:x", "ä\n\0:", "1:'\udcff", "=", "!"):
            await queue.put(b"1", id=event_id, dedup_id=event_id)
            assert await queue.put(b"2", id="other", dedup_id=event_id, replace=True) == event_id
            await queue.put(b"3", id="other", delay=60.0)  # the id of what has replaced it was not used
            assert await queue.get() == b"2"
            await queue.purge()
        await queue.delete()


async def test_another_event_with_the_id_of_the_newer_one(url: str) -> None:
    async with EventQueue("jobs", url=url) as queue:
        await queue.create()
        await queue.put(b"0", id="taken")
        await queue.put(b"1", id="one", dedup_id="a")
        assert await queue.put(b"2", id="taken", dedup_id="a", replace=True) == "one"  # its own id does not matter
        delivery = await in_time(queue.receive())
        second = await in_time(queue.receive())
        assert (delivery.item, second.item) == (b"0", b"2")
        await fails(DuplicateEventError, queue.put(b"3", id="taken", dedup_id="a", replace=True))
        await delivery.ack()
        await second.ack()
        await queue.delete()


async def test_a_step_that_is_sent_again_replaces_nothing_newer(kind: Kind, url: str, db: redis.Redis) -> None:
    """The record of the step says what it has done, and the token of the dedup id says whose put was the latest."""
    async with kind("jobs", url=url, codec="text") as queue:
        await queue.create()
        first = await queue.put("1", dedup_id="a")
        await queue.put("2", dedup_id="a", replace=True)
        record = db.hget(KEYS[kind.__name__], "a")
        assert record.endswith(b"::" + first.encode())
        token = record.split(b":")[0]
        driver = queue._driver if kind is EventQueue else queue
        lane = driver._once
        new = (b"own", b"again", b"0", Dedup(b"a", token, None, replace=True))
        assert await lane.run(Putting([new]), None, False) == first.encode()
        assert await queue.get() == "2"
        await queue.delete()


async def test_a_server_out_of_memory_replaces_nothing(kind: Kind, own: EmbeddedServer) -> None:
    with redis.Redis.from_url(own.url) as there:
        async with kind("jobs", url=own.url, codec="text") as queue:
            await queue.create()
            await queue.put("1", dedup_id="a")
            await queue.put("1", dedup_id="b", delay=60.0)
            before = there.hgetall(KEYS[kind.__name__])
            there.config_set("maxmemory", 1)
            for dedup_id in "ab":
                await fails(ServerError, queue.put("2", dedup_id=dedup_id, replace=True), "OOM|memory")
            there.config_set("maxmemory", 0)
            assert there.hgetall(KEYS[kind.__name__]) == before
            assert (await queue.get(), await queue.purge()) == ("1", 1)
            await queue.delete()


async def test_what_is_not_confirmed_is_replaced(kind: Kind, url: str) -> None:
    async with kind("jobs", url=url, codec="text") as queue:
        await queue.create()
        await queue.put("1", dedup_id="a")
        async with kind("jobs", url=url, codec="text", durability=Durability(1, timeout=0.01)) as other:
            await fails(DurabilityError, other.put("2", dedup_id="a", replace=True))
        assert await queue.get() == "2"
        await queue.delete()


async def test_a_damaged_record_loses_nothing(kind: Kind, url: str, db: redis.Redis) -> None:
    async with kind("jobs", url=url, codec="text") as queue:
        await queue.create()
        await queue.put("1")
        for damaged in ("ab::", "ab::nobody", "what?", "ab:99999999999999:x", ":::"):
            db.hset(KEYS[kind.__name__], "a", damaged)
            with contextlib.suppress(DuplicateMessageError):
                await queue.put("2", dedup_id="a", replace=True)
        items = await queue.get_many(20)
        assert items[0] == "1"
        assert set(items[1:]) == {"2"}
        await queue.delete()


async def test_messages_without_ids_cannot_be_replaced(url: str) -> None:
    async with AsyncQueue("jobs", url=url) as queue:
        await queue.create()
        await fails(ValueError, queue.put(b"1", dedup_id="a", dedup_window=60.0, replace=True), "have no ids")
        assert await queue.qsize() == 0
        await queue.delete()


def test_without_asyncio(url: str) -> None:
    with sync.Queue(EventQueue("jobs", url=url)) as queue:
        queue.create()
        first = queue.put(b"1", dedup_id="a")
        assert queue.put(b"2", dedup_id="a", replace=True) == first
        assert queue.get() == b"2"
        queue.delete()


def test_the_command(cli: Commands) -> None:
    first = cli("put", "tasks:jobs", "x", "--dedup-id", "a", "--ids").stdout
    assert cli("put", "tasks:jobs", "y", "--dedup-id", "a", "--replace", "--ids").stdout == first
    assert cli("get", "tasks:jobs", "-n", "1").stdout == b"y\n"
    for wrong in (("x", "--replace"), ("x", "--dedup-id", "a", "--dedup-window", "60", "--replace")):
        cli("put", "tasks:jobs", *wrong, code=2)
    cli("create", "jobs")
    assert b"have no ids" in cli("put", "jobs", "x", "--dedup-id", "a", "--replace", code=2).stderr
    for address in ("tasks:jobs", "jobs"):
        cli("delete", address)
