"""A paused queue of events: our clients take nothing until it is resumed; an okq does not know of that."""

from __future__ import annotations

import asyncio

import pytest
import redis

from apressure import EventQueue, QueueDoesNotExistError, QueueEmptyError, pipe
from apressure.events.engine.keys import EventKeys
from tests.integration.events.conftest import PATIENCE, Open, in_time
from tests.okq import Okq

KEYS = EventKeys("jobs")


async def test_all_who_wait_wake_when_it_is_resumed(open_queue: Open, long_slices: None) -> None:
    queues = [await open_queue() for _ in range(5)]
    await queues[0].create()
    waiting = [asyncio.create_task(queue.receive()) for queue in queues[:3]]  # before the pause, in line
    await asyncio.sleep(0.2)
    await queues[0].pause()
    waiting += [asyncio.create_task(queue.receive()) for queue in queues[3:]]
    await queues[0].put_many([b"%d" % number for number in range(5)])
    await asyncio.sleep(0.2)
    assert not any(task.done() for task in waiting)
    assert (await queues[0].statistics()).length == 5
    await queues[3].resume()
    got = [await in_time(task) for task in waiting]
    assert sorted(delivery.raw for delivery in got) == [b"%d" % number for number in range(5)]


async def test_a_client_that_gives_up_during_a_pause_leaves_nobody_waiting(open_queue: Open, long_slices: None) -> None:
    queues = [await open_queue() for _ in range(3)]
    await queues[0].create()
    waiting = [asyncio.create_task(queue.receive()) for queue in queues]
    await asyncio.sleep(0.2)
    await queues[0].pause()
    await queues[0].put(b"1")
    await asyncio.sleep(0.2)
    for task in waiting[:2]:
        task.cancel()
    await asyncio.wait(waiting[:2])
    await queues[0].resume()
    assert (await in_time(waiting[2])).raw == b"1"


async def test_events_of_okq_can_be_paused(open_queue: Open, okq: Okq, db: redis.Redis) -> None:
    queue = await open_queue()
    with pytest.raises(QueueDoesNotExistError):
        await queue.pause()
    okq.push("jobs", "a", b"1")
    assert await queue.pause()
    with pytest.raises(QueueEmptyError):
        await queue.get(timeout=0)
    assert okq.pop("jobs") is not None  # it does not know of the pause
    assert okq.ack("jobs", "a") == 1
    assert (await queue.statistics()).paused
    assert await queue.resume()
    assert not db.exists(*KEYS.okq, KEYS.control)


async def test_creating_it_ends_a_pause(open_queue: Open) -> None:
    queue = await open_queue()
    await queue.put(b"1")
    await queue.pause()
    waiting = asyncio.create_task(queue.receive())
    await asyncio.sleep(0.1)
    assert await queue.create(5)
    assert (await in_time(waiting)).raw == b"1"
    assert not await queue.resume()


async def test_expired_claims_go_back_during_a_pause(open_queue: Open) -> None:
    queue, other = await open_queue(bound=0), await open_queue()
    await queue.put(b"1")
    await queue.receive(lease=0.2)
    await queue.pause()
    waiting = asyncio.create_task(other.receive())
    async with asyncio.timeout(PATIENCE):
        while await queue.qsize() == 0:
            await asyncio.sleep(0.05)
    assert not waiting.done()
    await queue.resume()
    assert (await in_time(waiting)).attempts == 2


async def test_several_queues_at_once(open_queue: Open, url: str) -> None:
    first, second = await open_queue("jobs", bound=0), await open_queue("others", bound=0)
    await first.put(b"1")
    await first.pause()
    async with EventQueue.consume("jobs", "others", url=url) as consumer:
        waiting = asyncio.create_task(anext(consumer))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await second.put(b"2")
        delivery = await in_time(waiting)
        assert delivery.raw == b"2"
        await delivery.ack()
        await first.resume()
        delivery = await in_time(anext(consumer))
        assert delivery.raw == b"1"


async def test_a_paused_stage_moves_nothing(open_queue: Open) -> None:
    queue, out = await open_queue(bound=0), await open_queue("out", bound=0)
    await queue.pause()
    await queue.put_many([b"1", b"2"])
    await queue.close()

    async def keep(item: bytes) -> bytes:
        return item

    stage = asyncio.create_task(pipe(queue, keep, out))
    await asyncio.sleep(0.2)
    assert await out.qsize() == 0
    await queue.resume()
    await in_time(stage)
    assert await out.get_many(5) == [b"1", b"2"]


async def test_a_cancelled_pause_leaves_it_paused_or_not(open_queue: Open) -> None:
    queue = await open_queue(bound=0)
    for turns in range(20):
        task = asyncio.create_task(queue.pause())
        for _ in range(turns % 4):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        paused = (await queue.statistics()).paused
        assert await queue.resume() == paused
