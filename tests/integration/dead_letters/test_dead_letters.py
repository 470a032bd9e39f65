"""Messages that no handler can handle move to the dead-letter queue after max_attempts deliveries."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    Client,
    QueueEmptyError,
    ScriptingRefusedError,
    ServerError,
    logs,
)
from apressure.embedded import EmbeddedServer
from apressure.testing.proxy import Proxy, Trouble
from tests.integration.conftest import Opener, blocking, cancelled, eventually, everything, in_time
from tests.reference import ReferenceQueue, connect, snapshot

LEASE = "apressure:__pressure__:jobs:consumer_lease"


async def dead_of(open_queue: Opener, queue: AsyncQueue[Any], create: bool = False) -> AsyncQueue[Any]:
    """The dead-letter queue, which the test deletes at its end."""
    assert queue.dead_letter_queue is not None
    return await open_queue(queue.dead_letter_queue, create=create)


async def fail(queue: AsyncQueue[Any], times: int) -> None:
    """Receive the next message so often, and give it back."""
    for _ in range(times):
        await (await in_time(queue.receive(timeout=0))).nack()


async def die(db: redis.Redis, url: str, received: int, **options: Any) -> list[bytes]:
    """A consumer that receives some messages and dies with the first in its hands."""
    async with Client(url) as client:
        queue: AsyncQueue[bytes] = AsyncQueue("jobs", client=client, **options)
        consumer = await queue.consumer(prefetch=received).__aenter__()
        first = await in_time(anext(consumer))
        await eventually(lambda: consumer._lease.receiving.answer is None)  # type: ignore[union-attr]
        prefetched = [raw for _, raw, _ in consumer._lease.state.buffer]  # type: ignore[union-attr]
        assert db.hset(LEASE, "deadline", 1) == 0
        async with AsyncQueue("jobs", url=url) as healer, healer.consumer():
            pass
    return [first, *prefetched]


async def test_a_message_moves_instead_of_being_delivered_once_more(
    open_queue: Opener, db: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await open_queue(max_attempts=3)
    assert (queue.max_attempts, queue.dead_letter_queue) == (3, "jobs:dead")
    await queue.put_many([b"poison", b"good"])
    for attempt in range(1, 4):
        delivery = await queue.receive()
        assert (delivery.item, delivery.attempts, delivery.redelivered) == (b"poison", attempt, attempt > 1)
        await delivery.nack()
    assert not db.exists("__pressure__:jobs:dead:bound")
    with caplog.at_level(logging.WARNING, "apressure"):
        delivery = await queue.receive()
    assert (delivery.item, delivery.attempts) == (b"good", 1)
    (record,) = [each for each in caplog.records if each.event == "dead_letter"]  # type: ignore[attr-defined]
    told = "a message of the queue 'jobs' became a dead letter at attempt 3: it is in 'jobs:dead' now, as number 1"
    assert record.getMessage() == told
    assert "poison" not in record.getMessage()
    await delivery.ack()

    dead = await dead_of(open_queue, queue)
    here, there = await queue.statistics(), await dead.statistics()
    assert (here.length, here.in_flight, here.consumed_messages, here.consumed_bytes) == (0, 0, 2, 10)
    assert (there.length, there.bound, there.produced_messages, there.produced_bytes) == (1, 0, 1, 6)
    assert not db.exists("apressure:__pressure__:jobs:redelivered")


async def test_the_dead_letter_queue_is_one_like_any_other(open_queue: Opener, db: redis.Redis, url: str) -> None:
    """Made by the step that needs it, on top of what an earlier life of the name left behind."""
    db.set("__pressure__:jobs:dead:stats:produced_messages", "77")
    db.rpush("__pressure__:jobs:dead:not_full", "0", "0")
    queue = await open_queue(max_attempts=1)
    await queue.put_many([b"1", b"2"])
    for _ in range(2):
        await fail(queue, 1)
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    by_hand = await open_queue("by hand")
    await by_hand.put_many([b"1", b"2"])
    made, expected = (snapshot(db, "__pressure__", name) for name in ("jobs:dead", "by hand"))
    assert made == {**expected, ":producer": None}
    await dead_of(open_queue, queue)
    with connect(url) as plain:
        reference = ReferenceQueue(plain, "jobs:dead")
        assert [reference.get_nowait(), reference.get_nowait()] == [b"1", b"2"]
        reference.put_nowait(b"3")


async def test_the_program_opens_it_with_the_same_client(open_queue: Opener) -> None:
    queue = await open_queue(max_attempts=1, dead_letters="failed", codec="json")
    assert queue.dead_letter_queue == "failed"
    await queue.put({"a": 1})
    await fail(queue, 1)
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    await dead_of(open_queue, queue)
    assert await AsyncQueue(queue.dead_letter_queue, client=queue.client, codec="json").get() == {"a": 1}


async def test_a_consumer_whose_body_raises(open_queue: Opener) -> None:
    queue = await open_queue(max_attempts=2)
    await queue.put_many([b"1", b"poison", b"2", b"3"])
    await queue.close()
    seen: list[tuple[bytes, int, bool]] = []
    for _ in range(2):
        with pytest.raises(KeyError):
            async with queue.consumer() as consumer:
                async for item in consumer:
                    seen.append((item, consumer.attempts, consumer.redelivered))
                    if item == b"poison":
                        raise KeyError
    async with queue.consumer() as consumer:
        seen += [(item, consumer.attempts, consumer.redelivered) async for item in consumer]
    assert seen == [
        (b"1", 1, False), (b"poison", 1, False), (b"poison", 2, True), (b"2", 1, False), (b"3", 1, False),
    ]  # fmt: skip
    assert await (await dead_of(open_queue, queue)).get_many(5) == [b"poison"]


async def test_what_dies_last_ends_the_loop_of_a_closed_queue(open_queue: Opener) -> None:
    queue = await open_queue(max_attempts=1)
    await queue.put(b"poison")
    await queue.close()
    await fail(queue, 1)
    async with queue.consumer(delete=True) as consumer:
        assert [item async for item in consumer] == []
    assert not await queue.exists()
    assert await (await dead_of(open_queue, queue)).qsize() == 1


async def test_several_consumers_take_turns(open_queue: Opener) -> None:
    queue = await open_queue(max_attempts=4)
    others = [await open_queue(create=False, max_attempts=4) for _ in range(3)]
    await queue.put_many([b"poison", b"good"])
    for attempt, other in enumerate([*others, queue], 1):
        delivery = await other.receive()
        assert (delivery.item, delivery.attempts) == (b"poison", attempt)
        await delivery.nack()
    assert await (await in_time(others[0].receive())).ack() is None
    assert await (await dead_of(open_queue, queue)).get_many(5) == [b"poison"]


async def test_a_message_that_kills_does_not_take_its_neighbours_with_it(
    open_queue: Opener, db: redis.Redis, url: str
) -> None:
    """The others were received together with it; a redelivered message travels alone."""
    queue = await open_queue(max_attempts=3)
    await queue.put_many([b"poison", b"1", b"2", b"3"])
    assert await die(db, url, 4, max_attempts=3) == [b"poison", b"1", b"2", b"3"]
    assert await die(db, url, 4, max_attempts=3) == [b"poison"]
    assert await die(db, url, 4, max_attempts=3) == [b"poison"]
    seen = []
    async with queue.consumer(prefetch=4) as consumer:
        while len(seen) < 3:
            seen.append((await in_time(anext(consumer)), consumer.attempts))
    assert seen == [(b"1", 2), (b"2", 2), (b"3", 2)]
    assert await (await dead_of(open_queue, queue)).get_many(5) == [b"poison"]


async def test_with_a_single_attempt_nothing_is_received_together(
    open_queue: Opener, db: redis.Redis, url: str
) -> None:
    queue = await open_queue(max_attempts=1)
    await queue.put_many([b"1", b"2"])
    assert await die(db, url, 4, max_attempts=1) == [b"1"]
    delivery = await queue.receive()
    assert (delivery.item, delivery.attempts) == (b"2", 1)
    await delivery.ack()
    await dead_of(open_queue, queue)


@pytest.mark.parametrize("turns", range(1, 5))
async def test_what_nobody_has_seen_was_no_attempt(open_queue: Opener, turns: int) -> None:
    """A receive that is cancelled when its message has come gives it back as it was."""
    queue = await open_queue(max_attempts=1)
    await queue.put(b"x")
    task = asyncio.create_task(queue.receive())
    for _ in range(turns):
        await asyncio.sleep(0)
    await cancelled(task)
    delivery = await queue.receive(timeout=0)
    assert (delivery.item, delivery.attempts) == (b"x", 1)
    await delivery.ack()


async def test_a_run_of_poison_does_not_hide_what_is_behind_it(
    open_queue: Opener, db: redis.Redis, url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_limit", logs.Limit())
    queue = await open_queue(max_attempts=1)
    poison = [b"poison %d" % index for index in range(250)]
    await queue.put_many([*poison, b"good"])
    assert await die(db, url, 250) == poison
    with caplog.at_level(logging.WARNING, "apressure"):
        delivery = await in_time(queue.receive(timeout=0))
    assert delivery.item == b"good"
    await delivery.ack()
    assert [record.position for record in caplog.records] == [str(place) for place in range(1, 21)]  # type: ignore[attr-defined]
    assert (await queue.statistics()).dead_lettered_count == 250
    dead = await dead_of(open_queue, queue)
    assert await dead.get_many(1000) == poison
    assert (await queue.statistics()).consumed_messages == 251
    assert (await dead.statistics()).produced_messages == 250


async def test_consumers_without_a_limit_go_on_delivering(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(max_attempts=1)
    await queue.put(b"x")
    await fail(queue, 1)
    unlimited = await open_queue(create=False)
    assert (unlimited.max_attempts, unlimited.dead_letter_queue) == (None, None)
    delivery = await unlimited.receive()
    assert delivery.attempts == 2
    await delivery.ack()
    assert not db.exists("__pressure__:jobs:dead:bound")


async def test_a_closed_or_full_dead_letter_queue_takes_them_all_the_same(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(max_attempts=1)
    dead = await open_queue("jobs:dead", bound=2)
    await dead.put(b"0")
    await dead.close()
    await queue.put_many([b"1", b"2"])
    await fail(queue, 1)
    await fail(queue, 1)
    assert not db.exists("__pressure__:jobs:dead:not_full")  # it has become full by the first one
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    assert await dead.get() == b"0"
    assert not db.exists("__pressure__:jobs:dead:not_full")
    assert await dead.get_many(2) == [b"1", b"2"]
    assert db.llen("__pressure__:jobs:dead:not_full") == 1


async def test_waiters_for_dead_letters_are_woken(open_queue: Opener, db: redis.Redis, url: str) -> None:
    queue = await open_queue(max_attempts=1)
    dead = await open_queue("jobs:dead")
    await queue.put_many([b"1", b"2"])

    def plain_get() -> bytes:
        with connect(url) as plain:
            return ReferenceQueue(plain, "jobs:dead").get(10)

    waiting = await blocking(db, asyncio.to_thread(plain_get))
    await fail(queue, 1)
    await fail(queue, 1)
    getting = asyncio.create_task(dead.get())
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    assert await in_time(waiting) == b"1"
    assert await in_time(getting) == b"2"


def collides(db: redis.Redis) -> Callable[[], Any]:
    db.set("__pressure__:jobs:dead:closed:bound", 0)
    return lambda: db.delete("__pressure__:jobs:dead:closed:bound")


def wrong_list(db: redis.Redis) -> Callable[[], Any]:
    db.set("__pressure__:jobs:dead", "text")
    return lambda: db.delete("__pressure__:jobs:dead")


def wrong_statistic(db: redis.Redis) -> Callable[[], Any]:
    db.set("__pressure__:jobs:dead:stats:produced_bytes", "many")
    return lambda: db.delete("__pressure__:jobs:dead:stats:produced_bytes")


def wrong_bound(db: redis.Redis) -> Callable[[], Any]:
    db.rpush("__pressure__:jobs:dead:bound", 0)
    return lambda: db.delete("__pressure__:jobs:dead:bound")


def being_deleted(db: redis.Redis) -> Callable[[], Any]:
    """A client that works step by step has deleted `:bound`, and waits for the roles."""
    db.rpush("__pressure__:jobs:dead:closed", 0, 0)
    return lambda: db.delete("__pressure__:jobs:dead:closed")


@pytest.mark.parametrize(
    ("damage", "says"),
    [(collides, "share a key"), (wrong_list, "wrong type"), (wrong_statistic, "not an integer"),
     (wrong_bound, "wrong type"), (being_deleted, "is being deleted")],
)  # fmt: skip
async def test_what_cannot_be_moved_stays_where_it_is(
    open_queue: Opener, db: redis.Redis, damage: Callable[[redis.Redis], Callable[[], Any]], says: str
) -> None:
    queue = await open_queue(max_attempts=2)
    await queue.put_many([b"poison", b"good"])
    dead = await open_queue("jobs:dead", create=damage in (wrong_list, wrong_statistic))
    repair = damage(db)
    await fail(queue, 2)  # nothing is due yet: the dead-letter queue does not matter
    before = everything(db)
    with pytest.raises(ServerError, match=says) as raised:
        await queue.receive()
    assert "dead_letters=" in str(raised.value)
    assert everything(db) == before
    with pytest.raises(ServerError, match=says):
        async with queue.consumer() as consumer:
            await anext(consumer)
    assert everything(db) == {**before, b"__pressure__:jobs:consumer": queue.client.id.encode()}
    repair()
    delivery = await queue.receive()
    assert delivery.item == b"good"
    await delivery.ack()
    assert await in_time(dead.get_many(5)) == [b"poison"]


async def test_messages_move_on_a_server_that_is_out_of_memory(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server(config={"maxmemory-policy": "noeviction"})
    async with AsyncQueue("jobs", url=server.url, max_attempts=1) as queue:
        await queue.create()
        await queue.put_many([b"1", b"2"])
        await fail(queue, 1)
        with connect(server.url) as db:
            db.config_set("maxmemory", 1)
        delivery = await queue.receive()
        assert delivery.item == b"2"
        await delivery.ack()
        assert await AsyncQueue("jobs:dead", client=queue.client).get() == b"1"


async def lose_one(line: Proxy, operation: Awaitable[Any], done: Callable[[], bool]) -> Any:
    """Carry out an operation whose reply is lost when the server has done it, and how often it is repeated then."""
    line.trouble = Trouble(lose=1.0)
    task = asyncio.ensure_future(operation)
    await eventually(lambda: line.cuts and done())
    line.trouble = Trouble()
    return await in_time(task)


@pytest.mark.parametrize("good", [0, 1, 3])
async def test_a_step_whose_reply_was_lost_moves_nothing_twice(
    open_queue: Opener, url: str, db: redis.Redis, good: int
) -> None:
    watcher = await open_queue()
    items = [b"good %d" % index for index in range(good)]
    await watcher.put_many([b"poison 1", b"poison 2", *items])
    for delivery in reversed([await watcher.receive() for _ in range(2)]):
        await delivery.nack()
    async with Proxy(url, random.Random(1)) as line, AsyncQueue("jobs", url=line.url, max_attempts=1) as queue:
        await queue.exists()  # connected: the lost reply is that of the step
        receiving = lose_one(line, queue.receive(timeout=0), lambda: db.llen("__pressure__:jobs:dead") == 2)
        if good:
            delivery = await receiving
            assert (delivery.item, delivery.attempts) == (items[0], 1)
            await delivery.ack()
        else:
            with pytest.raises(QueueEmptyError):
                await receiving
        dead = await dead_of(open_queue, queue)
    there, here = await dead.statistics(), await watcher.statistics()
    assert (there.length, there.produced_messages, there.produced_bytes) == (2, 2, 16)
    assert (here.length, here.in_flight) == (max(0, good - 1), 0)
    assert here.consumed_messages == 2 + min(good, 1)
    assert await dead.get_many(10) == [b"poison 1", b"poison 2"]


@pytest.mark.parametrize("seed", range(15))
async def test_attempts_are_those_of_a_model(open_queue: Opener, db: redis.Redis, client: Client, seed: int) -> None:
    rng = random.Random(seed)
    limit = rng.choice([1, 2, 3])
    queue = await open_queue(client=client, max_attempts=limit)
    line: deque[tuple[bytes, int]] = deque()  # the next one first, with the attempts so far
    flying: list[tuple[Any, tuple[bytes, int]]] = []
    died: list[bytes] = []
    put = 0
    for _ in range(120):
        move = rng.choice(["put", "put", "receive", "receive", "receive", "ack", "nack", "nack", "die", "requeue"])
        if move == "put":
            message = rng.choice([b"same", b"%d" % put])
            put += 1
            await queue.put(message)
            line.append((message, 0))
        elif move == "receive":
            while line and line[0][1] == limit:
                died.append(line.popleft()[0])
            try:
                delivery = await queue.receive(timeout=0)
            except QueueEmptyError:
                assert not line
                continue
            message, attempts = line.popleft()
            assert (delivery.raw, delivery.attempts) == (message, attempts + 1)
            flying.append((delivery, (message, attempts + 1)))
        elif move in ("ack", "nack") and flying:
            delivery, message_and_attempts = flying.pop(rng.randrange(len(flying)))
            await getattr(delivery, move)()
            if move == "nack":
                line.appendleft(message_and_attempts)
        elif move == "die" and flying:
            assert db.hset(LEASE, "deadline", 1) == 0
            line.extendleft(message_and_attempts for _, message_and_attempts in reversed(flying))
            flying.clear()
            queue = AsyncQueue("jobs", client=client, max_attempts=limit)
        elif move == "requeue" and not flying:
            # (What came back while it was in flight is not dead yet: only a receive decides.)
            assert await queue.requeue() == len(died)
            line.extend((message, 0) for message in died)
            died.clear()
    for delivery, _ in flying:
        await delivery.ack()
    dead = await open_queue("jobs:dead", create=False)
    if await dead.exists():
        assert await dead.statistics() is not None
        assert [message async for message in _drain(dead)] == died
    assert [message async for message in _drain(queue)] == [message for message, _ in line]


async def _drain(queue: AsyncQueue[bytes]) -> Any:
    while True:
        try:
            yield await queue.get_nowait()
        except QueueEmptyError:
            return


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"max_attempts": 0}, ValueError, "at least 1"),
        ({"max_attempts": 1.5}, TypeError, "whole number"),
        ({"max_attempts": True}, TypeError, "whole number"),
        ({"dead_letters": "failed"}, ValueError, "give both"),
        ({"max_attempts": 1, "dead_letters": "jobs"}, ValueError, "share a key"),
        ({"max_attempts": 1, "dead_letters": "jobs:closed"}, ValueError, "share a key"),
        ({"max_attempts": 1, "dead_letters": ""}, ValueError, "must not be empty"),
        ({"max_attempts": 1, "dead_letters": b"failed"}, TypeError, "must be a string"),
        ({"max_attempts": 1, "scripting": False}, ScriptingRefusedError, "scripting=False"),
        (
            {"max_attempts": 1, "dead_letters": "failed", "url": "redis+cluster://h"},
            ValueError,
            "several nodes",
        ),
    ],
)
def test_bad_options_are_refused_before_anything_is_done(
    options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        AsyncQueue("jobs", **options)


def test_in_a_cluster_the_dead_letter_queue_is_in_the_same_slot() -> None:
    queue = AsyncQueue("{jobs}", max_attempts=1, url="redis+cluster://h")
    assert queue.dead_letter_queue == "{jobs}:dead"
