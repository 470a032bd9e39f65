"""Looks at many queues: how many a second, which first, and that none is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from apressure.telemetry.reader import Reader


class Queue:
    """A queue that counts the looks at it."""

    def __init__(self, name: str, looks: list[str], hang: bool = False) -> None:
        self.name = name
        self._looks = looks
        self._hang = hang

    async def statistics(self) -> Any:
        self._looks.append(self.name)
        if self._hang:
            await asyncio.Event().wait()
        return self


@contextlib.asynccontextmanager
async def running(reader: Reader) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(reader.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert not reader._looking


async def until(reader: Reader, looks: list[str], count: int) -> None:
    async with asyncio.timeout(60):
        while len(looks) < count:
            reader.looked.clear()
            await reader.looked.wait()


async def test_each_of_many_queues_is_looked_at_in_turn_and_no_more_often_than_allowed() -> None:
    looks: list[str] = []
    reader = Reader(0.01, 5.0, most=200)
    for number in range(300):
        reader.add(Queue(str(number), looks))
    assert reader.period == 1.5
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with running(reader):
        await until(reader, looks, 1000)
    assert len(looks) <= 200 * (loop.time() - began + 1) + 1
    counts = Counter(looks)
    assert len(counts) == 300
    assert max(counts.values()) - min(counts.values()) <= 1


async def test_those_that_somebody_sees_are_looked_at_first_and_the_others_too() -> None:
    looks: list[str] = []
    reader = Reader(0.1, 5.0, most=100)
    samplers = [reader.add(Queue(str(number), looks)) for number in range(200)]
    reader.prefer({samplers[0]})
    async with running(reader):
        await until(reader, looks, 300)
        seen = Counter(looks)
        assert len(seen) == 200
        assert seen["0"] > max(count for name, count in seen.items() if name != "0")
        reader.prefer({samplers[199]})
        del looks[:]
        await until(reader, looks, 300)
        seen = Counter(looks)
        assert seen["199"] > max(count for name, count in seen.items() if name != "199")


async def test_many_that_are_seen_leave_half_of_the_looks_to_the_others() -> None:
    looks: list[str] = []
    reader = Reader(0.01, 5.0, most=400)
    samplers = [reader.add(Queue("others" if number % 2 else "seen", looks)) for number in range(100)]
    reader.prefer({sampler for sampler in samplers if sampler.queue.name == "seen"})
    async with running(reader):
        await until(reader, looks, 800)
    counts = Counter(looks)
    assert abs(counts["seen"] - counts["others"]) <= 100


async def test_queues_that_hang_delay_no_others_and_those_that_left_are_looked_at_no_more() -> None:
    looks: list[str] = []
    reader = Reader(0.01, 0.2)
    queues = [Queue("hangs", looks, hang=True), Queue("good", looks), Queue("leaves", looks)]
    for queue in queues:
        reader.add(queue)
    async with running(reader):
        async with asyncio.timeout(60):
            while looks.count("good") < 10 or "leaves" not in looks:
                await asyncio.sleep(0.01)
        assert looks.count("hangs") <= looks.count("good")
        reader.discard(queues[2])
        before = looks.count("leaves")
        looked = looks.count("good")
        async with asyncio.timeout(60):
            while looks.count("good") < looked + 5:
                await asyncio.sleep(0.01)
        assert looks.count("leaves") <= before + 1  # one may have been under way
        reader.add(queues[2])
        async with asyncio.timeout(60):
            while any(sampler.latest is None for sampler in reader.samplers):
                await asyncio.sleep(0.01)
    assert [bool(sampler.latest and sampler.latest.error) for sampler in reader.samplers] == [True, False, False]


@pytest.mark.parametrize("when", ["before", "during"])
async def test_a_reader_that_is_cancelled_ends_its_looks(when: str) -> None:
    looks: list[str] = []
    reader = Reader(0.01, 60.0)
    async with running(reader):
        reader.add(Queue("hangs", looks, hang=True))
        if when == "during":
            while not looks:
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(0)
