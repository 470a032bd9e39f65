"""A destination of another kind that is full for longer than `max_hold`: waiting for room is no failure."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from apressure import (
    AsyncQueue,
    EventQueue,
    FileQueue,
    QueueDoesNotExistError,
    ServerUnavailableError,
    TaskQueue,
    pipe,
)
from apressure.concurrency.backoff import Backoff
from apressure.service.stages import stage
from tests.integration.conftest import eventually, in_time
from tests.integration.events.remote.conftest import serving
from tests.integration.pipe.conftest import begun, items

MAX_HOLD = 2.0

KINDS = ("alone", "shared", "events", "okq", "tasks", "files")
"""The sources. "alone" and "shared" are an `AsyncQueue` with one consumer and with a member of several."""
SOURCES = [kind if kind == "alone" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]

pytestmark = [
    pytest.mark.leaves_keys("blueque_*", "apressure:blueque:*"),
    pytest.mark.parametrize("server", ["valkey"], indirect=True),  # the servers do nothing here that could differ
]


@pytest.fixture
async def source(
    request: pytest.FixtureRequest, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Any]:
    """A closed queue of this kind with five items, whose consumers have a short lease and `max_hold`."""
    kind: str = request.param
    async with contextlib.AsyncExitStack() as stack:
        queue: Any
        if kind == "files":
            queue = FileQueue(tmp_path / "in", max_attempts=2)
        elif kind == "tasks":
            queue = TaskQueue("in", url=url, max_attempts=2)
        elif kind in ("alone", "shared"):
            queue = AsyncQueue("in", url=url, max_attempts=2)
        else:
            queue = EventQueue("in", url=url, **({} if kind == "okq" else {"max_attempts": 2}))
        await stack.enter_async_context(queue)
        await queue.create()
        await queue.put_many([one.decode() for one in items(5)] if kind == "tasks" else items(5))
        await queue.close()
        used = queue
        if kind == "okq":
            address = await stack.enter_async_context(serving(url))
            used = await stack.enter_async_context(EventQueue("in", url=address))
        consumer = type(used).consumer
        monkeypatch.setattr(
            type(used),
            "consumer",
            lambda self, *args, **options: consumer(self, *args, **{**options, "lease": 2, "max_hold": MAX_HOLD}),
        )
        yield used
        with contextlib.suppress(QueueDoesNotExistError):
            await queue.delete()
        if kind in ("alone", "shared"):
            async with AsyncQueue("in:dead", url=url) as dead:
                assert not await dead.exists() or await dead.qsize() == 0
                with contextlib.suppress(QueueDoesNotExistError):
                    await dead.delete()


@pytest.fixture
async def destination(tmp_path: Path) -> AsyncIterator[FileQueue[bytes]]:
    """A queue in a directory that has room for one item, and has one."""
    async with FileQueue(tmp_path / "out") as queue:
        await queue.create(bound=1)
        await queue.put(b"first")
        yield queue


async def taken(destination: FileQueue[bytes], count: int) -> list[bytes]:
    """Take so many items from a queue."""
    got = []
    for _ in range(count):
        delivery = await in_time(destination.receive())
        got.append(delivery.raw)
        await delivery.ack()
    return got


def shared(request: pytest.FixtureRequest) -> bool:
    return request.node.callspec.params["source"] != "alone"  # type: ignore[no-any-return]


async def encoded(item: Any) -> bytes:
    return item.encode() if isinstance(item, str) else bytes(item)


@pytest.mark.parametrize("source", SOURCES, indirect=True)
async def test_a_wait_for_room_counts_as_no_attempt(
    source: Any, destination: FileQueue[bytes], request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    called = []

    async def transform(item: Any) -> bytes:
        called.append(item)
        return await encoded(item)

    working = await begun(pipe(source, transform, destination, shared=shared(request)))
    await eventually(lambda: called)
    await asyncio.sleep(2.5 * MAX_HOLD)
    assert await destination.qsize() == 1
    assert not working.done()
    assert await taken(destination, 6) == [b"first", *items(5)]
    done = await in_time(working)
    assert (done.handled, done.put, done.failed, done.exactly_once) == (5, 5, 0, False)
    assert len(called) == 5
    assert "max_hold" not in caplog.text


@pytest.mark.parametrize("source", SOURCES, indirect=True)
async def test_a_transform_that_is_stuck_is_ended(
    source: Any, destination: FileQueue[bytes], request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """After the others have waited for room: while they do, nothing is in vain."""
    called: list[bytes] = []

    async def transform(item: Any) -> bytes:
        called.append(await encoded(item))
        if called.count(b"1") == 1 and called[-1] == b"1":
            await asyncio.Event().wait()
        return called[-1]

    working = await begun(pipe(source, transform, destination, concurrency=2, shared=shared(request), retry=Backoff(0)))
    await eventually(lambda: b"1" in called)
    await asyncio.sleep(1.5 * MAX_HOLD)
    assert "max_hold" not in caplog.text
    assert sorted(await taken(destination, 6)) == sorted([b"first", *items(5)])
    done = await in_time(working)
    assert (done.handled, done.put) == (5, 5)
    assert "max_hold" in caplog.text
    assert called.count(b"1") == 2
    assert len(called) == 6


@pytest.mark.parametrize("source", ["alone", "tasks"], indirect=True)
async def test_a_pause_after_an_outage_of_the_destination_counts_as_no_attempt(
    source: Any, destination: FileQueue[bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stage, "_PAUSES", Backoff(2.5 * MAX_HOLD, 2.5 * MAX_HOLD))
    put_many, called = destination.put_many, []

    async def fails_once(some: Any, timeout: float | None = None) -> int:
        called.append(some)
        if len(called) == 1:
            raise ServerUnavailableError("the destination is away")
        return await put_many(some, timeout)

    monkeypatch.setattr(destination, "put_many", fails_once)
    working = await begun(pipe(source, encoded, destination))
    assert await taken(destination, 6) == [b"first", *items(5)]
    assert (await in_time(working)).handled == 5
    assert "the destination is away" in caplog.text
    assert "max_hold" not in caplog.text
