"""What `EventQueue` does beyond the contract of every kind of queue (tests/contract)."""

from __future__ import annotations

import asyncio
import re
import uuid
from typing import Any

import pytest
import redis

from apressure import (
    Client,
    DecodeError,
    EventQueue,
    OutOfMemoryError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueFullError,
    QueueOpenError,
    serve,
)
from apressure.events.engine.keys import EventKeys
from tests.integration.events.conftest import Open, blocked, consistent, in_time

KEYS = EventKeys("jobs")


async def test_ids(queue: EventQueue[bytes]) -> None:
    assert uuid.UUID(await queue.put(b"1")).version == 4
    assert await queue.put(b"2", id="\udcff:*") == "\udcff:*"
    assert [(one.id, await one.ack()) for one in await queue.receive_many(5)][1][0] == "\udcff:*"
    assert await queue.put(b"again", id="\udcff:*") == "\udcff:*"  # it was acknowledged
    for bad in ("", "x" * 1025, "\ud800"):
        with pytest.raises(ValueError, match="id must"):
            await queue.put(b"1", id=bad)
    with pytest.raises(TypeError, match="id must be a string"):
        await queue.put(b"1", id=b"1")  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", ["", "a}b", "x" * 5000, "\ud800"])
def test_bad_names_are_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="a queue's name must"):
        EventQueue(bad)


def test_bad_options_are_refused() -> None:
    with pytest.raises(TypeError, match="either client= or url"):
        EventQueue("jobs", client=Client(), url="redis://")
    with pytest.raises(ValueError, match="scripting"):
        EventQueue("jobs", scripting=False)
    with pytest.raises(ValueError, match="max_attempts"):
        EventQueue("jobs", max_attempts=0)
    queue = EventQueue("jobs")
    with pytest.raises(ValueError, match="always share"):
        queue.consumer(shared=False)
    with pytest.raises(ValueError, match="ack must be"):
        queue.consumer("never")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="lease must be between"):
        queue.consumer(lease=0.01)
    with pytest.raises(TypeError, match="at least one queue"):
        EventQueue.consume()


async def test_the_front(queue: EventQueue[bytes]) -> None:
    await queue.put_many([b"1", b"2"])
    await queue.put(b"0", front=True)
    await queue.put_nowait(b"-1", front=True)
    assert (await queue.peek(), await queue.peek_newest()) == (b"-1", b"2")
    assert await queue.get_many(10) == [b"-1", b"0", b"1", b"2"]


async def test_get_is_at_most_once(queue: EventQueue[bytes], db: redis.Redis) -> None:
    await queue.put_many([b"1", b"2", b"3"])
    assert (await queue.get(), await queue.get_nowait()) == (b"1", b"2")
    await queue.close()
    assert [item async for item in queue] == [b"3"]
    with pytest.raises(QueueClosedError):
        await queue.get()
    assert not db.keys("queue:*")


async def test_a_cancelled_get_gives_back_also_to_a_closed_queue(queue: EventQueue[bytes], db: redis.Redis) -> None:
    """Cancelled while the step is on its way: the queue is closed before the item comes back."""
    await queue.put(b"1", id="a")
    getting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    getting.cancel()
    await queue.close()
    with pytest.raises(asyncio.CancelledError):
        await in_time(getting)
    delivery = await queue.receive()
    assert (delivery.id, delivery.attempts) == ("a", 1)
    await delivery.ack()


async def test_what_cannot_be_decoded(open_queue: Open) -> None:
    queue = await open_queue(codec="json")
    raw = await open_queue()
    await raw.put_many([b"1", b"no", b"3"])
    assert await queue.get_many(10) == [1]
    with pytest.raises(DecodeError):
        await queue.get_many(10)
    assert await queue.get() == 3
    await raw.put(b"no")
    delivery = await queue.receive()
    with pytest.raises(DecodeError):
        _ = delivery.item
    await delivery.ack()


async def test_a_get_that_is_cancelled_while_it_gives_back_loses_nothing(
    open_queue: Open,
) -> None:
    queue, raw = await open_queue(codec="json"), await open_queue()
    await raw.put_many([b"1", b"no", b"3"])
    give_back = queue._driver._pops.give_back

    def cancelling(*arguments: Any) -> Any:
        getting.cancel()
        return give_back(*arguments)

    queue._driver._pops.give_back = cancelling  # type: ignore[method-assign]
    getting = asyncio.create_task(queue.get_many(3))
    with pytest.raises(asyncio.CancelledError):
        await getting
    assert [await raw.get(timeout=0) for _ in range(3)] == [b"1", b"no", b"3"]


@pytest.mark.parametrize("take", ["get", "receive"])
async def test_takers_that_leave_in_the_turn_of_the_answer_give_back_in_order(
    queue: EventQueue[bytes], take: str
) -> None:
    await queue.put_many([b"1", b"2", b"3"])
    first = asyncio.create_task(getattr(queue, f"{take}_many")(1, timeout=5))
    second = asyncio.create_task(getattr(queue, f"{take}_many")(1, timeout=5))
    third = asyncio.create_task(getattr(queue, f"{take}_many")(2, timeout=5))
    lane, answered = queue._driver._pops, queue._driver._pops._answered

    def leave(answer: Any) -> None:
        third.cancel()  # what comes for it goes back at once,
        answered(answer)
        second.cancel()  # and what this one has got when its task runs

    await asyncio.sleep(0)
    lane._answered = leave  # type: ignore[method-assign]
    await first  # the step of the first one is on its way; the next one is for both others
    for task in (second, third):
        with pytest.raises(asyncio.CancelledError):
            await task
    del lane._answered  # type: ignore[attr-defined]
    assert [await queue.get(timeout=5) for _ in range(2)] == [b"2", b"3"]


async def test_large_events_come_in_chunks(queue: EventQueue[bytes]) -> None:
    await queue.put_many([b"x" * 400_000] * 8)
    assert [len(await queue.get_many(8)) for _ in range(4)] == [2, 2, 2, 2]


async def test_wait_closed(open_queue: Open, db: redis.Redis) -> None:
    queue, other = await open_queue(bound=0), await open_queue()
    with pytest.raises(QueueOpenError):
        await queue.wait_closed(timeout=0.05)
    waiting = asyncio.create_task(other.wait_closed())
    await blocked(db)
    await queue.close()
    await in_time(waiting)
    with pytest.raises(QueueClosedError, match="is closed"):
        await other.close()


@pytest.mark.parametrize("waiters", [1, 5])
async def test_the_end_wakes_everybody(open_queue: Open, db: redis.Redis, long_slices: None, waiters: int) -> None:
    queue = await open_queue(bound=1)
    others = [await open_queue() for _ in range(waiters)]
    receiving = [asyncio.create_task(other.receive()) for other in others]
    await blocked(db, waiters)
    await asyncio.sleep(0.2)
    await queue.close()
    for task in receiving:
        with pytest.raises(QueueClosedError):
            await in_time(task)


@pytest.mark.parametrize("waiters", [1, 4])
async def test_deleting_wakes_everybody(open_queue: Open, db: redis.Redis, long_slices: None, waiters: int) -> None:
    queue = await open_queue(bound=1)
    others = [await open_queue() for _ in range(waiters)]
    tasks = [asyncio.create_task(other.receive()) for other in others]
    await blocked(db, waiters)
    await asyncio.sleep(0.2)
    await queue.delete()
    for task in tasks:
        with pytest.raises(QueueDoesNotExistError):
            await in_time(task)
    await queue.create(1)
    await queue.put(b"0")
    tasks = [asyncio.create_task(other.put(b"1")) for other in others]
    await blocked(db, waiters)
    await asyncio.sleep(0.2)
    await queue.delete()
    for task in tasks:
        with pytest.raises(QueueDoesNotExistError):
            await in_time(task)
    with pytest.raises(QueueDoesNotExistError):
        await queue.put(b"1")
    with pytest.raises(QueueDoesNotExistError):
        await queue.statistics()
    with pytest.raises(QueueDoesNotExistError):
        await queue.delete()


async def test_deleting_ends_the_wait_for_the_close_at_once(
    open_queue: Open, db: redis.Redis, long_slices: None
) -> None:
    queue = await open_queue(bound=0)
    others = [await open_queue() for _ in range(3)]
    for ended_before in (False, True):  # what told of the first end is still there
        waiting = [asyncio.create_task(other.wait_closed()) for other in (queue, *others)]
        await blocked(db, 8)  # each for the close and for the end
        assert db.exists(KEYS.gone) == 0, ended_before
        await queue.delete()
        for task in waiting:
            async with asyncio.timeout(30):  # half of the time after which they look again
                with pytest.raises(QueueDoesNotExistError):
                    await task
        assert db.pttl(KEYS.gone) > 0
        await queue.create()
    await queue.delete()
    waiting = [asyncio.create_task(others[0].wait_closed())]  # it does not know that there was one
    steps = db.info("commandstats")["cmdstat_evalsha"]["calls"]
    await asyncio.sleep(0.2)
    assert db.info("commandstats")["cmdstat_evalsha"]["calls"] < steps + 5
    await queue.create()
    await queue.close()
    await in_time(waiting[0])


@pytest.mark.parametrize("made", ["create", "set_bound"])
async def test_a_new_queue_knows_nothing_of_the_end_of_the_one_before(
    open_queue: Open, db: redis.Redis, made: str
) -> None:
    queue, other = await open_queue(bound=0), await open_queue()
    await queue.delete()
    await other.put(b"1")
    await (other.create() if made == "create" else other.set_bound(5))
    waiting = asyncio.create_task(other.wait_closed())
    await blocked(db, 2)
    await other.close()
    await in_time(waiting)


async def test_dead_letters(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue(bound=2, max_attempts=1)
    for number in (b"0", b"1", b"2"):
        await queue.put(number, id=number.decode())
        await (await queue.receive()).nack()
        with pytest.raises(TimeoutError):
            await queue.receive(timeout=0)
    assert (await queue.statistics()).dead_letters == 3
    await queue.put(b"new", id="1")  # its id is free again: the dead letter stays
    with pytest.raises(QueueFullError) as raised:
        await queue.requeue(timeout=0.1)
    assert raised.value.accepted == 1
    assert await queue.get_many(5) == [b"new", b"0"]
    assert await queue.requeue(max_items=1) == 1
    assert await queue.requeue() == 1
    assert sorted(await queue.get_many(5)) == [b"1", b"2"]
    assert await queue.requeue() == 0
    assert consistent(db)


async def test_requeue_waits_for_room(open_queue: Open, db: redis.Redis, long_slices: None) -> None:
    queue = await open_queue(bound=1, max_attempts=1)
    await queue.put(b"dead")
    await (await queue.receive()).nack()
    with pytest.raises(TimeoutError):
        await queue.receive(timeout=0)
    await queue.put(b"full")
    moving = asyncio.create_task(queue.requeue())
    await blocked(db)
    assert await queue.get() == b"full"
    assert await in_time(moving) == 1


async def test_attempts_are_forgotten_with_the_event(queue: EventQueue[bytes], db: redis.Redis) -> None:
    await queue.put(b"1", id="a")
    await (await queue.receive()).nack()
    delivery = await queue.receive()
    assert delivery.attempts == 2
    await delivery.ack()
    await queue.put(b"1", id="a")
    delivery = await queue.receive()
    assert delivery.attempts == 1
    await delivery.ack()


async def test_consumers_at_a_full_server(queue: EventQueue[bytes], db: redis.Redis) -> None:
    """A server that is out of memory refuses what pushes, and nothing that makes room."""
    await queue.put_many(b"%d" % number for number in range(10))
    delivery = await queue.receive()
    db.config_set("maxmemory", 1)
    try:
        with pytest.raises(OutOfMemoryError):
            await queue.put(b"more")
        await delivery.nack()
        again = await queue.receive_many(10)
        for one in again:
            await one.ack()
        assert [one.raw for one in again] == [b"%d" % number for number in range(10)]
    finally:
        db.config_set("maxmemory", 0)
    assert consistent(db)


async def test_several_queues_at_once(open_queue: Open, url: str, long_slices: None, db: redis.Redis) -> None:
    one, two = await open_queue("one", bound=0), await open_queue("two", bound=0)
    found: list[tuple[str, bytes]] = []

    async def consume() -> None:
        async with EventQueue.consume("one", "two", url=url) as consumer:
            async for delivery in consumer:
                found.append((consumer.name, delivery.item))
                await delivery.ack()

    consuming = asyncio.create_task(consume())
    await blocked(db, 2)
    for number, queue in enumerate((one, two, two, one)):
        await queue.put(b"%d" % number)
        async with asyncio.timeout(90):
            while len(found) <= number:
                await asyncio.sleep(0.01)
    await one.put_many([b"x"] * 20)
    await one.close()
    await two.put(b"last")
    await two.close()
    await in_time(consuming)
    assert found[:4] == [("one", b"0"), ("two", b"1"), ("two", b"2"), ("one", b"3")]
    assert found.count(("one", b"x")) == 20
    assert ("two", b"last") in found


async def test_a_busy_queue_does_not_starve_the_others(open_queue: Open, url: str) -> None:
    one, two = await open_queue("one"), await open_queue("two")
    await one.put_many([b"busy"] * 1000)
    await two.put(b"quiet")
    async with EventQueue.consume("one", "two", url=url) as consumer:
        looked = 0
        async for delivery in consumer:
            looked += 1
            await delivery.ack()
            if consumer.name == "two":
                break
    assert looked < 200  # one half at a time: 2**-200


async def test_serve_with_many_workers(open_queue: Open) -> None:
    queue = await open_queue(bound=0)
    await queue.put_many(b"%d" % number for number in range(200))
    await queue.close()
    handled: list[bytes] = []

    async def handle(item: bytes) -> None:
        handled.append(item)
        await asyncio.sleep(0.001)

    queues = [await open_queue() for _ in range(3)]
    served = await in_time(asyncio.gather(*(serve(handle, one, concurrency=3, signals=()) for one in queues)))
    assert sum(one.handled for one in served) == 200
    assert sorted(handled, key=int) == [b"%d" % number for number in range(200)]


async def test_looking_says_what_the_object_is(queue: EventQueue[bytes]) -> None:
    assert re.match(r"<EventQueue 'jobs' at .*>", repr(queue))
    await queue.put(b"1", id="a")
    delivery: Any = await queue.receive()
    assert repr(delivery) == "<EventDelivery a of 1 bytes, attempt 1>"
    await delivery.ack()
