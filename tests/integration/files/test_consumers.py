"""Producers and consumers as blocks, and how a closed queue ends."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest

from apressure import (
    ClientClosedError,
    DecodeError,
    FileQueue,
    LeaseLostError,
    OperationUnblockedError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueOpenError,
)
from apressure.files.storage.directory import Directory
from tests.integration.files.conftest import Clock, Make, drain, files
from tests.integration.files.test_waiting import PATIENCE, parked


def messages(queue: FileQueue[Any]) -> list[str]:
    return [name for name in files(queue) if not name.startswith(".queue-v1-")]


async def handled_by(queue: FileQueue[Any], **options: Any) -> list[bytes]:
    async with queue.consumer(**options) as consumer:
        return [item async for item in consumer]


async def test_consumers_share_a_queue_until_it_is_drained(make: Make) -> None:
    queue = make(bound=5)
    await queue.create()
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        consuming = [group.create_task(handled_by(make())) for _ in range(3)]
        async with queue.producer() as producer:
            assert await producer.put_many(b"%d" % number for number in range(60)) == 60
    shares = [task.result() for task in consuming]
    assert sorted((item for share in shares for item in share), key=int) == [b"%d" % number for number in range(60)]
    assert all(share == sorted(share, key=int) for share in shares)
    assert messages(queue) == []


async def test_an_item_is_acknowledged_when_the_loop_goes_on(queue: FileQueue[bytes]) -> None:
    await queue.put_many([b"a", b"b"])
    async with queue.consumer() as consumer:
        assert await anext(consumer) == b"a"
        assert (consumer.attempts, consumer.redelivered) == (1, False)
        assert len(files(queue)) == 2
        assert await anext(consumer) == b"b"
        assert len(files(queue)) == 1
    assert files(queue) == []


@pytest.mark.parametrize("prefetch", [None, 3])
async def test_a_block_that_fails_gives_back_what_it_has(make: Make, prefetch: int | None) -> None:
    queue = make()
    await queue.put_many([b"a", b"b", b"c", b"d"])
    with pytest.raises(LookupError):
        async with queue.consumer(prefetch=prefetch) as consumer:
            await anext(consumer)
            await anext(consumer)
            raise LookupError
    assert all(name.isdigit() for name in files(queue))
    attempts = [(delivery.raw, delivery.attempts) for delivery in await queue.receive_many(5)]
    assert attempts == [(b"b", 2), (b"c", 1), (b"d", 1)]  # a prefetched item that no loop has seen does not count


async def test_what_goes_back_is_in_order_at_every_moment(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who lists the directory between two renames must not get a later message first."""
    queue = make()
    await queue.put_many([b"a", b"b", b"c", b"d"])
    rename, seen = Directory._rename, list[list[str]]()

    def watched(directory: Directory, before: str, after: str) -> bool:
        renamed = rename(directory, before, after)
        seen.append([name for name in messages(queue) if "." not in name])
        return renamed

    with pytest.raises(ZeroDivisionError):
        async with queue.consumer(prefetch=4, ack="manual") as consumer:
            for _ in range(2):
                await anext(consumer)
            ids = [name.partition(".")[0] for name in messages(queue)]
            monkeypatch.setattr(Directory, "_rename", watched)
            raise ZeroDivisionError
    assert seen == [ids[: count + 1] for count in range(4)]
    assert await drain(queue) == [b"a", b"b", b"c", b"d"]


async def test_a_block_that_is_cancelled_gives_back_what_it_has(make: Make) -> None:
    queue = make()
    await queue.put_many([b"a", b"b", b"c"])

    async def consume() -> None:
        async with queue.consumer(prefetch=3) as consumer:
            async for _ in consumer:
                await asyncio.Event().wait()

    consuming = asyncio.create_task(consume())
    async with asyncio.timeout(PATIENCE):
        while (await queue.statistics()).in_flight < 3:
            await asyncio.sleep(0.005)
    consuming.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await consuming
    assert await drain(queue) == [b"a", b"b", b"c"]


async def test_deliveries_are_settled_by_hand(make: Make) -> None:
    queue = make()
    await queue.put_many([b"a", b"b", b"c"])
    await queue.close()
    deliveries = []
    async with queue.consumer("manual") as consumer:
        async for delivery in consumer:
            deliveries.append(delivery)
        assert [delivery.raw for delivery in deliveries] == [b"a", b"b", b"c"]
        await deliveries[0].ack()
        await deliveries[1].nack()
        assert (await anext(consumer)).redelivered
    assert sorted([(one.raw, one.attempts) for one in await queue.receive_many(5)]) == [(b"b", 3), (b"c", 2)]


async def test_a_consumer_renews_the_leases_of_what_it_has(make: Make) -> None:
    queue, other = make(), make()
    await queue.put_many([b"a", b"b"])
    async with queue.consumer("manual", lease=2, prefetch=2) as consumer:
        delivery = await anext(consumer)
        expired = delivery.expires
        async with asyncio.timeout(PATIENCE):
            while delivery.expires < expired + timedelta(seconds=2):  # renewed after it would have expired
                await asyncio.sleep(0.01)
        with pytest.raises(QueueEmptyError):
            await other.receive(timeout=0.1)
        await delivery.ack()
        assert (await anext(consumer)).attempts == 1


async def test_a_renewal_does_not_shorten_a_lease(make: Make) -> None:
    queue = make()
    await queue.put(b"a")
    async with queue.consumer("manual", lease=3) as consumer:
        delivery = await anext(consumer)
        await delivery.extend(1000)
        expires = delivery.expires
        await asyncio.sleep(1.2)  # a third of the lease is over
        assert delivery.expires == expires


async def test_a_lost_lease_is_noticed(make: Make, clock: Clock) -> None:
    queue, other = make(clock=clock), make(clock=clock)
    await queue.put_many([b"a", b"b"])
    lost: list[Exception] = []
    async with queue.consumer(lease=0.3, prefetch=2) as consumer:
        consumer.on_lost(lost.append)
        assert await anext(consumer) == b"a"
        clock.now += 10
        first, second = await other.receive_many(2)
        async with asyncio.timeout(PATIENCE):
            while not lost:
                await asyncio.sleep(0.01)
        assert isinstance(lost[0], LeaseLostError)
        with pytest.raises(LeaseLostError):
            await anext(consumer)
        await first.ack()
        await queue.put(b"c")
        assert await anext(consumer) == b"c"  # the prefetched one is another consumer's
    await second.ack()
    assert len(lost) == 1
    assert files(queue) == []


async def test_a_message_that_cannot_be_decoded_goes_back(make: Make) -> None:
    queue = make(codec="json")
    await make().put(b"{")
    with pytest.raises(DecodeError):
        await handled_by(queue)
    assert (await make().receive()).redelivered


async def test_a_consumer_waits_for_what_others_have_in_hand(make: Make) -> None:
    queue, other = make(), make()
    await queue.put_many([b"a", b"b"])
    failing, done = await other.receive_many(2)
    await queue.close()
    consuming = await parked(queue, handled_by(queue))
    with pytest.raises(QueueClosedError):  # a single receive does not
        await queue.receive(timeout=PATIENCE)
    await failing.nack()
    await done.ack()
    assert await asyncio.wait_for(consuming, PATIENCE) == [b"a"]


async def test_a_consumer_gets_what_a_consumer_that_died_had(make: Make) -> None:
    queue = make()
    await queue.put(b"a")
    await make().receive(lease=0.3)
    await queue.close()
    assert await asyncio.wait_for(handled_by(queue), PATIENCE) == [b"a"]


@pytest.mark.parametrize("consumers", [1, 3])
async def test_consumers_delete_a_queue_that_is_drained(make: Make, consumers: int) -> None:
    queue = make()
    await queue.create(bound=2)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        others = [make() for _ in range(consumers)]
        for other in others:
            await other.qsize()  # opens it; one that came after the end would make the queue again
        consuming = [group.create_task(handled_by(other, delete=True)) for other in others]
        async with queue.producer() as producer:
            await producer.put_many([b"a", b"b", b"c"])
    assert sorted(item for task in consuming for item in task.result()) == [b"a", b"b", b"c"]
    assert not await queue.exists()


async def test_a_queue_with_something_left_is_not_deleted(make: Make) -> None:
    queue = make()
    await queue.put(b"a")
    await queue.close()
    async with queue.consumer("manual", delete=True) as consumer:
        async for _ in consumer:
            pass
    assert await drain(queue) == [b"a"]


async def test_a_queue_that_is_closed_stays_closed(make: Make) -> None:
    queue = make()
    with pytest.raises(QueueDoesNotExistError):
        await queue.close()
    await queue.create()
    with pytest.raises(QueueOpenError):
        await queue.wait_closed(timeout=0)
    await queue.close()
    for one in (queue, make()):
        assert await one.closed()
        await one.wait_closed()
        with pytest.raises(QueueClosedError):
            await one.close()
        with pytest.raises(QueueClosedError):
            await one.put_nowait(b"a")
        with pytest.raises(QueueClosedError):
            await one.receive()
    assert messages(queue) == []


async def test_a_producer_that_fails_leaves_the_queue_open(queue: FileQueue[bytes]) -> None:
    producer = queue.producer()
    with pytest.raises(RuntimeError, match="inside the producer's block"):
        await producer.put(b"a")
    with pytest.raises(LookupError):
        async with producer:
            await producer.put_nowait(b"a")
            raise LookupError
    assert not await queue.closed()
    async with queue.producer(close=False) as another:
        await another.put(b"b")
    assert not await queue.closed()


async def test_the_owner_of_the_object_ends_what_waits(make: Make) -> None:
    queue = make()
    consuming = await parked(queue, handled_by(queue))
    assert await queue.unblock() == 1
    with pytest.raises(OperationUnblockedError):
        await consuming
    await queue.put_many([b"a", b"b"])
    async with queue.consumer(prefetch=2) as consumer:
        await anext(consumer)
        await queue.aclose()
        assert all(name.isdigit() for name in files(queue))  # both have gone back
        with pytest.raises(ClientClosedError):
            await anext(consumer)


async def test_a_consumer_that_is_used_wrongly(queue: FileQueue[bytes]) -> None:
    await queue.put(b"a")
    for wrong in ({"ack": "never"}, {"prefetch": 0}, {"lease": 0}, {"timeout": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            queue.consumer(**wrong)  # type: ignore[call-overload]
    consumer = queue.consumer()
    with pytest.raises(RuntimeError, match="inside the consumer's block"):
        await anext(consumer)
    async with consumer:
        await anext(consumer)
        with pytest.raises(RuntimeError, match="another task"):
            await asyncio.create_task(anext(consumer))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"does not take a consumer.*apressure\.pipe"):
            await queue.put_many(consumer)
        with pytest.raises(RuntimeError, match="begun already"):
            await consumer.__aenter__()


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("how", ["later", "why", "release"])
async def test_a_cancelled_return_leaves_nothing_in_flight(make: Make, threads: bool, how: str) -> None:
    queue = make(threads=threads)
    await queue.create()
    for turns in range(8):
        await queue.put(b"one")
        async with queue.consumer("manual") as consumer:
            delivery = await anext(consumer)
            back = {"later": delivery.nack("why", delay=60), "why": delivery.nack("why"), "release": delivery.release()}
            returning = asyncio.ensure_future(back.pop(how))
            for other in back.values():
                other.close()
            for _ in range(turns):
                await asyncio.sleep(0)
            returning.cancel()
            await asyncio.wait([returning])
        found = await queue.statistics()
        assert (found.length + found.delayed, found.in_flight) == (1, 0)
        await queue.purge()
        await queue.promote()
        await queue.purge()
