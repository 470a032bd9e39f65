"""What keys do where something is wrong, or in great numbers: with damage, beside an okq, and as limits change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from apressure import EventQueue

LIST, ITEMS, CLAIMED = "queue:{jobs}", "queue:{jobs}:items", "queue:{jobs}:claimed"
KEYED, LINES, RING = (f"apressure:queue:{{jobs}}:{name}" for name in ("keyed", "lines", "ring"))


@pytest.fixture
async def queue(url: str) -> AsyncIterator[EventQueue[str]]:
    async with EventQueue("jobs", url=url, codec="text", max_attempts=1) as queue:
        await queue.create()
        yield queue
        await queue.delete()


async def received(queue: EventQueue[str], most: int = 100) -> list[Any]:
    """Receive what may be handed out now."""
    found: list[Any] = []
    while len(found) < most:
        try:
            async with asyncio.timeout(0.3):
                found.append(await queue.receive())
        except TimeoutError:
            break
    return found


def settle_as_okq(db: redis.Redis, identity: str) -> None:
    db.lrem(CLAIMED, 0, identity)
    db.hdel(ITEMS, identity)
    db.delete(f"{LIST}:lock:{identity}")


async def test_a_message_does_not_wait_for_itself_after_a_time_without_a_limit(queue: EventQueue[str]) -> None:
    await queue.set_key()
    await queue.put("later", key="b", delay=600.0)
    await queue.put("a", key="a")
    (delivery,) = await received(queue)
    await queue.set_key(at_most=None)
    await delivery.nack()
    assert not await received(queue)  # it is a dead letter now
    await queue.set_key()
    assert await queue.requeue() == 1
    async with asyncio.timeout(30):
        assert await queue.get() == "a"


async def test_what_okq_has_settled_makes_room_though_another_key_has_nearly_all_messages(
    queue: EventQueue[str], db: redis.Redis
) -> None:
    for key in "ab":
        await queue.put(f"{key}0", key=key)
    a, b = await received(queue)
    for _ in range(20):
        await asyncio.gather(*(queue.put("a", key="a") for _ in range(200)))
    await queue.put("b1", key="b")
    assert not await received(queue)
    settle_as_okq(db, b.id)
    found = []
    for _ in range(60):  # with random looks it would take a thousand of them
        await asyncio.sleep(0.11)
        if found := await received(queue, 1):
            break
    assert [one.item for one in found] == ["b1"]
    await a.ack()
    await found[0].ack()


async def test_purge_deletes_what_is_parked_in_few_steps(queue: EventQueue[str], db: redis.Redis) -> None:
    await queue.set_key(at_most=3)
    await queue.put_many(["x"] * 3000)
    deliveries = await received(queue, 3)
    assert db.zcard(LINES) > 2000
    before = db.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
    assert await queue.purge() == 2997
    assert db.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"] - before < 100
    for delivery in deliveries:
        await delivery.ack()
    assert not db.exists(LIST, LINES, ITEMS, KEYED)


async def test_large_numbers_are_different_keys(queue: EventQueue[str]) -> None:
    await queue.set_key("/id")
    for number in (12345678901234567, 12345678901234599, 1.5, 0):
        await queue.put(json.dumps({"id": number}))
    assert len(await received(queue)) == 4
    await queue.put(json.dumps({"id": -0.0}))
    assert not await received(queue)


async def test_what_get_gives_back_comes_before_all_that_wait(queue: EventQueue[str]) -> None:
    await queue.put_many(["a0", "a1"], key="a")
    for number in range(50):
        await queue.put("other", key=f"{number}")
    assert await queue.get() == "a0"
    steps: Any = queue._driver.steps
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    steps.send_push(steps.series(), [(b"again", b"a0", b"#1:a")], False, answer.set_result, front=True, back=True)
    await answer
    found = [await queue.get() for _ in range(3)]
    assert found.index("a0") < 2
    assert "a1" not in found[: found.index("a0")]


async def test_parked_messages_outlive_their_lines(queue: EventQueue[str], db: redis.Redis) -> None:
    for number in range(3):
        await queue.put(f"a{number}", key="a")
    (first,) = await received(queue)
    assert db.zcard(LINES) == 2
    db.delete(LINES)
    await first.ack()
    assert not await received(queue)
    steps: Any = queue._driver.steps
    assert await steps.mend() == 2
    assert {await queue.get(), await queue.get()} == {"a1", "a2"}
    assert await steps.mend() == 0


async def test_mending_leaves_parked_messages_alone(queue: EventQueue[str], db: redis.Redis) -> None:
    for number in range(3):
        await queue.put(f"a{number}", key="a")
    (first,) = await received(queue)
    steps: Any = queue._driver.steps
    assert await steps.mend() == 0
    assert db.zcard(LINES) == 2
    await first.ack()
    assert [await queue.get(), await queue.get()] == ["a1", "a2"]


@pytest.mark.parametrize("lost", [KEYED, RING])
async def test_parked_messages_come_though_another_program_deletes_a_key_of_ours(
    queue: EventQueue[str], db: redis.Redis, lost: str
) -> None:
    for number in range(4):
        await queue.put(f"a{number}", key="a")
    (first,) = await received(queue)
    db.delete(lost)
    await first.ack()
    async with asyncio.timeout(30):
        assert [await queue.get() for _ in range(3)] == ["a1", "a2", "a3"]


async def test_the_keys_of_what_okq_settles_do_not_pile_up(queue: EventQueue[str], db: redis.Redis) -> None:
    await queue.put("stays", key="a", delay=600.0)
    for _ in range(40):
        await queue.put_many(["x"] * 100, key="a")
        while identity := db.rpop(LIST):
            db.hdel(ITEMS, identity)
    assert db.hlen(KEYED) < 2000


@pytest.mark.parametrize("fair", [True, False])
async def test_a_closed_queue_ends_when_all_that_is_parked_is_done(
    url: str, queue: EventQueue[str], fair: bool
) -> None:
    await queue.set_key(fair=fair)
    for number in range(60):
        await queue.put(f"{number}", key=f"{number % 3}")
    await queue.close()
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}

    async def work(place: int) -> None:
        async with EventQueue("jobs", url=url, codec="text") as own, own.consumer(ack="manual", prefetch=4) as block:
            async for delivery in block:
                number = int(delivery.item)
                if delivery.attempts == 1 and number % 7 == place:
                    await delivery.nack(delay=0.05 * (number % 2))
                else:
                    found[number % 3].append(number)
                    await delivery.ack()

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(place) for place in range(4)))
    assert found == {key: list(range(key, 60, 3)) for key in range(3)}


async def test_a_dead_letter_keeps_its_key_and_says_what_it_is(queue: EventQueue[str], db: redis.Redis) -> None:
    for number in range(2):
        await queue.put(f"a{number}", key="a:1")
    (delivery,) = await received(queue)
    await delivery.nack(ValueError("no"))
    (second,) = await received(queue)
    (letter,) = await queue.dead_letters()
    assert (letter.id, letter.item, letter.attempts) == (delivery.id, "a0", 1)
    assert "no" in str(letter.error)
    assert await queue.requeue(ids=[letter.id]) == 1
    assert not await received(queue)  # it waits for the other one
    await second.ack()
    (delivery,) = await received(queue)
    assert delivery.item == "a0"
    db.lpush("apressure:queue:{jobs}:dead", "#", "#1:", "#1:a", "#9:a", "#1:a+3:abc", "#1:a3:abcx")
    assert len(letters := await queue.dead_letters()) == 6
    assert [letter.id for letter in letters if not letter.id.startswith("damaged")] == ["abc"]
    await delivery.ack()


async def test_a_message_is_found_soon_behind_many_of_another_key(queue: EventQueue[str], db: redis.Redis) -> None:
    await queue.put_many(["a"] * 10000, key="a")
    await queue.put("b", key="b")
    db.config_resetstat()
    assert {(await queue.receive()).item for _ in range(2)} == {"a", "b"}
    calls = {name: line["calls"] for name, line in db.info("commandstats").items()}
    assert calls["cmdstat_zadd"] < 500  # not one for each
