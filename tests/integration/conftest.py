"""Queues for tests: opened with one call, and at the end deleted, which also shows that no role was left taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol

import pytest
import redis

from apressure import AsyncQueue, Client, QueueDoesNotExistError
from tests.integration.commands import Commands
from tests.reference import connect

PATIENCE = 10.0
"""Seconds after which a wait that should have ended has failed."""


class Opener(Protocol):
    """`await open_queue("jobs", bound=2)`: an open queue, created unless `create=False`."""

    async def __call__(
        self, name: str = "jobs", *, bound: int = 0, create: bool = True, **options: Any
    ) -> AsyncQueue[Any]: ...


@pytest.fixture
def db(url: str) -> Iterator[redis.Redis]:
    """A plain client to look with, and for what only a test does."""
    with connect(url) as client:
        yield client


@pytest.fixture(params=[True, False], ids=["scripts", "plain"])
def scripting(request: pytest.FixtureRequest) -> bool:
    """Whether our queue runs scripts or the specification's commands."""
    return bool(request.param)


@pytest.fixture
async def open_queue(url: str) -> AsyncIterator[Opener]:
    """Open queues on the server of the test. Each is deleted at the end, where that was not done yet."""
    opened: list[AsyncQueue[Any]] = []

    async def opener(name: str = "jobs", *, bound: int = 0, create: bool = True, **options: Any) -> AsyncQueue[Any]:
        if "client" not in options and "redis" not in options:
            options = {"url": url, **options}
        queue: AsyncQueue[Any] = AsyncQueue(name, **options)
        opened.append(queue)
        await queue.__aenter__()
        if create:
            await queue.create(bound)
        return queue

    yield opener
    for queue in opened:
        await queue.aclose()
        await queue.client.aclose()
    for name, prefix in {(queue.name, queue.prefix) for queue in opened}:
        async with AsyncQueue(name, url=url, prefix=prefix) as queue:
            try:
                await queue.delete(timeout=PATIENCE)
            except QueueDoesNotExistError:
                continue


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    """One client for several queues."""
    async with Client(url) as opened:
        yield opened


@pytest.fixture
def cli(url: str) -> Commands:
    """The command line, on the server."""
    return Commands(url)


async def eventually(condition: Callable[[], Any]) -> None:
    """Wait until a condition comes true; fail when it does not."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


async def blocked(db: redis.Redis, clients: int = 1) -> None:
    """Wait until the server says that somebody waits in a blocking command."""
    await eventually(lambda: db.info("clients")["blocked_clients"] >= clients)


def everything(db: redis.Redis) -> dict[bytes, Any]:
    """All keys with their values, comparable; records of operations are left out."""
    read: dict[Any, Callable[[bytes], Any]] = {
        b"string": db.get,
        b"list": lambda key: db.lrange(key, 0, -1),
        b"hash": db.hgetall,
        b"set": db.smembers,
    }
    return {key: read[db.type(key)](key) for key in sorted(db.scan_iter(count=1000)) if b":op:" not in key}


async def in_time(awaitable: Any) -> Any:
    """What an operation gives that has to end."""
    async with asyncio.timeout(PATIENCE):
        return await awaitable
