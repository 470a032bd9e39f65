"""apressure and plain clients on one queue: nothing lost, doubled or out of order, and the statistics exact."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
import redis

from apressure.exceptions import PressureError
from tests import processes
from tests.integration.interoperability.both import (
    BOUNDS,
    KINDS,
    NAME,
    PATIENCE,
    PREFIX,
    ROOT,
    a_queue,
    in_thread,
    nothing_left,
    open_queue,
    outcome_of,
)
from tests.reference import QueueClosedError, ReferenceQueue, snapshot

Producing = Callable[[str, str, int], Coroutine[Any, Any, None]]
"""Puts messages: URL, label, count."""
Consuming = Callable[[str], Coroutine[Any, Any, list[bytes]]]
"""Gets messages until the queue is closed: URL."""


def messages(label: str, count: int) -> list[bytes]:
    return [f"{label}:{number}".encode() for number in range(count)]


async def our_puts(url: str, label: str, count: int) -> None:
    async with open_queue(url) as queue:
        for message in messages(label, count):
            await queue.put(message, timeout=PATIENCE)


async def our_put_many(url: str, label: str, count: int) -> None:
    async with open_queue(url) as queue:
        assert await queue.put_many(messages(label, count), timeout=PATIENCE) == count


async def our_producer_block(url: str, label: str, count: int) -> None:
    async with open_queue(url) as queue, queue.producer(close=False) as producer:
        for message in messages(label, count):
            await producer.put(message)


async def our_exclusive_producer(url: str, label: str, count: int) -> None:
    async with open_queue(url) as queue, queue.producer(close=False, exclusive=True) as producer:
        for message in messages(label, count):
            await producer.put(message)


async def our_plain_puts(url: str, label: str, count: int) -> None:
    async with open_queue(url, scripting=False) as queue:
        for message in messages(label, count):
            await queue.put(message, timeout=PATIENCE)


async def our_loop(url: str) -> list[bytes]:
    async with open_queue(url) as queue:
        return [message async for message in queue]


async def our_plain_loop(url: str) -> list[bytes]:
    async with open_queue(url, scripting=False) as queue:
        return [message async for message in queue]


async def our_consumer_block(url: str) -> list[bytes]:
    async with open_queue(url) as queue, queue.consumer() as consumer:
        return [message async for message in consumer]


async def our_get_many(url: str) -> list[bytes]:
    got: list[bytes] = []
    async with open_queue(url) as queue:
        while (more := await outcome_of(queue.get_many(7, timeout=PATIENCE))) != "QueueClosedError":
            assert isinstance(more, list), more
            got += more
    return got


async def our_receive(url: str) -> list[bytes]:
    got: list[bytes] = []
    async with open_queue(url) as queue:
        while (delivery := await outcome_of(queue.receive(timeout=PATIENCE))) != "QueueClosedError":
            assert not isinstance(delivery, str), delivery
            got.append(delivery.item)
            await delivery.ack()
    return got


def reference_puts(bound: int = 0, **kind: Any) -> Producing:
    """With a bound, each put looks whether it is kept."""

    async def produce(url: str, label: str, count: int) -> None:
        def work(queue: ReferenceQueue) -> None:
            for message in messages(label, count):
                queue.put(message, PATIENCE)
                assert not bound or queue.length() <= bound

        await in_thread(url, work, **kind)

    return produce


def reference_gets(**kind: Any) -> Consuming:
    async def consume(url: str) -> list[bytes]:
        def work(queue: ReferenceQueue) -> list[bytes]:
            got: list[bytes] = []
            try:
                while True:
                    got.append(queue.get(PATIENCE))
            except QueueClosedError:
                return got

        result: list[bytes] = await in_thread(url, work, **kind)
        return result

    return consume


async def traffic(
    url: str, db: redis.Redis, producers: Sequence[Producing], consumers: Sequence[Consuming], bound: int, count: int
) -> None:
    """Let them all work on one queue until it is closed and empty; nothing may be lost, doubled or out of order."""
    async with a_queue(url, bound) as queue:
        async with asyncio.TaskGroup() as group:
            consuming = [group.create_task(consume(url)) for consume in consumers]
            async with asyncio.TaskGroup() as producing:
                for number, produce in enumerate(producers):
                    producing.create_task(produce(url, f"producer {number}", count))
            await queue.close(timeout=PATIENCE)
        got = [task.result() for task in consuming]
        sent = [message for number in range(len(producers)) for message in messages(f"producer {number}", count)]
        assert sorted(message for one in got for message in one) == sorted(sent)
        for one in got:
            of_producer: dict[bytes, list[int]] = defaultdict(list)
            for message in one:
                label, _, ordinal = message.partition(b":")
                of_producer[label].append(int(ordinal))
            for numbers in of_producer.values():
                assert numbers == sorted(numbers)
        size = sum(map(len, sent))
        statistics = await queue.statistics()
        assert (statistics.produced_messages, statistics.produced_bytes) == (len(sent), size)
        assert (statistics.consumed_messages, statistics.consumed_bytes) == (len(sent), size)
        assert (statistics.length, statistics.in_flight) == (0, 0)
        seen = snapshot(db, PREFIX, NAME)
        assert (seen[":producer_free"], seen[":consumer_free"]) == (1, 1)
    assert nothing_left(db)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(
    "consume", [our_loop, our_plain_loop, our_consumer_block, our_get_many, our_receive], ids=lambda one: one.__name__
)
async def test_reference_producer_and_our_consumer(url: str, db: redis.Redis, bound: int, consume: Consuming) -> None:
    # (Two clients that work step by step exceed a bound of 2 or more by themselves: see permit_model.py.)
    checked = bound if consume is not our_plain_loop or bound == 1 else 0
    await traffic(url, db, [reference_puts(checked)], [consume], bound, 100)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(
    "produce",
    [our_puts, our_put_many, our_producer_block, our_exclusive_producer, our_plain_puts],
    ids=lambda one: one.__name__,
)
async def test_our_producer_and_reference_consumer(url: str, db: redis.Redis, bound: int, produce: Producing) -> None:
    await traffic(url, db, [produce], [reference_gets()], bound, 100)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("kind", KINDS)
async def test_two_producers_and_two_consumers(url: str, db: redis.Redis, bound: int, kind: str) -> None:
    flags = KINDS[kind]
    await traffic(url, db, [reference_puts(**flags), our_puts], [reference_gets(**flags), our_loop], bound, 100)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_crowd(url: str, db: redis.Redis, kind: str) -> None:
    flags = KINDS[kind]
    producers = [our_puts, our_put_many, our_plain_puts, reference_puts(), reference_puts(**flags)]
    consumers = [our_loop, our_plain_loop, our_get_many, our_receive, reference_gets(), reference_gets(**flags)]
    await traffic(url, db, producers, consumers, 3, 60)


@pytest.mark.parametrize("bound", [0, 1])
async def test_reference_clients_in_other_processes(url: str, db: redis.Redis, bound: int) -> None:
    command = [sys.executable, "-m", "tests.reference"]
    where = ["--url", url, "--name", NAME, "--timeout", str(PATIENCE)]
    async with open_queue(url) as queue:
        await queue.create(bound)
        producer = processes.Popen([*command, "put", *where, "--count", "200", "--label", "m", "--close"], cwd=ROOT)
        try:
            assert [message async for message in queue] == messages("m", 200)
        finally:
            producer.wait()
        await queue.delete(timeout=PATIENCE)

        await queue.create(bound)
        consumer = processes.Popen([*command, "get", *where, "--delete"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            async with queue.producer() as ours:
                for message in messages("m", 200):
                    await ours.put(message)
        finally:
            output, _ = await asyncio.to_thread(consumer.communicate)
        assert output.split() == [message.decode() for message in messages("m", 200)]
        assert consumer.returncode == 0
    assert nothing_left(db)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bound", [1, 2])
async def test_the_permits_are_right_after_any_client(
    url: str, db: redis.Redis, scripting: bool, bound: int, kind: str
) -> None:
    """Some clients leave a permit in a full queue, or two: one step of ours puts that right."""
    async with a_queue(url, bound, scripting=scripting) as queue:
        reference = ReferenceQueue(db, NAME, **KINDS[kind])
        for _ in range(3):
            while await outcome_of(asyncio.to_thread(reference.put_nowait, b"1")) is None:
                pass
            reference.get()
            with contextlib.suppress(PressureError):
                await queue.put_nowait(b"2")
            await queue.get()
            seen = snapshot(db, PREFIX, NAME)
            room = len(seen["messages"]) < bound
            assert seen[":not_full"] == int(room), (kind, seen)
