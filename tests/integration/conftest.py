"""Queues for tests: one call opens a queue, and the end of the test deletes it, which fails if a role is taken."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
import redis

from apressure import AsyncQueue, Client, QueueDoesNotExistError
from apressure.embedded import EmbeddedServer
from tests.integration.commands import Commands
from tests.patience import be_patient
from tests.reference import connect
from tests.servers import SERVERS

E = TypeVar("E", bound=BaseException)

PATIENCE = 90.0
"""Seconds after which an operation that should have ended has failed."""


class Opener(Protocol):
    """`await open_queue("jobs", bound=2)`: an open queue, created unless `create=False`."""

    async def __call__(
        self, name: str = "jobs", *, bound: int = 0, create: bool = True, **options: Any
    ) -> AsyncQueue[Any]: ...


@pytest.fixture
def db(url: str) -> Iterator[redis.Redis]:
    """A plain client, to look at the keys and to change them."""
    with connect(url) as client:
        yield client


@pytest.fixture(params=SERVERS)
def own(request: pytest.FixtureRequest, make_server: Callable[..., EmbeddedServer], tmp_path: Path) -> EmbeddedServer:
    """A server of the test's own, which keeps its port and its data when it is stopped and started again."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return make_server(request.param, port=port, directory=tmp_path)


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
def long_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that miss a wake-up look again after 10 minutes only: a test that passes has missed none."""
    be_patient(monkeypatch)


async def open_two(open_queue: Opener, *, bound: int = 0, **options: Any) -> tuple[AsyncQueue[Any], AsyncQueue[Any]]:
    """Open the queue "jobs" twice, with a client for each of the two objects."""
    return await open_queue(bound=bound, **options), await open_queue(create=False, **options)


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
    """Wait until the server says that so many clients wait in a blocking command."""
    await eventually(lambda: db.info("clients")["blocked_clients"] >= clients)


async def blocking(db: redis.Redis, operation: Coroutine[Any, Any, Any], clients: int = 1) -> asyncio.Task[Any]:
    """Start an operation, and return it when the server says that it waits in a blocking command."""
    task = asyncio.create_task(operation)
    await blocked(db, clients)
    return task


def renewed_while_blocked(db: redis.Redis, *leases: str) -> None:
    """Block the event loop of the test until the leases under these keys were renewed."""

    def deadlines() -> list[int]:
        return [int(db.hget(lease, "deadline") or 0) for lease in leases]

    before, until = deadlines(), time.monotonic() + PATIENCE
    while any(now <= then for now, then in zip(deadlines(), before, strict=True)):
        assert time.monotonic() < until, "the lease is not renewed"
        time.sleep(0.01)


async def outlived(db: redis.Redis, role: str, name: str = "jobs") -> None:
    """Wait until a lease on a role was renewed after the time when it would have expired."""
    lease = f"apressure:__pressure__:{name}:{role}_lease"
    expires, length = (int(text) for text in db.hmget(lease, "deadline", "duration"))
    await eventually(lambda: int(db.hget(lease, "deadline") or 0) > expires + length)


def refusals(db: redis.Redis, code: str) -> int:
    """How often the server has answered with an error of this code."""
    told = str(db.info("errorstats").get(f"errorstat_{code}", "count=0"))  # redis-py 5.0 does not understand it
    return int("".join(filter(str.isdigit, told)))


def everything(db: redis.Redis) -> dict[bytes, Any]:
    """All keys with their values, comparable; those that pass by themselves are left out."""
    read: dict[Any, Callable[[bytes], Any]] = {
        b"string": db.get,
        b"list": lambda key: db.lrange(key, 0, -1),
        b"hash": db.hgetall,
        b"set": db.smembers,
    }
    return {key: read[db.type(key)](key) for key in sorted(db.scan_iter(count=1000)) if db.ttl(key) < 0}


async def in_time(awaitable: Any) -> Any:
    """Return the result of an operation that has to end."""
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def fails(error: type[E], operation: Awaitable[Any], match: str | None = None) -> E:
    """Return the error of an operation that has to fail."""
    with pytest.raises(error, match=match) as raised:
        await in_time(operation)
    return raised.value


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and check that it ends with CancelledError."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(task)


async def all_fail(error: type[Exception], tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Wait for tasks that have to end with this very error."""
    outcomes = await in_time(asyncio.gather(*tasks, return_exceptions=True))
    assert [type(outcome) for outcome in outcomes] == [error] * len(tasks)
