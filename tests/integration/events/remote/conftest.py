"""okq servers for tests, the released one and ours, and queue objects on them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import pytest
import redis

from apressure import EventQueue, QueueDoesNotExistError
from apressure.events.server.server import EventServer
from apressure.events.server.settings import Address, ServerSettings
from tests import processes
from tests.integration.commands import COMMAND, environment
from tests.okq_server import OkqServer

PATIENCE = 60.0
"""Seconds after which an operation that should have ended has failed."""


class Open(Protocol):
    """`await open_queue("jobs")`: an open queue on the server; each has a client of its own."""

    async def __call__(self, name: str = "jobs", **options: Any) -> EventQueue[Any]: ...


@contextlib.asynccontextmanager
async def serving(url: str, **told: Any) -> AsyncIterator[str]:
    """Run a server of ours in this process; gives its URL."""
    server = EventServer(ServerSettings(**{"listen": Address("127.0.0.1", 0), "url": url, "drain": 5.0, **told}))
    ready: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(server.run(ready.set_result))
    await asyncio.wait((ready, task), timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        address = ready.result()
        host = f"[{address.host}]" if ":" in address.host else address.host
        yield f"okq://{host}:{address.port}"
    finally:
        server.stop()
        await in_time(task)


class Process:
    """A server of ours in a process of its own, which can be killed and started again on its port."""

    def __init__(self, url: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"okq://127.0.0.1:{self.port}"
        self._redis = url
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = processes.Popen(
            [*COMMAND, "events", "serve", "--listen-addr", f"127.0.0.1:{self.port}", "--redis-addr", self._redis],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert b"ready" in self._process.stdout.readline()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@contextlib.asynccontextmanager
async def cleared(url: str) -> AsyncIterator[None]:
    """Delete the queues in the end."""
    try:
        yield
    finally:
        with redis.Redis.from_url(url) as db:
            left = list(db.scan_iter("queue:*:consumers"))
            for key in [*db.scan_iter("queue:*"), *db.scan_iter("apressure:queue:*")]:
                db.delete(key)
        assert not left, f"consumers are still registered: {left}"


@pytest.fixture
async def released() -> AsyncIterator[OkqServer]:
    """A released okq."""
    server = OkqServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def ours(url: str) -> AsyncIterator[str]:
    """The URL of a server of ours."""
    async with cleared(url), serving(url) as address:
        yield address


@pytest.fixture
async def process(url: str) -> AsyncIterator[Process]:
    async with contextlib.AsyncExitStack() as stack:
        server = Process(url)
        await asyncio.to_thread(server.start)
        stack.callback(server.kill)
        yield server
        await _forget_consumers(url)
        await stack.enter_async_context(cleared(url))


async def _forget_consumers(url: str) -> None:
    """The consumers of servers that were killed stay listed for 30 seconds."""
    with redis.Redis.from_url(url) as db:
        for key in db.scan_iter("queue:*:consumers"):
            db.delete(key)


@pytest.fixture(params=["released", "ours"])
async def okq_url(request: pytest.FixtureRequest, url: str) -> AsyncIterator[str]:
    """The URL of an okq server of each kind."""
    if request.param == "released":
        server = OkqServer()
        await server.start()
        yield server.url
        await server.stop()
    else:
        async with cleared(url), serving(url) as address:
            yield address


async def opened(stack: contextlib.AsyncExitStack, url: str, name: str, **options: Any) -> EventQueue[Any]:
    queue: Any = EventQueue(name, url=url, **options)
    await stack.enter_async_context(queue)
    return queue


@pytest.fixture
async def open_queue(okq_url: str) -> AsyncIterator[Open]:
    """Open queues on each kind of server."""
    async with contextlib.AsyncExitStack() as stack:

        async def opener(name: str = "jobs", **options: Any) -> EventQueue[Any]:
            return await opened(stack, okq_url, name, **options)

        yield opener


@pytest.fixture
async def open_released(released: OkqServer) -> AsyncIterator[Open]:
    """Open queues on a released okq."""
    async with contextlib.AsyncExitStack() as stack:

        async def opener(name: str = "jobs", **options: Any) -> EventQueue[Any]:
            return await opened(stack, released.url, name, **{"retry_timeout": 60, **options})

        yield opener


@pytest.fixture
async def open_ours(ours: str) -> AsyncIterator[Open]:
    """Open queues on a server of ours."""
    async with contextlib.AsyncExitStack() as stack:

        async def opener(name: str = "jobs", **options: Any) -> EventQueue[Any]:
            return await opened(stack, ours, name, **options)

        yield opener


@pytest.fixture
async def direct(url: str) -> AsyncIterator[EventQueue[bytes]]:
    """The queue "jobs" on the Redis of a server of ours."""
    async with EventQueue("jobs", url=url) as queue:
        yield queue
        with contextlib.suppress(QueueDoesNotExistError):
            await queue.delete()


async def in_time(operation: Any) -> Any:
    """Return the result of an operation that has to end."""
    async with asyncio.timeout(PATIENCE):
        return await operation


async def eventually(condition: Callable[[], Any]) -> None:
    """Wait until a condition comes true; it may be a coroutine function."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = condition()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.01)


async def fails(error: type[BaseException], operation: Any, match: str | None = None) -> BaseException:
    """Return the error of an operation that has to fail."""
    with pytest.raises(error, match=match) as raised:
        await in_time(operation)
    return raised.value
