"""Sentinel: clients find the primary, and waiting operations survive a new one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import redis as redis_py

from apressure import (
    AsyncQueue,
    AuthenticationError,
    Client,
    PressureError,
    QueueFullError,
    ReadOnlyError,
    ServerError,
    ServerUnavailableError,
)
from apressure.embedded import EmbeddedServer
from apressure.testing.proxy import Proxy
from tests.integration.conftest import PATIENCE, eventually, fails, in_time, refusals
from tests.integration.waits import waits
from tests.processes import free_port
from tests.servers import SERVERS, admin, blocked_clients
from tests.topologies import Pair, Watched, ask, follows, heard, must_be_empty, replicated, sentinel, until

NAME = "jobs"


@pytest.fixture(scope="module", params=SERVERS)
def watched(request: pytest.FixtureRequest) -> Iterator[Watched]:
    with sentinel(request.param) as watched:
        yield watched


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "watched" in request.fixturenames:
        found: Watched = request.getfixturevalue("watched")
        must_be_empty(found.primary)


@contextlib.asynccontextmanager
async def a_queue(url: str, bound: int = 0, **options: Any) -> AsyncIterator[AsyncQueue[bytes]]:
    async with AsyncQueue(NAME, url=url, **options) as queue:
        await queue.create(bound)
        try:
            yield queue
        finally:
            async with AsyncQueue(NAME, url=url) as other:
                await other.delete(timeout=10)


async def test_everything_that_a_queue_does(watched: Watched) -> None:
    async with a_queue(watched.url, bound=3) as queue:
        await queue.put_many([b"1", b"2"])
        await queue.put(b"3")
        with pytest.raises(QueueFullError):
            await queue.put_nowait(b"4")
        assert await queue.peek() == b"1"
        assert await queue.get() == b"1"
        delivery = await queue.receive()
        await delivery.nack()
        assert (await queue.statistics()).length == 2
        assert await queue.client.queues() == [NAME]
        await queue.close()
        async with queue.consumer() as consumer:
            assert [item async for item in consumer] == [b"2", b"3"]
        assert "'queues' of the Sentinels" in repr(AsyncQueue(NAME, url=watched.url))


async def test_arguments_and_a_client_of_redis_pys_lead_there_too(watched: Watched) -> None:
    theirs = redis_py.asyncio.Sentinel(watched.sentinels).master_for(watched.service)
    async with (
        a_queue(watched.url) as queue,
        AsyncQueue(NAME, sentinels=watched.sentinels, service=watched.service) as second,
        AsyncQueue(NAME, redis=theirs) as third,
    ):
        for one in (queue, second, third):
            await one.put(b"1")
        assert await third.get_many(5) == [b"1"] * 3
    await theirs.aclose()


async def test_an_unknown_service_is_named(watched: Watched) -> None:
    with pytest.raises(ServerUnavailableError, match=r"the Sentinel at 127.0.0.1:\d+ does not know 'others'"):
        async with AsyncQueue(NAME, sentinels=watched.sentinels, service="others"):
            pass


async def test_a_server_that_is_no_sentinel_is_called_so(watched: Watched) -> None:
    with pytest.raises(ServerError, match=rf"the server at 127.0.0.1:{watched.primary.port} is not a Sentinel"):
        async with AsyncQueue(NAME, sentinels=[("127.0.0.1", watched.primary.port)], service="queues"):
            pass


async def test_no_sentinel_is_up() -> None:
    ports = [free_port(), free_port()]
    queue = AsyncQueue(NAME, sentinels=[("127.0.0.1", port) for port in ports], service="queues")
    for _ in range(2):
        with pytest.raises(ServerUnavailableError, match="cannot find 'queues' of the Sentinels") as caught:
            await queue.put(b"1")
        assert all(str(port) in str(caught.value) for port in ports)
    assert queue.client.server.connections == 0
    await queue.aclose()


async def test_a_sentinel_that_is_down_is_passed_over(watched: Watched) -> None:
    sentinels = [("127.0.0.1", free_port()), *watched.sentinels]
    async with AsyncQueue(NAME, sentinels=sentinels, service=watched.service) as queue:
        await queue.create()
        await queue.delete()


async def test_a_sentinel_with_a_password(watched: Watched) -> None:
    guard = watched.guards[0]
    ask(guard, "ACL", "SETUSER", "guard", "on", ">Gu/rd", "+@all")
    ask(guard, "ACL", "SETUSER", "default", "on", "resetpass", ">other")
    try:
        for wrong in ({}, {"sentinel_password": "Wr0ng"}):
            with pytest.raises(AuthenticationError, match=r"the Sentinel at .*sentinel_password") as caught:
                async with AsyncQueue(NAME, url=watched.url, **wrong):  # type: ignore[call-overload]
                    pass
            assert "Wr0ng" not in str(caught.value)
        async with a_queue(f"{watched.url}?sentinel_username=guard&sentinel_password=Gu%2Frd") as queue:
            await queue.put(b"1")
        async with AsyncQueue(NAME, url=watched.url, sentinel_username="guard", sentinel_password="Gu/rd") as queue:
            assert not await queue.exists()
    finally:
        with redis_py.Redis(port=guard.port, username="guard", password="Gu/rd") as admin:
            admin.execute_command("ACL", "SETUSER", "default", "on", "nopass")
            admin.execute_command("ACL", "DELUSER", "guard")


class Impostor:
    """Answers as a Sentinel that names another server."""

    def __init__(self, named: int) -> None:
        self.named = named
        self.asked = 0

    async def __aenter__(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            for _ in range(data.upper().count(b"CLIENT")):
                writer.write(b"+OK\r\n")
            if b"GET-MASTER" in data:
                self.asked += 1
                port = str(self.named)
                writer.write(b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%s\r\n" % (len(port), port.encode()))
        writer.close()


async def test_a_sentinel_that_names_a_replica_is_not_believed(watched: Watched) -> None:
    replica = watched.servers[1].port
    async with Impostor(replica) as port:
        with pytest.raises(
            ServerUnavailableError, match=f"127.0.0.1:{replica}.*Sentinel at 127.0.0.1:{port} named, is a"
        ):
            async with AsyncQueue(NAME, sentinels=[("127.0.0.1", port)], service=watched.service):
                pass
        # Another one knows better.
        sentinels = [("127.0.0.1", port), *watched.sentinels]
        async with AsyncQueue(NAME, sentinels=sentinels, service=watched.service) as queue:
            await queue.create()
            await queue.delete()


Change = Callable[[Watched], None]
CHANGES: list[Any] = [pytest.param(Watched.failover, id="failover"), pytest.param(Watched.switch, id="switch")]


async def changed(watched: Watched, change: Change) -> None:
    heard(watched.primary, 1)
    await asyncio.to_thread(change, watched)


@pytest.mark.parametrize("change", CHANGES)
async def test_a_waiting_operation_survives_a_new_primary(watched: Watched, change: Change) -> None:
    async with waits(watched.url, lambda: watched.primary):
        await changed(watched, change)


async def test_no_put_is_lost_or_doubled_by_a_new_primary(watched: Watched) -> None:
    async with a_queue(watched.url, durability=1) as queue:
        put: list[bytes] = []
        stop = False

        async def keep_putting() -> None:
            while not stop:
                item = b"%d" % len(put)
                await queue.put(item)
                put.append(item)

        async with asyncio.timeout(PATIENCE):
            task = asyncio.create_task(keep_putting())
            await eventually(lambda: len(put) > 10)
            await changed(watched, Watched.failover)
            reached = len(put)
            await eventually(lambda: len(put) > reached + 10)
            stop = True
            await task
        got: list[bytes] = []
        while len(got) < len(put):
            got += await queue.get_many(10**6)
        assert got == put


async def test_plain_commands_find_a_new_primary(watched: Watched) -> None:
    async with a_queue(watched.url, scripting=False) as queue:
        await queue.put(b"1")
        await changed(watched, Watched.switch)
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(PressureError):  # its connection ended
                    assert await queue.get() == b"1"
                    break


async def test_no_more_connections_than_allowed_and_none_is_left_open(watched: Watched) -> None:
    before = asyncio.all_tasks()
    client = Client(url=watched.url, max_connections=3)
    queue = AsyncQueue(NAME, client=client)
    await queue.create()
    task = asyncio.create_task(queue.get())
    await eventually(lambda: blocked_clients(watched.primary) >= 2)
    await changed(watched, Watched.switch)
    await queue.put(b"1")
    assert await in_time(task) == b"1"
    assert client.server.connections <= 3
    await queue.delete()
    await client.aclose()
    await eventually(lambda: client.server.connections == 0)
    await eventually(lambda: asyncio.all_tasks() == before)


async def test_no_primary_comes(watched: Watched) -> None:
    """The Sentinels go on naming one that is dead: puts and waits end with an error when the retries do."""
    async with Client(url=watched.url, retry_timeout=0.3, connect_timeout=0.3) as client:
        queue = AsyncQueue(NAME, client=client)
        await queue.create()
        getting = asyncio.create_task(queue.get())
        await eventually(lambda: blocked_clients(watched.primary))
        heard(watched.primary, 1)
        frozen = [*watched.guards, *watched.servers]
        for server in frozen:
            os.kill(server.pid, signal.SIGSTOP)
        try:
            for channel in (client.connection._channel, queue._engine.waits.messages._channel):  # type: ignore[union-attr]
                assert channel is not None
                channel.abort("a test cuts it")
            await fails(ServerUnavailableError, queue.put(b"1"), r"tried again for 0\.3 seconds")
            await fails(PressureError, getting)
        finally:
            for server in frozen:
                os.kill(server.pid, signal.SIGCONT)
        until(lambda: watched.seen_by(watched.guards[0])["flags"] == "master", "the Sentinel is content")
        watched.wait_for_sentinels()
        async with AsyncQueue(NAME, url=watched.url) as other:
            await other.delete()


async def test_a_client_that_is_closed_while_it_asks_leaves_no_task(watched: Watched) -> None:
    before = asyncio.all_tasks()
    guard = watched.guards[0]
    os.kill(guard.pid, signal.SIGSTOP)
    try:
        queue = AsyncQueue(NAME, url=watched.url, settle_timeout=0.1, connect_timeout=60)
        tasks = [asyncio.create_task(queue.put(b"1")) for _ in range(2)]
        await asyncio.sleep(0.05)
        tasks[0].cancel()
        await in_time(queue.aclose())
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(outcomes[0], asyncio.CancelledError)
        await eventually(lambda: asyncio.all_tasks() == before)
    finally:
        os.kill(guard.pid, signal.SIGCONT)
    watched.wait_for_sentinels()


@pytest.fixture(scope="module", params=SERVERS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with replicated(request.param) as pair:
        yield pair


async def test_a_server_that_is_a_replica_from_the_beginning_is_an_error_at_once(pair: Pair) -> None:
    async with a_queue(pair.url) as queue:
        await queue.put(b"1")
        await eventually(lambda: ask(pair.servers[1], "EXISTS", "__pressure__:jobs"))
        async with AsyncQueue(NAME, url=pair.servers[1].url, retry_timeout=100) as wrong:
            await fails(ReadOnlyError, wrong.put(b"1"), "connect to the primary")
            await fails(ReadOnlyError, wrong.get())
            assert await wrong.qsize() == 1


@pytest.mark.parametrize("says", [b"-READONLY ", b"-ERR READONLY "], ids=["server", "proxy"])
async def test_an_address_whose_server_is_a_replica_for_a_while_is_waited_for(pair: Pair, says: bytes) -> None:
    """As behind an address that moves with the primary: READONLY passes, also where a proxy puts ERR before it."""
    server = pair.primary
    with Proxy(server.url) as proxy:
        proxy.rewrite = lambda answer: answer.replace(b"-READONLY ", says)
        await a_replica_for_a_while(proxy.url, server)
    until(lambda: follows(pair.servers[1]), "the replica follows again")


async def a_replica_for_a_while(url: str, server: EmbeddedServer) -> None:
    async with a_queue(url, bound=1) as queue:
        await queue.put(b"1")
        putting = asyncio.create_task(queue.put(b"2"))
        await eventually(lambda: blocked_clients(server))
        with redis_py.Redis.from_url(server.url) as db:
            assert db.wait(1, 5000) == 1
        # A replica of nothing: it finds no primary, and keeps its data.
        ask(server, "REPLICAOF", "127.0.0.1", free_port())
        try:
            getting = asyncio.create_task(queue.get())
            with admin(server) as db:
                await eventually(lambda: refusals(db, "READONLY") > 2)
            assert not getting.done()
            assert not putting.done()
        finally:
            ask(server, "REPLICAOF", "NO", "ONE")
        assert await in_time(getting) == b"1"
        await in_time(putting)
        assert await queue.get() == b"2"
