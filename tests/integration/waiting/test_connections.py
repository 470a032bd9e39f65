"""Ways to a server: TCP, unix sockets, TLS, databases, a client that the program has, an embedded server."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
import redis
import redis.asyncio

from apressure import AsyncQueue, Client, ClientClosedError, ServerUnavailableError
from apressure.embedded import EmbeddedServer
from tests.integration.conftest import eventually, everything, fails, in_time

CERTIFICATE = Path(__file__).parents[1] / "certificate.pem"
"""A key and a self-signed certificate for localhost, for tests only."""


async def use(queue: AsyncQueue[bytes]) -> None:
    """The life of a queue, with waits on both sides."""
    await queue.create(bound=1)
    getting = asyncio.create_task(queue.get())
    await asyncio.sleep(0.02)
    await queue.put(b"1")
    assert await in_time(getting) == b"1"
    await queue.put(b"2")
    putting = asyncio.create_task(queue.put(b"3"))
    await asyncio.sleep(0.02)
    assert await queue.get() == b"2"
    await in_time(putting)
    await queue.close()
    assert [item async for item in queue] == [b"3"]
    await queue.delete()


async def test_a_unix_socket(server: EmbeddedServer, url: str, scripting: bool) -> None:
    async with AsyncQueue("jobs", url=f"unix://{server.socket_path}", scripting=scripting) as queue:
        await use(queue)


@pytest.mark.leaves_keys
@pytest.mark.parametrize("how", ["url", "argument", "unix", "environment", "redis"])
async def test_a_database_by_its_number(
    server: EmbeddedServer, url: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = urlparse(url)
    if how == "environment":
        monkeypatch.setenv("REDIS_SERVER", str(address.hostname))
        monkeypatch.setenv("REDIS_PORT", str(address.port))
        monkeypatch.setenv("REDIS_DB", "3")
    theirs = redis.asyncio.Redis(host=str(address.hostname), port=address.port or 0, db=3)
    settings: dict[str, dict[str, Any]] = {
        "url": {"url": f"redis://{address.hostname}:{address.port}/3"},
        "argument": {"url": url, "db": 3},
        "unix": {"url": f"unix://{server.socket_path}?db=3"},
        "environment": {},
        "redis": {"redis": theirs},
    }
    async with AsyncQueue("jobs", **settings[how]) as queue:
        await queue.create()
        await queue.put(b"x")
        with pytest.raises(TimeoutError):
            await queue.get_many(5) and await queue.get(timeout=0.05)
        hosts: dict[str, Any] = {"host": str(address.hostname), "port": address.port or 0}
        with redis.Redis(**hosts, db=3) as three, redis.Redis(**hosts, db=0) as zero:
            assert three.exists("__pressure__:jobs:bound")
            assert not zero.keys()
    await theirs.aclose()


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}, {"socket_timeout": 0.1}])
async def test_a_client_that_the_program_has(url: str, scripting: bool, options: dict[str, Any]) -> None:
    theirs = redis.asyncio.Redis.from_url(url, **options)
    async with AsyncQueue("jobs", redis=theirs, scripting=scripting) as queue:
        await use(queue)
    assert await theirs.ping()  # it stays the program's own
    await theirs.aclose()


async def test_the_queue_outlives_the_client_that_lent_its_address(url: str) -> None:
    theirs = redis.asyncio.Redis.from_url(url)
    async with AsyncQueue("jobs", redis=theirs) as queue:
        await theirs.aclose()
        await use(queue)


@asynccontextmanager
async def tls_in_front_of(url: str) -> AsyncIterator[int]:
    """A proxy that speaks TLS and passes on to a server, since not every server is built with it; its port."""
    address = urlparse(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    pipes: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection(address.hostname, address.port)
        for pipe in (pump(reader, behind[1]), pump(behind[0], writer)):
            task = asyncio.create_task(pipe)
            pipes.add(task)
            task.add_done_callback(pipes.discard)

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield proxy.sockets[0].getsockname()[1]
    finally:
        proxy.close()
        for task in list(pipes):
            task.cancel()
        await asyncio.gather(*pipes, return_exceptions=True)


async def test_tls_with_a_certificate_that_is_checked(url: str, scripting: bool) -> None:
    async with tls_in_front_of(url) as port:
        tls = f"rediss://localhost:{port}?ssl_ca_certs={CERTIFICATE}"
        async with AsyncQueue("jobs", url=tls, scripting=scripting) as queue:
            await use(queue)


async def test_tls_of_a_client_that_the_program_has(url: str) -> None:
    async with tls_in_front_of(url) as port:
        theirs = redis.asyncio.Redis(host="localhost", port=port, ssl=True, ssl_ca_certs=os.fspath(CERTIFICATE))
        async with AsyncQueue("jobs", redis=theirs) as queue:
            await use(queue)
        await theirs.aclose()


async def test_an_untrusted_certificate_is_refused(url: str) -> None:
    async with tls_in_front_of(url) as port:
        queue = AsyncQueue("jobs", url=f"rediss://localhost:{port}")
        await fails(ServerUnavailableError, queue.exists(), r"(?i)certificate")
        await queue.aclose()
        async with AsyncQueue("jobs", url=f"rediss://localhost:{port}?ssl_cert_reqs=none") as trusting:
            assert not await trusting.exists()


async def test_tls_to_a_server_without_it_is_a_clear_error(url: str) -> None:
    queue = AsyncQueue("jobs", url=url.replace("redis://", "rediss://"), connect_timeout=0.5)
    await fails(ServerUnavailableError, queue.exists(), "cannot reach the server")
    await queue.aclose()


async def test_an_embedded_server_is_shared_by_the_clients_of_a_process() -> None:
    async with AsyncQueue("jobs", url="embedded://") as queue, AsyncQueue("jobs", url="embedded://") as other:
        await queue.create()
        await queue.put(b"x")
        assert await other.get() == b"x"
        await other.delete()


async def test_an_embedded_server_keeps_its_data_in_a_directory(tmp_path: Path) -> None:
    async with AsyncQueue("jobs", url=f"embedded://{tmp_path}") as queue:
        await queue.create(bound=2)
        await queue.put(b"x")
    assert any(tmp_path.iterdir())
    async with AsyncQueue("jobs", url=f"embedded://{tmp_path}") as queue:
        assert await queue.get() == b"x"
        await queue.delete()


async def test_a_lost_connection_is_replaced_without_an_error(
    server: EmbeddedServer, url: str, scripting: bool
) -> None:
    with redis.Redis.from_url(url) as db:
        async with Client(url, scripting=scripting) as client:
            queue: AsyncQueue[bytes] = AsyncQueue("jobs", client=client)
            await queue.create()
            for index in range(5):
                await queue.put(b"%d" % index)
                db.client_kill_filter(_type="normal", skipme=True)
                await asyncio.sleep(0.01)
            assert await in_time(queue.get_many(10)) == [b"%d" % index for index in range(5)]
            waiting = asyncio.create_task(queue.get())
            if scripting:
                await eventually(lambda: db.info("clients")["blocked_clients"] >= 2)
                db.client_kill_filter(_type="normal", skipme=True)
                await eventually(lambda: db.info("clients")["blocked_clients"] >= 2)
            await queue.put(b"x")
            assert await in_time(waiting) == b"x"
            await queue.delete()
        assert not everything(db)


async def test_closing_a_queue_at_any_moment_of_a_wait_is_the_same_error(url: str, scripting: bool) -> None:
    async with AsyncQueue("jobs", url=url) as queue:
        await queue.create()
        for step in range(60):
            waiting_queue = AsyncQueue("jobs", url=url, scripting=scripting)
            waiting = asyncio.create_task(waiting_queue.wait_closed())
            await asyncio.sleep(step * 0.0001)  # it connects, asks, connects to wait, and waits
            await waiting_queue.aclose()
            await fails(ClientClosedError, waiting)
        await queue.delete()
