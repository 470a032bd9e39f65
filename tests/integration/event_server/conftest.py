"""The okq server in this process, and plain sockets that talk to it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import hiredis
import pytest
import redis

from apressure.events.server.server import EventServer
from apressure.events.server.settings import Address, ConnectionLimits, ServerSettings
from tests.integration.conftest import PATIENCE

FREE = Address("127.0.0.1", 0)


class Wire:
    """A plain socket: commands as bytes, replies as bytes or as hiredis reads them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._replies = hiredis.Reader()

    def send(self, *arguments: bytes | str | int) -> None:
        """Send a command without waiting."""
        self.writer.write(packed(*arguments))

    async def reply(self) -> Any:
        """Read one reply; an error is returned."""
        async with asyncio.timeout(PATIENCE):
            while (reply := self._replies.gets()) is False:
                data = await self.reader.read(1 << 16)
                if not data:
                    raise EOFError("the server closed the connection")
                self._replies.feed(data)
        return reply

    async def __call__(self, *arguments: bytes | str | int) -> Any:
        """Send a command and return its reply; an error is returned as its text."""
        self.send(*arguments)
        reply = await self.reply()
        return str(reply) if isinstance(reply, hiredis.ReplyError) else reply

    async def raw(self, data: bytes, expected: bytes) -> None:
        """Send bytes, and check the bytes that come back."""
        self.writer.write(data)
        assert await self.read(len(expected)) == expected

    async def read(self, count: int) -> bytes:
        """Read bytes, as many as there are up to the end of the connection."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.readexactly(count)
            except asyncio.IncompleteReadError as error:
                return error.partial

    async def ended(self) -> bytes:
        """Wait for the end of the connection, and return what came before."""
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read()

    async def close(self) -> None:
        """Close the connection."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


def packed(*arguments: bytes | str | int) -> bytes:
    """Return a command as bytes."""
    words = [one if isinstance(one, bytes) else str(one).encode() for one in arguments]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


@dataclasses.dataclass
class Served:
    """A server that runs in this process."""

    server: EventServer
    address: Address
    task: asyncio.Task[None]
    wires: list[Wire]

    async def connect(self, tls: ssl.SSLContext | None = None) -> Wire:
        """Open a connection."""
        async with asyncio.timeout(PATIENCE):
            wire = Wire(*await asyncio.open_connection("127.0.0.1", self.address.port, ssl=tls, limit=1 << 24))
        self.wires.append(wire)
        return wire

    async def stop(self) -> None:
        """Stop in an orderly way."""
        self.server.stop()
        async with asyncio.timeout(PATIENCE):
            await self.task


Serve = Callable[..., Any]


@pytest.fixture
async def serve(url: str, db: redis.Redis) -> AsyncIterator[Serve]:
    """Start servers: `await serve(password="secret")`; `limits=` takes those of `ConnectionLimits`."""
    running: list[Served] = []

    async def start(*, limits: dict[str, Any] | None = None, **settings: Any) -> Served:
        told = {"listen": FREE, "url": url, "drain": 5.0, **settings}
        server = EventServer(ServerSettings(**told, limits=ConnectionLimits(**(limits or {}))))
        ready: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(server.run(ready.set_result))
        await asyncio.wait((ready, task), timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        served = Served(server, ready.result(), task, [])
        running.append(served)
        return served

    yield start
    for served in running:
        if not served.task.done():
            await served.stop()
        for wire in served.wires:
            await wire.close()
    left = list(db.scan_iter("queue:*:consumers"))
    for key in [*db.scan_iter("queue:*"), *db.scan_iter("apressure:queue:*")]:
        db.delete(key)
    assert not left, f"consumers are still registered: {left}"


@pytest.fixture
async def okq(serve: Serve) -> Served:
    """A server."""
    served: Served = await serve()
    return served


@pytest.fixture
async def wire(okq: Served) -> Wire:
    """A connection to a server."""
    return await okq.connect()
