"""Producers that wait for room: they are seen, expire when they are killed, and disturb no put."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import pytest
import redis

from apressure import AsyncQueue, EventQueue, QueueDoesNotExistError, TaskQueue, pipe
from apressure.core import backpressure, registration
from apressure.core.workers import Letter, encode
from apressure.embedded import EmbeddedServer
from apressure.testing.contract.steps import QUICK, begun, waiting
from tests import processes
from tests.integration.acl_roles import allow, documented, without
from tests.integration.commands import environment
from tests.integration.conftest import eventually, fails, in_time
from tests.integration.workers.support import beat, record_of
from tests.servers import admin, frozen

pytestmark = pytest.mark.leaves_keys
on_valkey = pytest.mark.parametrize("server", ["valkey"], indirect=True)

KINDS: dict[str, Any] = {"AsyncQueue": AsyncQueue, "EventQueue": EventQueue, "TaskQueue": TaskQueue}
FEW = 500
"""With as many registrations, a queue takes no producer's."""


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATIENCE", "BEAT", "SPREAD", "CHANGED"):
        monkeypatch.setattr(backpressure, name, QUICK)
    monkeypatch.setattr(registration, "BEAT", QUICK)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def opened(kind: str, url: str, name: str = "jobs", **options: Any) -> Any:
    """A queue of texts."""
    return KINDS[kind](name, url=url, codec="text", **options)


def producer_record(**more: Any) -> bytes:
    return encode({"host": "far", "pid": 7, "version": "1", "age": 60.5, "puts": 2, **more})


# Processes.

PUTTING = """
import asyncio, sys
import apressure
from apressure.core import backpressure, registration

backpressure.PATIENCE = 0.05
backpressure.BEAT, backpressure.SPREAD, backpressure.LASTS = 0.1, 0.1, 2.0

async def main():
    async with getattr(apressure, sys.argv[1])("jobs", url=sys.argv[2], codec="text") as queue:
        async with queue.producer() as producer:
            await producer.put_many(["1", "2"])

asyncio.run(main())
"""


@on_valkey
async def test_a_producer_that_is_killed_is_not_seen_any_more_when_its_registration_has_expired(
    kind: str, url: str
) -> None:
    async with opened(kind, url) as queue:
        await queue.create(1)
        with processes.Popen([sys.executable, "-c", PUTTING, kind, url], env=environment(url)) as process:
            try:
                (producer,) = await waiting(queue)
                assert (producer.pid, producer.puts) == (process.pid, 1)
            finally:
                process.kill()
        assert (await queue.statistics()).waiting_producers
        await waiting(queue, lambda found: not found)
        assert (await queue.statistics()).length == 1


@on_valkey
async def test_a_producer_of_another_process_is_seen_until_it_finds_room(kind: str, url: str) -> None:
    async with opened(kind, url) as queue:
        await queue.create(1)
        with processes.Popen([sys.executable, "-c", PUTTING, kind, url], env=environment(url)) as process:
            try:
                await waiting(queue)
                await queue.get(timeout=5)
                await waiting(queue, lambda found: not found)
                assert await asyncio.to_thread(process.wait, 30) == 0
            finally:
                process.kill()
        statistics = await queue.statistics()
        assert (statistics.length, statistics.closed) == (1, True)


# Trouble.


async def test_the_producers_of_a_server_that_restarts_are_seen_again(kind: str, own: EmbeddedServer) -> None:
    async with (
        opened(kind, own.url) as queue,
        opened(kind, own.url) as full,
    ):
        await queue.create(1)
        await queue.put("1")
        put = await begun(full.put("2"))
        await waiting(queue)
        own.stop()
        own.start()
        with admin(own) as db:
            db.delete(*db.keys("apressure:*workers*"))
        await waiting(queue)
        await queue.get(timeout=5)
        await in_time(put)
        await waiting(queue, lambda found: not found)


async def test_a_put_ends_at_once_while_its_server_stands_still(kind: str, own: EmbeddedServer) -> None:
    async with opened(kind, own.url) as queue:
        await queue.create(1)
        await queue.put("1")
        full = opened(kind, own.url, settle_timeout=0.5)
        put = await begun(full.put("2"))
        await waiting(queue)
        with frozen(own):
            put.cancel()
            await in_time(asyncio.wait((put,)))
            await in_time(full.aclose())
        assert (await queue.statistics()).length == 1


@on_valkey
async def test_a_queue_that_is_deleted_keeps_no_producers(kind: str, url: str, db: redis.Redis) -> None:
    async with opened(kind, url) as queue, opened(kind, url) as full:
        await queue.create(1)
        await queue.put("1")
        put = await begun(full.put("2"))
        await waiting(queue)
        await queue.delete()
        await fails(QueueDoesNotExistError, put)
        await eventually(lambda: not db.keys("apressure:*workers*"))


@on_valkey
async def test_a_put_without_the_right_to_register_waits_and_is_put(
    url: str, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="apressure")
    rules = documented(plain=False)["producer"]
    async with AsyncQueue[bytes]("orders", url=url) as owner:
        await owner.create(1)
        for role, given in (("weak", without(rules, "hkeys")), ("strong", rules)):
            await owner.put(b"1")
            async with AsyncQueue[bytes]("orders", url=allow(server, role, given)) as full:
                put = await begun(full.put(b"2"))
                if role == "strong":
                    await waiting(owner)
                else:
                    await asyncio.sleep(5 * QUICK)
                    assert (await owner.statistics()).waiting_producers == ()
                assert [await owner.get(timeout=5), await owner.get(timeout=5)] == [b"1", b"2"]
                await in_time(put)
    said = [record for record in caplog.records if "cannot register" in record.getMessage()]
    assert [record.levelname for record in said] == ["DEBUG"]


@on_valkey
async def test_a_key_of_another_type_disturbs_no_put(url: str, db: redis.Redis) -> None:
    async with AsyncQueue[bytes]("jobs", url=url) as queue:
        await queue.create(1)
        await queue.put(b"1")
        db.set("apressure:__pressure__:jobs:workers", "x")
        put = await begun(queue.put(b"2"))
        await asyncio.sleep(3 * QUICK)
        assert [await queue.get(timeout=5), await queue.get(timeout=5)] == [b"1", b"2"]
        await in_time(put)
        assert db.get("apressure:__pressure__:jobs:workers") == b"x"


@on_valkey
async def test_producers_take_no_place_of_workers(url: str) -> None:
    async with AsyncQueue("jobs", url=url) as queue:
        await queue.create()
        record = producer_record()
        for number in range(FEW):
            assert await beat(queue, b"producer-%03d/1" % number, record, Letter.PUTS) == 0
        assert await beat(queue, b"another/1", record, Letter.PUTS) == -1
        assert await beat(queue, b"producer-007/1", record, Letter.PUTS) == 0
        assert await beat(queue, b"worker/1", encode(record_of())) == 0
        statistics = await queue.statistics()
        assert len(statistics.waiting_producers) == FEW
        assert [worker.id for worker in statistics.workers] == ["worker"]


HOSTILE: dict[str, bytes] = {
    "no JSON": b"{", "a list": b"[]", "a worker": encode(record_of()), "nothing": b"{}",
    **{f"{name}={value!r}": producer_record(**{name: value}) for name, value in (
        ("puts", -1), ("puts", 1.5), ("puts", True), ("puts", None), ("age", "x"), ("age", 1e300), ("pid", "7"),
        ("host", None), ("version", 1), ("host", "\ud800"),
    )},
}  # fmt: skip


@on_valkey
async def test_a_record_that_others_have_written_is_left_out(url: str, db: redis.Redis) -> None:
    async with AsyncQueue("jobs", url=url) as queue:
        await queue.create()
        now = int(time.time() * 1000)
        key = "apressure:__pressure__:jobs:workers"
        for number, record in enumerate(HOSTILE.values()):
            db.hset(key, f"bad-{number}/1", b"%d %d p " % (now + 60_000, now) + record)
        db.hset(key, "gone/1", b"%d %d p " % (now - 1, now) + producer_record())
        db.hset(key, "mine/1", b"%d %d p " % (now + 60_000, now) + producer_record())
        (producer,) = (await queue.statistics()).waiting_producers
        assert (producer.id, producer.host, producer.pid, producer.puts) == ("mine", "far", 7, 2)
        assert 60 < producer.waited < 90  # it counts up to the look
        assert await queue.drain("mine") == 0


@on_valkey
async def test_a_pipe_that_waits_for_room_is_a_waiting_producer_of_its_destination(kind: str, url: str) -> None:
    async def same(item: str) -> str:
        return item

    async with (
        opened(kind, url) as source, opened(kind, url, "done") as results,
        opened(kind, url, "done") as queue,
    ):  # fmt: skip
        await source.create()
        await queue.create(1)
        await queue.put("1")
        await source.put_many(["2", "3"])
        stage = asyncio.ensure_future(pipe(source, same, results))
        (producer,) = await waiting(queue)
        assert producer.id == registration.worker_id()
        assert (await source.statistics()).waiting_producers == ()
        assert [await queue.get(timeout=5) for _ in range(3)] == ["1", "2", "3"]
        await waiting(queue, lambda found: not found)
        stage.cancel()
        await in_time(asyncio.wait((stage,)))
