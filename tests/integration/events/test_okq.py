"""An okq works on the same queues, one command at a time. It does not know our keys, and may die between commands."""

from __future__ import annotations

import asyncio
import random

import pytest
import redis

from apressure import Client, DuplicateEventError, EventQueue, LeaseLostError
from apressure.events import consumer
from apressure.events.engine.steps import EventSteps, active_queues
from tests import event_steps
from tests.integration.events.conftest import Open, blocked, consistent, eventually, in_time
from tests.okq import DuplicateEvent, Okq


class Died(Exception):
    """The okq dies here."""


def dies_at(command: str) -> object:
    def hook(name: str) -> None:
        if name == command:
            raise Died(name)

    return hook


async def test_what_one_puts_the_other_gets(queue: EventQueue[bytes], okq: Okq, db: redis.Redis) -> None:
    assert await queue.put(b"\x00\xff one", id="a") == "a"
    okq.push("jobs", "b", b"two")
    okq.push("jobs", "c", b"first", front=True)
    assert okq.status("jobs") == (3, 0, 0)
    with pytest.raises(DuplicateEvent):
        okq.push("jobs", "a", b"again")
    with pytest.raises(DuplicateEventError) as raised:
        await queue.put(b"again", id="b")
    assert (raised.value.id, raised.value.name) == ("b", "jobs")
    assert okq.pop("jobs") == ("c", b"first")
    delivery = await queue.receive()
    assert (delivery.id, delivery.raw) == ("a", b"\x00\xff one")
    assert okq.status("jobs") == (3, 2, 0)
    assert db.pttl(Okq.key("jobs", "lock", "a")) > 0  # an okq respects the claim
    assert okq.restore("jobs") == 0
    await delivery.ack()
    assert okq.ack("jobs", "c") == 1
    assert okq.pop("jobs", 0) == ("b", b"two")
    assert okq.status("jobs") == (0, 0, 0)
    assert not await queue.exists()


async def test_its_push_wakes_a_waiting_client(
    queue: EventQueue[bytes], okq: Okq, db: redis.Redis, long_slices: None
) -> None:
    receiving = asyncio.create_task(queue.receive())
    await blocked(db)
    okq.push("jobs", "a", b"1")
    await (await in_time(receiving)).ack()


async def test_our_pushes_are_published(queue: EventQueue[bytes], db: redis.Redis) -> None:
    with db.pubsub(ignore_subscribe_messages=True) as listening:
        listening.subscribe(Okq.key("jobs"))
        listening.get_message(timeout=5)
        await queue.put(b"1", id="a")
        await (await queue.receive()).nack()
        heard = []
        while len(heard) < 2 and (message := listening.get_message(timeout=30)):
            heard.append(message["data"])
    assert heard == [b"a", b"a"]


async def test_its_claims_come_back_without_it(queue: EventQueue[bytes], okq: Okq, db: redis.Redis) -> None:
    """Its lock expires, and we put the event back: nobody has indexed that claim."""
    okq.push("jobs", "a", b"1")
    assert okq.pop("jobs", 1) == ("a", b"1")
    delivery = await in_time(queue.receive())
    assert (delivery.id, delivery.redelivered) == ("a", True)
    await delivery.ack()


async def test_its_claims_are_left_alone(queue: EventQueue[bytes], okq: Okq) -> None:
    okq.push("jobs", "a", b"1")
    okq.pop("jobs", 60)
    for _ in range(3):
        assert await queue._driver.steps.heal() == (0, pytest.approx(10_000, abs=10_000))
        await asyncio.sleep(0.6)
    assert okq.status("jobs") == (1, 1, 0)
    assert okq.ack("jobs", "a") == 1


async def test_a_thousand_claims_a_pass(queue: EventQueue[bytes], okq: Okq, db: redis.Redis) -> None:
    """Our index is gone: it is made again from the locks, 1,000 in each pass, and all claims come back."""
    await queue.put_many(b"%d" % number for number in range(2500))
    for _ in range(3):
        await queue.receive_many(1000, lease=2)
    index = "apressure:queue:{jobs}:expiry"
    assert db.zcard(index) == 2500
    db.delete(index, "apressure:queue:{jobs}:scan")
    await queue._driver.steps.heal()
    assert db.zcard(index) <= 1000
    received = 0
    while received < 2500:
        for delivery in await in_time(queue.receive_many(1000, lease=60)):
            received += 1
            await delivery.ack()
    assert not await queue.exists()


@pytest.mark.parametrize("command", ["pop SET", "pop HGET"])
async def test_it_dies_while_it_claims(queue: EventQueue[bytes], okq: Okq, db: redis.Redis, command: str) -> None:
    okq.push("jobs", "a", b"1")
    okq.hook = dies_at(command)  # type: ignore[assignment]
    with pytest.raises(Died):
        okq.pop("jobs", 1)
    delivery = await in_time(queue.receive())
    assert delivery.id == "a"
    await delivery.ack()
    assert consistent(db)


@pytest.mark.parametrize("command", ["ack HDEL", "ack DEL"])
async def test_it_dies_while_it_acknowledges(queue: EventQueue[bytes], okq: Okq, db: redis.Redis, command: str) -> None:
    """The event's contents may be left, or its lock: an event with contents is delivered once more."""
    okq.push("jobs", "a", b"1")
    okq.pop("jobs")
    okq.hook = dies_at(command)  # type: ignore[assignment]
    with pytest.raises(Died):
        okq.ack("jobs", "a")
    status = await queue._driver.steps.status()
    if status.contents != status.waiting + status.claimed:
        assert await queue._driver.steps.mend() == 1
        delivery = await in_time(queue.receive())  # also while the lock of the claim before is there
        assert delivery.id == "a"
        await delivery.ack()
    assert await queue._driver.steps.mend() == 0
    assert consistent(db)
    db.delete(Okq.key("jobs", "lock", "a"))  # it has a time to live


async def test_it_dies_while_it_pushes(queue: EventQueue[bytes], okq: Okq, db: redis.Redis) -> None:
    await queue.put_many(b"%d" % number for number in range(300))
    okq.hook = dies_at("push LPUSH")  # type: ignore[assignment]
    with pytest.raises(Died):
        okq.push("jobs", "a", b"lost")
    assert await queue._driver.steps.mend() == 1
    assert await queue._driver.steps.mend() == 0
    assert consistent(db)
    assert await queue.peek() == b"lost"


async def test_a_consumer_mends(queue: EventQueue[bytes], okq: Okq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer.EventConsumer, "_heartbeat", 0.2)
    okq.hook = dies_at("push LPUSH")  # type: ignore[assignment]
    with pytest.raises(Died):
        okq.push("jobs", "a", b"lost")
    async with queue.consumer() as items:
        assert await in_time(anext(items)) == b"lost"


async def test_ids_without_contents_are_dropped(queue: EventQueue[bytes], okq: Okq, db: redis.Redis) -> None:
    db.lpush(Okq.key("jobs"), "gone", "gone too")
    okq.push("jobs", "a", b"1")
    assert await queue.peek() == b"1"
    delivery = await queue.receive()
    assert delivery.id == "a"
    await delivery.ack()
    assert consistent(db)
    assert not await queue.exists()


async def test_an_id_that_is_there_twice_is_handed_out_once(
    queue: EventQueue[bytes], okq: Okq, db: redis.Redis
) -> None:
    """An okq that went on after it had been taken for dead pushes the id once more."""
    okq.push("jobs", "a", b"1")
    db.lpush(Okq.key("jobs"), "a")
    delivery = await queue.receive()
    assert [one.id for one in await _all(queue)] == []
    await delivery.ack()
    assert not await queue.exists()


async def _all(queue: EventQueue[bytes]) -> list[object]:
    try:
        return list(await queue.receive_many(10, timeout=0))
    except TimeoutError:
        return []


async def test_a_stale_index_does_no_harm(queue: EventQueue[bytes], okq: Okq, db: redis.Redis) -> None:
    """An okq has acknowledged what we claimed, and claimed what we had claimed before."""
    await queue.put(b"1", id="a")
    await queue.put(b"2", id="b")
    first, second = await queue.receive_many(2, lease=1)
    assert okq.ack("jobs", "a") == 1
    await eventually(lambda: db.exists(Okq.key("jobs", "lock", "b")) == 0)
    assert okq.restore("jobs") == 1
    assert okq.pop("jobs", 60) == ("b", b"2")
    with pytest.raises(LeaseLostError):
        await first.ack()
    with pytest.raises(LeaseLostError):
        await second.ack()
    await queue._driver.steps.heal()
    assert okq.status("jobs") == (1, 1, 0)
    assert okq.ack("jobs", "b") == 1


async def test_it_pushes_past_the_bound_and_the_end(open_queue: Open, okq: Okq) -> None:
    queue = await open_queue(bound=1)
    await queue.put(b"0")
    okq.push("jobs", "a", b"1")
    assert await queue.qsize() == 2
    with pytest.raises(asyncio.QueueFull):
        await queue.put_nowait(b"2")
    await queue.close()
    okq.push("jobs", "b", b"2")
    async with queue.consumer() as items:
        assert [item async for item in items] == [b"0", b"1", b"2"]


async def test_its_flush_lets_events_in_flight_end(queue: EventQueue[bytes], okq: Okq, db: redis.Redis) -> None:
    await queue.put_many([b"1", b"2"])
    delivery = await queue.receive(lease=0.2)
    okq.flush("jobs")
    with pytest.raises(LeaseLostError):
        await delivery.nack()
    await asyncio.sleep(0.5)
    assert await _all(queue) == []
    assert consistent(db)
    assert not await queue.exists()


async def test_consumers_are_shown(queue: EventQueue[bytes], okq: Okq, db: redis.Redis, url: str) -> None:
    okq.register("jobs", "theirs")
    async with queue.consumer():
        assert okq.status("jobs")[2] == 2
        assert (await queue.statistics()).consumers == 2
        async with Client(url) as client:
            assert await active_queues(client) == ["jobs"]
    assert okq.status("jobs")[2] == 1
    db.zadd(Okq.key("jobs", "consumers"), {"theirs": 1})
    assert (await queue.statistics()).consumers == 0
    assert await queue._driver.steps.register(b"other") == 1
    assert await queue._driver.steps.unregister(b"other") == 0


@pytest.mark.parametrize("seed", range(3))
async def test_random_operations_of_both_lose_and_double_nothing(open_queue: Open, db: redis.Redis, seed: int) -> None:
    """Ours and theirs, in any order, with okqs that die anywhere: what was put is acknowledged once, or still there."""
    chosen = random.Random(seed)
    queue = await open_queue()
    put: set[str] = set()
    begun: set[str] = set()  # an okq may have died after it
    acked: set[str] = set()
    hands: dict[str, object] = {}
    for number in range(400):
        okq = Okq(db)
        if chosen.random() < 0.1:
            fatal = chosen.choice(["push LPUSH", "push PUBLISH", "pop SET", "pop HGET", "ack HDEL", "ack DEL"])
            okq.hook = dies_at(fatal)  # type: ignore[assignment]
        name, action = str(number), chosen.random()
        try:
            if action < 0.2:
                okq.push("jobs", name, b"theirs")
                put.add(name)
            elif action < 0.4:
                put.add(await queue.put(b"ours", id=name))
            elif action < 0.55:
                popped = okq.pop("jobs", 60)
                if popped is not None and popped[1] is not None:
                    hands[popped[0]] = None
            elif action < 0.7:
                for delivery in await queue.receive_many(2, timeout=0, lease=60):
                    assert hands.get(delivery.id, delivery) is delivery, "handed out twice"
                    hands[delivery.id] = delivery
            elif hands:
                name = chosen.choice(list(hands))
                delivery = hands.pop(name)
                begun.add(name)
                if delivery is None:
                    okq.ack("jobs", name)
                else:
                    await delivery.ack()  # type: ignore[attr-defined]
                acked.add(name)
        except (Died, TimeoutError):
            continue
    for lock in db.keys(Okq.key("jobs", "lock", "*")):
        db.pexpire(lock, 1)
    db.delete("apressure:queue:{jobs}:expiry", "apressure:queue:{jobs}:scan")
    await queue._driver.steps.mend()
    left: set[str] = set()
    while (await queue._driver.steps.status()).contents:
        try:
            for delivery in await queue.receive_many(100, timeout=5, lease=60):
                assert delivery.id not in left
                left.add(delivery.id)
                await delivery.ack()
        except TimeoutError:
            break
    assert put - begun <= left
    assert not left & acked
    assert consistent(db)


async def test_steps_of_a_queue_that_another_program_damaged(queue: EventQueue[bytes], db: redis.Redis) -> None:
    """Everything is checked before the first write."""
    db.set(Okq.key("jobs", "claimed"), "x")
    before = {key: db.dump(key) for key in db.scan_iter()}
    steps: EventSteps = queue._driver.steps
    for step in (
        event_steps.push(steps, [(b"a", b"1")]),
        event_steps.pop(steps),
        event_steps.settle(steps, [(b"a", b"")]),
        steps.heal(),
        steps.purge(1),
    ):
        with pytest.raises(Exception, match="WRONGTYPE"):
            await step
    assert {key: db.dump(key) for key in db.scan_iter() if b":op:" not in key} == before
    db.delete(Okq.key("jobs", "claimed"))
    db.set("apressure:queue:{jobs}:bound", "many")
    for step in (
        event_steps.push(steps, [(b"a", b"1")]),
        event_steps.pop(steps),
        event_steps.settle(steps, [(b"a", b"")]),
        steps.heal(),
        steps.purge(1),
    ):
        with pytest.raises(Exception, match="is not a bound"):
            await step
