"""The fast subset on fakeredis, as users run it in their unit tests."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest

from apressure import (
    AsyncQueue,
    Client,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
)
from tests import processes
from tests.integration.conftest import fails, in_time


@pytest.fixture
async def queue() -> AsyncIterator[AsyncQueue[Any]]:
    async with AsyncQueue("jobs", redis=fakeredis.FakeAsyncRedis()) as opened:
        await opened.create(bound=2)
        yield opened


async def test_gets(queue: AsyncQueue[bytes]) -> None:
    """What the contract, which has no get, does not show (see tests/contract)."""
    with pytest.raises(QueueEmptyError):
        await queue.get_nowait()
    await fails(QueueEmptyError, queue.get(timeout=0.05))
    getting = asyncio.create_task(queue.get())
    await asyncio.sleep(0.02)
    await queue.put(b"1")
    assert await in_time(getting) == b"1"
    await queue.put_many([b"2", b"3"])
    await queue.put(b"4", force=True)
    assert [await queue.get(), await queue.get_nowait(), await queue.get_many(5)] == [b"2", b"3", [b"4"]]
    statistics = await queue.statistics()
    assert (statistics.produced_messages, statistics.consumed_bytes) == (4, 4)
    await queue.put_many([b"5", b"6"])
    await queue.close()
    assert [item async for item in queue] == [b"5", b"6"]
    for ended in (queue.get(), queue.close()):
        with pytest.raises(QueueClosedError):
            await ended
    async with queue.consumer(delete=True) as consumer:
        assert [item async for item in consumer] == []
    for missing in (queue.get(), queue.close(), queue.delete(), queue.qsize()):
        with pytest.raises(QueueDoesNotExistError):
            await missing


async def test_two_clients_of_one_fake_server() -> None:
    server = fakeredis.FakeServer()
    one, two = (fakeredis.FakeAsyncRedis(server=server) for _ in range(2))
    async with AsyncQueue("jobs", redis=one) as putter, Client(redis=two) as client:
        getter: AsyncQueue[bytes] = AsyncQueue("jobs", client=client)
        await putter.create()
        getting = asyncio.create_task(getter.get())
        await asyncio.sleep(0.02)
        await putter.put(b"x")
        assert await in_time(getting) == b"x"
        assert await client.queues() == ["jobs"]
    assert await one.ping()


async def test_a_fake_client_that_decodes_its_own_replies() -> None:
    async with AsyncQueue("jobs", redis=fakeredis.FakeAsyncRedis(decode_responses=True)) as queue:
        await queue.create()
        await queue.put(b"\xff\x00")
        assert await queue.get() == b"\xff\x00"


WITHOUT_LUA = """
import asyncio, sys
sys.modules["lupa"] = None  # as where fakeredis was installed without its extra
import fakeredis
from apressure import AsyncQueue, ScriptingRefusedError

async def main():
    server = fakeredis.FakeAsyncRedis()
    async with AsyncQueue("jobs", redis=server, scripting=False) as plain:
        await plain.create()
    async with AsyncQueue("jobs", redis=server) as queue:
        try:
            await queue.put(b"1")
        except ScriptingRefusedError as error:
            print(error)

asyncio.run(main())
"""


def test_fakeredis_without_lua_says_what_to_install() -> None:
    done = processes.run([sys.executable, "-c", WITHOUT_LUA], capture_output=True, text=True, timeout=60, check=False)
    assert "fakeredis cannot run scripts" in done.stdout, done.stderr
    assert "pip install 'fakeredis[lua]>=2.40', or use scripting=False" in done.stdout
    assert "fakeredis[lua]>=2.40" in (Path(__file__).parents[3] / "pyproject.toml").read_text()


async def test_a_pause(queue: AsyncQueue[bytes]) -> None:
    assert await queue.pause()
    await queue.put(b"1")
    await fails(QueueEmptyError, queue.get_nowait(), "is paused")
    getting = asyncio.create_task(queue.get())
    await asyncio.sleep(0.02)
    assert not getting.done()
    assert await queue.resume()
    assert await in_time(getting) == b"1"


async def test_a_codec(queue: AsyncQueue[bytes]) -> None:
    async with AsyncQueue("objects", client=queue.client, codec="json") as objects:
        await objects.create()
        await objects.put({"a": [1, None]})
        assert await objects.get() == {"a": [1, None]}
