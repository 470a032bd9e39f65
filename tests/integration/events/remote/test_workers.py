"""Workers and waiting producers of a queue behind our okq server: those of its Redis, and of a server that is older."""

from __future__ import annotations

import asyncio

import pytest

from apressure import EventQueue, ServerTooOldError, serve
from apressure.core import backpressure, registration
from apressure.events.server.commands import Commands
from apressure.testing.contract.steps import QUICK, begun, seen, waiting
from tests.integration.conftest import fails, in_time
from tests.integration.events.remote.conftest import serving

pytestmark = [pytest.mark.leaves_keys, pytest.mark.parametrize("server", ["valkey"], indirect=True)]


@pytest.fixture(autouse=True)
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATIENCE", "BEAT", "SPREAD", "CHANGED"):
        monkeypatch.setattr(backpressure, name, QUICK)
    monkeypatch.setattr(registration, "BEAT", QUICK)
    monkeypatch.setattr(registration, "FIRST", QUICK)


async def test_those_of_the_server_and_of_its_redis_see_one_another(url: str) -> None:
    handled: list[bytes] = []

    async def handle(item: bytes) -> None:
        handled.append(item)

    async with serving(url) as address:
        queues = EventQueue("jobs", url=address), EventQueue("jobs", url=url)
        async with queues[0] as remote, queues[1] as direct:
            await remote.create(1)
            for there, here in ((remote, direct), (direct, remote)):
                service = asyncio.ensure_future(serve(handle, there, signals=()))
                (worker,) = await seen(here)
                assert await here.drain(worker.id) == 1
                assert (await in_time(service)).drained
                await seen(here, lambda found: not found)
                await there.put(b"1")
                put = await begun(there.put(b"2"))
                await waiting(here)
                assert await here.get_many(9, timeout=5) == [b"1"]
                await in_time(put)
                assert await here.get(timeout=5) == b"2"
                await waiting(here, lambda found: not found)
            await remote.every("tick", 60, b"x")
            assert (await remote.statistics()).schedules == 1
            await remote.delete()


async def test_a_server_from_before_the_command_serves_all_the_same(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    every = Commands._all
    monkeypatch.setattr(
        Commands, "_all", lambda self: [one for one in every(self) if not one.usage.startswith("QWORKERS")]
    )
    handled = asyncio.Event()

    async def handle(_: bytes) -> None:
        handled.set()

    async with serving(url) as address, EventQueue("jobs", url=address) as queue:
        await queue.create(1)
        service = asyncio.ensure_future(serve(handle, queue, signals=()))
        await queue.put(b"1")
        await in_time(handled.wait())
        await asyncio.sleep(3 * QUICK)
        statistics = await queue.statistics()
        assert (statistics.workers, statistics.waiting_producers) == ((), ())
        error = await fails(ServerTooOldError, queue.drain("one"))
        assert "QWORKERS" in str(error)
        service.cancel()
        await in_time(asyncio.wait((service,)))
        await queue.delete()
