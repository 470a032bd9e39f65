"""Workers and waiting producers as a client without scripts sees and registers them."""

from __future__ import annotations

import asyncio
import re
import shlex

import pytest

from apressure import AsyncQueue
from apressure.core import backpressure, registration
from apressure.core.workers import MAX_SIZE, MOST
from apressure.embedded import EmbeddedServer
from apressure.testing.contract.steps import QUICK, begun, waiting
from tests.integration.acl_roles import DOCUMENT, allow, documented
from tests.integration.conftest import in_time
from tests.integration.workers.support import beat, registers
from tests.servers import admin

pytestmark = pytest.mark.leaves_keys

WORKERS = "apressure:__pressure__:orders:workers"


@pytest.fixture(autouse=True)
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "BEAT", QUICK)
    for name in ("PATIENCE", "BEAT", "SPREAD", "CHANGED"):
        monkeypatch.setattr(backpressure, name, QUICK)


async def test_what_others_have_written_is_left_out(server: EmbeddedServer) -> None:
    async with AsyncQueue("orders", url=server.url, scripting=False) as plain:
        with admin(server) as db:
            await plain.create()
            db.hset(WORKERS, mapping={"large/1": b"x" * (MAX_SIZE + 1), "other": b"9", "": b"0"})
            assert (await plain.statistics()).workers == ()
            db.delete(WORKERS)
            db.set(WORKERS, "text")
            assert (await plain.statistics()).workers == ()
            db.delete(WORKERS)
            db.hset(WORKERS, mapping={f"other/{number}": "9" for number in range(MOST + 2)})
            assert (await plain.statistics()).workers == ()
            assert await plain.drain("other") == 0  # it has removed them, so that those that work find a place
            assert db.hlen(WORKERS) == 0
        await plain.delete()


async def test_all_that_can_be_done_there(server: EmbeddedServer) -> None:
    async with AsyncQueue("orders", url=server.url, scripting=False) as plain:
        await plain.create()
        await registers(plain)
        await plain.delete()


async def test_a_beat_removes_what_has_expired(server: EmbeddedServer) -> None:
    queue = AsyncQueue("orders", url=server.url)
    async with queue, AsyncQueue("orders", url=server.url, scripting=False) as plain:
        await queue.create(1)
        await queue.put(b"1")
        with admin(server) as db:
            db.hset(WORKERS, "gone/1", b"1 1 p {}")
            assert await beat(queue, b"asked/1", b"{}", lasts=0.001) == 0
            value = db.hget(WORKERS, "asked/1")
            assert isinstance(value, bytes)
            db.hset(WORKERS, "asked/1", value.replace(b" w ", b" d "))
            put = await begun(plain.put(b"2"))
            await waiting(queue)
            names = db.hkeys(WORKERS)
            assert b"gone/1" not in names
            assert b"asked/1" in names  # its program may stand still, and has not seen that yet
            assert 0 < db.pttl(WORKERS) <= 60_000
        put.cancel()
        await in_time(asyncio.wait((put,)))
        await queue.delete()


@pytest.mark.parametrize("allowed", [False, True])
async def test_the_documented_rights(server: EmbeddedServer, *, allowed: bool) -> None:
    (more,) = re.findall(r"`('~apressure[^`]*)`", DOCUMENT.read_text().partition("### Without scripts")[2])
    rules = documented(plain=True)["producer"] + (shlex.split(more) if allowed else [])
    url = allow(server, "producer", rules)
    async with AsyncQueue("orders", url=server.url) as owner:
        await owner.create(1)
        async with AsyncQueue("orders", url=url, scripting=False, settle_timeout=0.3) as plain:
            await plain.put(b"1")
            put = await begun(plain.put(b"2"))
            if allowed:
                assert len(await waiting(owner)) == 1
                assert len((await plain.statistics()).waiting_producers) == 1
            else:
                await asyncio.sleep(3 * QUICK)
                assert (await owner.statistics()).waiting_producers == ()
            assert await owner.get(timeout=5) == b"1"
            await in_time(put)
        await owner.delete()


async def test_a_cancelled_put_whose_server_is_silent_waits_no_longer(server: EmbeddedServer) -> None:
    """Its operation ends in the background, when the server answers."""
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    queue = AsyncQueue("orders", url=server.url)
    async with queue, AsyncQueue("orders", url=server.url, scripting=False, settle_timeout=0.01) as plain:
        await plain.create(1)
        await plain.put(b"1")
        put = await begun(plain.put(b"2"))
        await waiting(queue)
        with admin(server) as db:
            db.client_pause(2000)
        put.cancel()
        await in_time(asyncio.wait((put,)))
        assert put.cancelled()
        await waiting(queue, lambda producers: not producers)
        assert problems == []
        await queue.delete()
