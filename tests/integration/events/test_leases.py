"""Leases of events: claims come back when they end, not before. A consumer renews them, also while it is blocked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from apressure import Client, ClientClosedError, EventQueue, LeaseLostError
from apressure.events.engine.answers import Popped
from apressure.events.engine.steps import EventSteps, Want
from tests import event_steps
from tests.integration.events.conftest import Open, blocked, consistent, eventually, in_time
from tests.okq import Okq


async def test_a_claim_comes_back_when_its_lease_ends(open_queue: Open, db: redis.Redis) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put(b"1")
    delivery = await queue.receive(lease=0.5)
    begun = time.monotonic()
    again = await in_time(other.receive(lease=60))
    assert time.monotonic() - begun > 0.4
    assert (again.id, again.attempts) == (delivery.id, 2)
    for late in (delivery.ack, delivery.nack):
        with pytest.raises(LeaseLostError):
            await late()
        delivery.settled = False
    with pytest.raises(LeaseLostError):
        await delivery.extend(5)
    await again.ack()
    assert consistent(db)


async def test_a_lease_that_ended_unnoticed_can_be_settled_and_renewed(
    queue: EventQueue[bytes], db: redis.Redis
) -> None:
    """Nobody has put the event back yet, so it still belongs to its last owner."""
    await queue.put_many([b"1", b"2"])
    first, second = await queue.receive_many(2, lease=0.1)
    await eventually(lambda: not db.exists(Okq.key("jobs", "lock", first.id), Okq.key("jobs", "lock", second.id)))
    await first.ack()
    db.zadd("apressure:queue:{jobs}:expiry", {second.id: time.time() * 1000 + 60_000})
    delivery = await _again(queue, second.id)
    assert delivery is None


async def _again(queue: EventQueue[bytes], event_id: str) -> object:
    """Receive the event once more, if it has come back."""
    try:
        delivery = await queue.receive(timeout=0, lease=60)
    except TimeoutError:
        return None
    assert delivery.id == event_id
    await delivery.ack()
    return None


async def test_extend_never_makes_a_lease_shorter(queue: EventQueue[bytes], db: redis.Redis) -> None:
    await queue.put(b"1", id="a")
    delivery = await queue.receive(lease=60)
    await delivery.extend(1)
    assert db.pttl(Okq.key("jobs", "lock", "a")) > 30_000
    await delivery.extend(600)
    assert db.pttl(Okq.key("jobs", "lock", "a")) > 300_000
    await delivery.ack()


async def test_many_claims_come_back_in_order(open_queue: Open) -> None:
    queue, other = await open_queue(), await open_queue()
    items = [b"%d" % number for number in range(100)]
    await queue.put_many(items)
    await queue.receive_many(60, lease=0.3)
    await asyncio.sleep(0.5)
    assert [one.raw for one in await other.receive_many(100)] == items


async def test_a_consumer_renews(open_queue: Open, db: redis.Redis) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put_many([b"1", b"2", b"3"])
    async with queue.consumer(lease=0.6, prefetch=3) as consumer:
        assert await anext(consumer) == b"1"
        with pytest.raises(TimeoutError):
            await other.receive(timeout=2)
        time.sleep(1.5)  # the event loop is blocked: a thread renews
        with pytest.raises(TimeoutError):
            await other.receive(timeout=0)
        assert [await anext(consumer), await anext(consumer)] == [b"2", b"3"]
    assert not await queue.exists()


async def test_a_block_cannot_begin_twice(open_queue: Open) -> None:
    queue = await open_queue()
    await queue.put(b"1")
    consumer = queue.consumer()
    for begun in (False, True):
        with pytest.raises(RuntimeError, match="begun already") if begun else contextlib.nullcontext():
            async with consumer:
                pass
    assert await queue.get() == b"1"


async def test_a_handler_that_is_stuck_loses_its_events(open_queue: Open, caplog: pytest.LogCaptureFixture) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put(b"1")
    async with queue.consumer("manual", lease=0.3, max_hold=0.5) as consumer:
        lost: list[Exception] = []
        delivery = await anext(consumer)
        consumer.on_lost(lost.append)
        again = await in_time(other.receive(lease=60))
        assert again.id == delivery.id
        with pytest.raises(LeaseLostError):
            await delivery.ack()
        assert isinstance(lost[0], LeaseLostError)
        await again.ack()
    assert "max_hold" in caplog.text


async def test_a_lost_item_is_an_error_of_the_loop(open_queue: Open, db: redis.Redis) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put_many([b"1", b"2"])

    async def consume() -> None:
        async with queue.consumer(lease=60, prefetch=1) as consumer:
            async for item in consumer:
                assert item == b"1"
                assert await event_steps.settle(
                    other._driver.steps, [((await other._driver.steps.peek()).id, b"")]
                ) == [False]  # type: ignore[union-attr]
                claimed = db.lrange(Okq.key("jobs", "claimed"), 0, -1)
                assert await event_steps.settle(other._driver.steps, [(claimed[0], b"")], "nack") == [True]

    with pytest.raises(LeaseLostError):
        await in_time(consume())
    assert [one.raw for one in await other.receive_many(5)] == [b"1", b"2"]


async def test_what_was_prefetched_goes_back_unseen(queue: EventQueue[bytes], db: redis.Redis) -> None:
    items = [b"%d" % number for number in range(10)]
    await queue.put_many(items)
    with pytest.raises(LookupError):
        async with queue.consumer(prefetch=10) as consumer:
            await anext(consumer)
            await anext(consumer)
            raise LookupError
    deliveries = await queue.receive_many(20)
    assert [one.raw for one in deliveries] == items[1:]
    assert [one.attempts for one in deliveries] == [2, *[1] * 8]
    for one in deliveries:
        await one.ack()
    assert consistent(db)


async def test_two_consumers_share(open_queue: Open) -> None:
    """A consumer takes no more than its share of what waits."""
    queue, other = await open_queue(bound=0), await open_queue()
    await queue.put_many(b"%d" % number for number in range(100))
    await queue.close()
    counts = []

    async def consume(source: EventQueue[bytes]) -> None:
        count = 0
        async with source.consumer() as consumer:
            async for _ in consumer:
                count += 1
                await asyncio.sleep(0.002)
        counts.append(count)

    await in_time(asyncio.gather(consume(queue), consume(other)))
    assert sum(counts) == 100
    assert min(counts) >= 10


async def test_the_loop_waits_for_what_others_have(open_queue: Open, db: redis.Redis, long_slices: None) -> None:
    """Closed and empty, but another consumer has an event, and fails to handle it."""
    queue, other = await open_queue(bound=0), await open_queue()
    await queue.put_many([b"1", b"2"])
    failing, staying = await other.receive_many(2, lease=600)
    await queue.close()
    got: list[bytes] = []

    async def consume() -> None:
        async with queue.consumer() as consumer:
            async for item in consumer:
                got.append(item)

    consuming = asyncio.create_task(consume())
    await blocked(db)
    await asyncio.sleep(0.2)
    await failing.nack()
    await eventually(lambda: got == [b"1"])
    await staying.ack()
    await in_time(consuming)
    assert got == [b"1"]


async def test_the_last_acknowledgement_ends_all_loops(open_queue: Open, db: redis.Redis, long_slices: None) -> None:
    queue, other = await open_queue(bound=0), await open_queue()
    await queue.put(b"1")
    delivery = await queue.receive(lease=600)
    await queue.close()

    async def consume(source: EventQueue[bytes]) -> list[bytes]:
        async with source.consumer() as consumer:
            return [item async for item in consumer]

    tasks = [asyncio.create_task(consume(await open_queue())) for _ in range(3)]
    await blocked(db, 3)
    await asyncio.sleep(0.2)
    await delivery.ack()
    assert await in_time(asyncio.gather(*tasks)) == [[], [], []]
    assert other.name == "jobs"


async def test_closing_the_object_gives_back(open_queue: Open) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put_many([b"1", b"2"])
    consumer = queue.consumer("manual", lease=600, prefetch=2)
    await consumer.__aenter__()
    await anext(consumer)
    await queue.aclose()
    assert [one.raw for one in await in_time(other.receive_many(5))] == [b"1", b"2"]
    assert (await other.statistics()).consumers == 0
    await consumer.__aexit__(None, None, None)


@pytest.mark.parametrize("settle", ["ack", "nack"])
async def test_settling_is_certain_after_a_cancellation(queue: EventQueue[bytes], settle: str, db: redis.Redis) -> None:
    await queue.put(b"1")
    delivery = await queue.receive(lease=600)
    method: Callable[[], Awaitable[None]] = getattr(delivery, settle)
    task = asyncio.ensure_future(method())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(task)
    assert await queue.qsize() == (settle == "nack")
    assert (await queue.statistics()).in_flight == 0
    assert consistent(db)


@pytest.mark.parametrize("taken", [1, 50, 99, 150])
async def test_what_was_read_ahead_goes_back_in_order(queue: EventQueue[bytes], db: redis.Redis, taken: int) -> None:
    """A large chunk is asked for in two halves, the second one while the body works on the first."""
    items = [b"%d" % number for number in range(300)]
    await queue.put_many(items)
    consumer = queue.consumer(prefetch=100)
    await consumer.__aenter__()
    assert [await anext(consumer) for _ in range(taken)] == items[:taken]
    error = LookupError()
    await consumer.__aexit__(LookupError, error, None)
    deliveries = await queue.receive_many(500)
    assert [one.raw for one in deliveries] == items[taken - 1 :]
    assert [one.attempts for one in deliveries] == [2, *[1] * (300 - taken)]
    for one in deliveries:
        await one.ack()
    assert consistent(db)


async def test_closing_in_the_middle_of_a_chunk(open_queue: Open) -> None:
    queue, other = await open_queue(), await open_queue()
    await queue.put_many(b"%d" % number for number in range(200))
    consumer = queue.consumer("manual", prefetch=64, lease=600)
    await consumer.__aenter__()
    for _ in range(40):
        await (await anext(consumer)).ack()
    await queue.aclose()
    with pytest.raises(ClientClosedError):
        await anext(consumer)
    rest = [one.raw for one in await in_time(other.receive_many(500))]
    assert rest == [b"%d" % number for number in range(40, 200)]


async def test_nothing_is_handed_out_after_its_lease(open_queue: Open) -> None:
    """The machine stood still for longer than the lease: what was prefetched may be with another consumer."""
    queue, other = await open_queue(), await open_queue()
    await queue.put_many([b"1", b"2", b"3"])
    async with queue.consumer("manual", lease=0.3, prefetch=2) as consumer:
        assert (await anext(consumer)).raw == b"1"
        queue.client.renewer.discard(consumer.hand.renewal)
        await asyncio.sleep(0.5)
        theirs = await in_time(other.receive_many(2, lease=600))
        assert [one.raw for one in theirs] == [b"1", b"2"]
        delivery = await in_time(anext(consumer))
        assert delivery.raw == b"3"
        await delivery.ack()
        for one in theirs:
            await one.ack()


async def test_a_prefetched_item_whose_lease_nobody_ended_is_still_ours(queue: EventQueue[bytes]) -> None:
    await queue.put_many([b"1", b"2"])
    async with queue.consumer("manual", lease=0.3, prefetch=2) as consumer:
        first = await anext(consumer)
        queue.client.renewer.discard(consumer.hand.renewal)
        await asyncio.sleep(0.5)
        second = await in_time(anext(consumer))
        assert (second.raw, second.attempts) == (b"2", 1)
        await second.ack()
        await first.ack()


async def test_a_repeated_pop_returns_what_is_still_its_own(open_queue: Open, db: redis.Redis) -> None:
    """The reply was lost, and the step is sent again: after some time, other consumers may have the events."""
    queue, other = await open_queue(), await open_queue()
    await queue.put_many([b"1", b"2", b"3"])
    steps = queue._driver.steps
    series = steps.series()

    async def pop() -> list[bytes]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        steps.send_pop(series, 2, Want(60_000), b"", answer.set_result)
        return [event.contents for event in (await answer).events]

    assert await pop() == [b"1", b"2"]
    series.number -= 1
    assert await pop() == [b"1", b"2"]
    assert (await queue.statistics()).in_flight == 2
    first = db.lrange(Okq.key("jobs", "claimed"), -1, -1)[0]
    assert await event_steps.settle(other._driver.steps, [(first, b"")], "nack") == [True]
    theirs = await other.receive(lease=60)
    assert theirs.raw == b"1"
    series.number -= 1
    assert await pop() == [b"2"]
    assert await pop() == [b"3"]
    series.number -= 2
    assert await pop() == []  # it comes after a later step: nobody reads this


async def test_claims_are_settled_in_any_order_and_those_of_others_stay(
    open_queue: Open, url: str, db: redis.Redis
) -> None:
    await open_queue(bound=0)
    async with Client(url) as client:
        steps = EventSteps(client, "jobs")
        for order, stolen in ((1, None), (-1, None), (1, b"2"), (1, b"4")):
            await event_steps.push(steps, [(b"%d" % number, b"x") for number in range(5)])
            popped = await event_steps.pop(steps, 5)
            assert isinstance(popped, Popped)
            claims = [(event.id, event.token) for event in popped.events][::order]
            if stolen is not None:
                db.set(f"queue:{{jobs}}:lock:{stolen.decode()}", "theirs")
            assert await event_steps.settle(steps, claims) == [event != stolen for event, _ in claims]
            assert db.lrange("queue:{jobs}:claimed", 0, -1) == [stolen] * (stolen is not None)
            assert db.hkeys("queue:{jobs}:items") == [stolen] * (stolen is not None)
            await steps.flush()
