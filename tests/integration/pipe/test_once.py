"""`pipe(dedup_id=)`: at least once, and yet no result is in the destination twice."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from apressure import (
    AsyncQueue,
    EventQueue,
    FileQueue,
    Many,
    Piped,
    QueueClosedError,
    UnsupportedError,
    pipe,
)
from tests import processes
from tests.integration.conftest import PATIENCE, eventually, fails, in_time
from tests.integration.pipe.conftest import begun, drained, items, same

ONCE: dict[str, Any] = {"dedup_id": bytes.decode, "dedup_window": 600.0}


@pytest.fixture(params=[AsyncQueue, EventQueue], ids=lambda kind: kind.__name__)
async def destination(request: pytest.FixtureRequest, url: str) -> AsyncIterator[Any]:
    kind: Any = request.param
    async with kind("out", url=url) as queue:
        await queue.create()
        yield queue
        await queue.delete()


@pytest.fixture
async def source(url: str) -> AsyncIterator[AsyncQueue[bytes]]:
    async with AsyncQueue[bytes]("in", url=url) as queue:
        await queue.create()
        yield queue
        await queue.delete()


async def test_what_was_put_before_is_not_put_again(source: Any, destination: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    await destination.put(b"1", dedup_id="1", dedup_window=600.0)  # by a stage that died before it acknowledged that
    await source.put_many(items(5))
    await source.close()
    done = await in_time(pipe(source, same, destination, **ONCE))
    assert done == Piped(5, 5, 0, exactly_once=False)
    assert sorted(await destination.get_many(9)) == items(5)
    assert "works at least once, and puts each dedup_id once in 600 s" in caplog.text


async def test_results_of_an_item_and_items_with_the_same_id(source: Any, destination: Any) -> None:
    async def split(item: bytes) -> Any:
        return None if item == b"2" else Many([item, item + b"'"])

    await source.put_many([*items(4), *items(2)])
    await source.close()
    assert await in_time(pipe(source, split, destination, **ONCE)) == Piped(6, 10, 0, exactly_once=False)
    assert await destination.get_many(20) == [b"0", b"0'", b"1", b"1'", b"3", b"3'"]


async def eventually_settled(source: Any, destination: Any, open_items: int) -> None:
    """Wait until each of these items is in one of the queues only: what was put has been acknowledged."""
    async with asyncio.timeout(PATIENCE):
        while (await source.statistics()).in_flight + await source.qsize() + await destination.qsize() != open_items:
            await asyncio.sleep(0.005)


async def test_as_many_as_there_is_room_for_are_acknowledged(source: Any, url: str) -> None:
    async with EventQueue("out", url=url) as destination:
        await destination.create(bound=3)
        await source.put_many(items(50))
        await source.close()
        piping = await begun(pipe(source, same, destination, **ONCE))
        got: list[bytes] = []
        while len(got) < 50:
            got += await in_time(destination.get_many(2))
            await eventually_settled(source, destination, 50 - len(got))
        assert got == items(50)
        assert (await in_time(piping)).handled == 50
        await destination.delete()


async def test_cancellations_double_nothing(source: Any, destination: Any) -> None:
    await source.put_many(items(30))
    await source.close()
    turns = 0

    async def slowly(item: bytes) -> bytes:
        nonlocal turns
        turns += 1
        await asyncio.sleep(0.002)
        return item

    for _ in range(6):
        before = turns
        piping = await begun(pipe(source, slowly, destination, concurrency=4, **ONCE))
        await eventually(lambda before=before, piping=piping: turns > before or piping.done())
        piping.cancel()
        await asyncio.wait([piping])
    await in_time(pipe(source, same, destination, **ONCE))
    assert sorted(await destination.get_many(99)) == sorted(items(30))
    assert turns


WORKER = """
import asyncio, sys
from apressure import AsyncQueue, EventQueue, pipe

async def same(item):
    return item

async def main(there, here):
    source, destination = AsyncQueue("in", url=there), EventQueue("out", url=here)
    await pipe(source, same, destination, shared=True, lease=0.5, dedup_id=bytes.decode, dedup_window=600.0)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
async def test_processes_that_are_killed_double_nothing_between_two_databases(source: Any, url: str) -> None:
    elsewhere = url.rsplit("/", 1)[0] + "/1"
    async with EventQueue("out", url=elsewhere) as destination:
        await destination.create()
        await source.put_many(items(3000))
        await source.close()
        for _ in range(8):
            process = await processes.start(sys.executable, "-c", WORKER, url, elsewhere)
            before = await destination.qsize()
            while await destination.qsize() == before < 3000 and process.returncode is None:
                await asyncio.sleep(0.002)
            if process.returncode is None:
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        await in_time(pipe(source, same, destination, shared=True, **ONCE))
        assert sorted(map(int, await drained(destination))) == list(range(3000))
        await destination.delete()


async def test_bad_arguments_begin_nothing(source: Any, destination: Any, tmp_path: Path, url: str) -> None:
    await source.put(b"1")
    await source.close()
    for wrong in (
        {"dedup_id": bytes.decode}, {"dedup_window": 60.0}, {**ONCE, "dedup_window": 0}, {**ONCE, "exactly_once": True},
    ):  # fmt: skip
        await fails(ValueError, pipe(source, same, destination, **wrong))
    for wrong in ({**ONCE, "dedup_id": "id"}, {**ONCE, "dedup_window": "60"}):
        await fails(TypeError, pipe(source, same, destination, **wrong))
    async with FileQueue(tmp_path / "spool") as files:
        await files.create()
        await fails(UnsupportedError, pipe(source, same, files, **ONCE), "remembers what was put")
    await destination.close()
    await fails(QueueClosedError, pipe(source, same, destination, **ONCE))
    assert await source.qsize() == 1


async def test_a_function_that_fails_is_a_failed_attempt(url: str, destination: Any) -> None:
    def named(item: bytes) -> Any:
        return {b"1": 7, b"2": ""}.get(item) if item in (b"1", b"2") else item.decode() + "/"[len(item) - 1 :]

    async with EventQueue("in", url=url, max_attempts=1) as source:
        await source.create()
        await source.put_many([*items(4), b"long"])
        await source.close()
        await in_time(pipe(source, same, destination, dedup_id=named, dedup_window=600.0))
        assert sorted(letter.item for letter in await source.dead_letters()) == [b"1", b"2"]
        await source.delete()
    assert sorted(await destination.get_many(9)) == [b"0", b"3", b"long"]
