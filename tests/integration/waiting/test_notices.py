"""An operation that waits for a role logs who holds it and until when: once, and again for another holder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from apressure import AsyncQueue, serve
from apressure.core.waiting import Wait
from apressure.pressure.engine import waits
from apressure.pressure.engine.plain import role_lock
from tests.integration.conftest import Opener, eventually, in_time, open_two

KEY = "__pressure__:jobs"


# Nothing of this depends on the server.
pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Any]]:
    """Return the records about waits so far. They are logged after a short wait."""
    monkeypatch.setattr(waits, "PATIENCE", 0.05)
    monkeypatch.setattr(role_lock, "SLICE", 0.1)  # how often the plain commands look
    caplog.set_level(logging.INFO, "apressure")
    return lambda: [record for record in caplog.records if record.message.startswith("waiting for")]


@asynccontextmanager
async def beside(waiting: Coroutine[Any, Any, Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """Let an operation wait for as long as the block lasts."""
    task = asyncio.ensure_future(waiting)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def consume(queue: AsyncQueue[bytes]) -> bytes:
    async with queue.consumer() as consumer:
        return await anext(consumer)


async def never(item: bytes) -> None:
    raise AssertionError(item)


@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_each_holder_without_a_lease_is_logged(
    open_queue: Opener, db: redis.Redis, scripting: bool, role: str, told: Callable[[], list[Any]]
) -> None:
    queue = await open_queue(scripting=scripting)
    db.rpop(f"{KEY}:{role}_free")
    db.set(f"{KEY}:{role}", "old\x1b[31m")
    operation = queue.put(b"1") if role == "producer" else queue.get()
    async with beside(operation):
        await eventually(told)
        (record,) = told()
        assert record.levelname == "INFO"
        assert record.message.startswith(f"waiting for the {role} role of the queue 'jobs': 'old\\x1b[31m' holds it")
        assert ("without a lease" in record.message) is scripting  # the plain commands know of no leases
        assert (record.queue, record.role, record.holder, record.expires) == ("jobs", role, "old\x1b[31m", None)
        db.set(f"{KEY}:{role}", "new")
        await eventually(lambda: len(told()) == 2)
        assert "'new' holds it" in told()[1].message
    db.lpush(f"{KEY}:{role}_free", 1)


async def test_the_log_says_when_the_lease_ends(open_queue: Opener, told: Callable[[], list[Any]]) -> None:
    queue, other = await open_two(open_queue)
    async with other.producer(close=False, exclusive=True, lease=600), other.consumer(lease=60):
        for operation, role, lease in (
            (queue.put(b"1"), "producer", 600),
            (queue.get(), "consumer", 60),
            (queue.receive(), "consumer", 60),
            (consume(queue), "consumer", 60),
            (serve(never, queue, signals=()), "consumer", 60),
            (queue.close(), "producer", 600),
        ):
            before = len(told())
            async with beside(operation):
                await eventually(lambda before=before: len(told()) > before)  # type: ignore[misc]
            record = told()[before]
            assert (record.role, record.holder) == (role, other.client.id)
            assert datetime.now(UTC) < record.expires <= datetime.now(UTC) + timedelta(seconds=lease)
            assert f"until {record.expires.astimezone():%H:%M:%S} (" in record.message
            assert len(told()) == before + 1


async def test_retries_log_nothing_more(
    open_queue: Opener, told: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = await open_two(open_queue)
    tries: list[Any] = []
    noted = waits.Notice.waits

    def counted(*arguments: Any) -> None:
        tries.append(arguments)
        noted(*arguments)

    monkeypatch.setattr(waits.Notice, "waits", counted)
    async with other.consumer(lease=1), beside(queue.get()):  # tried again whenever that lease would have ended
        await eventually(lambda: told() and len(tries) > 3)
        assert len(told()) == 1


async def test_operations_that_wait_together_log_once(
    open_queue: Opener, db: redis.Redis, told: Callable[[], list[Any]]
) -> None:
    queue, other = await open_two(open_queue)
    async with other.consumer(lease=60):
        waiting = [asyncio.ensure_future(queue.receive()) for _ in range(20)]
        await eventually(told)
        for number in range(20):
            await other.put(b"%d" % number)
    for delivery in await in_time(asyncio.gather(*waiting)):
        await delivery.ack()
    assert len(told()) == 1


async def test_a_lease_that_ends_after_the_last_date_is_logged(server: object, told: Callable[[], list[Any]]) -> None:
    parked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waits.Notice("jobs").waits(Wait("consumer", 10**18), parked)
    await eventually(told)
    assert "another client holds it until" in told()[0].message
    parked.cancel()
