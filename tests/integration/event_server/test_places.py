"""The server on a cluster, behind Sentinels, and with a user of few rights."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from apressure import Durability
from apressure.embedded import EmbeddedServer
from apressure.events.server.server import EventServer
from apressure.events.server.settings import Address, ServerSettings, redis_url
from tests.integration.conftest import PATIENCE
from tests.integration.event_server.conftest import FREE, Serve, Served, Wire
from tests.servers import SERVERS, admin
from tests.topologies import cluster

PAGE = (Path(__file__).parents[3] / "docs" / "do" / "events-server.md").read_text()


def rules() -> list[str]:
    """The user of the docs."""
    (line,) = re.findall(r"```sh\n(redis-cli ACL SETUSER .*?)```", PAGE, re.DOTALL)
    return [rule.replace(">PASSWORD", ">secret") for rule in shlex.split(line.replace("\\\n", " "))[3:]]


async def use(url: str) -> None:
    """Use queues in several slots through a server, from push to acknowledgement, with each kind of wait."""
    server = EventServer(ServerSettings(listen=FREE, url=url))
    ready: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(server.run(ready.set_result))
    await asyncio.wait((ready, task), timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    names = [f"queue-{n}" for n in range(6)]
    one, other = [Wire(*await asyncio.open_connection("127.0.0.1", ready.result().port)) for _ in range(2)]
    assert await one("QREGISTER", *names) == b"OK"
    for name in names:
        one.send("QNOTIFY", 80)
        await asyncio.sleep(0.05)
        assert await other("QLPUSH", name, "a", "x", "b", "y") == b"OK"
        assert await one.reply() == name.encode()
        assert await one("QRPOP", name, "EX", 60) == [b"a", b"x"]
        assert await one("QACK", name, "a", "REDO") == 1
        assert await one("QRPOP", name, "COUNT", 2) == [[b"a", b"x"], [b"b", b"y"]]
        one.send("QRPOP", name, "WAIT", 80, "EX", 0)
        await asyncio.sleep(0.05)
        assert await other("QACK", name, "a", "b") == 2
        assert await other("QRPUSH", name, "c", "z") == b"OK"
        assert await one.reply() == [b"c", b"z"]
    assert await other("QSTATUS") == [[name.encode(), 0, 0, 1] for name in names]
    for name in names:
        assert await other("QCREATE", name, 5) == 1
        assert await other("QLPUSH", name, "d", "x", "CREATED") == b"OK"
        assert await one("QRPOP", name, "LIMIT", 1, "TELL") == [b"d", b"x", 1]
        assert await one("QRETURN", name, "d") == 1
        assert await one("QRPOP", name, "LIMIT", 1, "TELL") == [b"d", b"x", 1]
        assert await one("QFAIL", name, "d", "why") == 1
        assert await one("QRPOP", name, "LIMIT", 1, "TELL") == b"empty created"
        assert await other("QREQUEUE", name, 1) == b"m"
        assert await one("QRPOP", name) == [b"d", b"x"]
        assert await one("QLATER", name, 60_000, "d", "why") == 1
        assert await other("QDELAY", name, 10, "e", "y", "CREATED") == b"OK"
        assert await one("QRPOP", name, "WAIT", 80, "EX", 0) == [b"e", b"y"]
        assert await other("QPURGE", name, 5) == 1
        assert await other("QLPUSH", name, "d", "x") == b"OK"
        assert [await other("QPAUSE", name), await other("QPURGE", name, 1), await other("QRESUME", name)] == [1, 1, 1]
        assert await other("QLIMIT", name, "count", 1, "per", 50, "concurrency", 1, "held", 20) == b"OK"
        assert await other("QLPUSH", name, "f", "x", "g", "y", "NOWAIT") == b"OK"
        assert await one("QRPOP", name, "WAIT", 80) == [b"f", b"x"]
        one.send("QRPOP", name, "WAIT", 80)
        assert await other("QACK", name, "f") == 1
        assert await one.reply() == [b"g", b"y"]
        assert await other("QLIMIT", name, "count", 0, "per", 0, "concurrency", 0) == b"OK"
        assert [await other("QCLOSE", name, "CREATED"), await other("QDELETE", name)] == [1, b"OK"]
    server.stop()
    async with asyncio.timeout(PATIENCE):
        await task
    for wire in (one, other):
        await wire.close()


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_cluster(kind: str) -> None:
    with cluster(kind, nodes=3) as nodes:
        await use(redis_url(nodes.url.partition("://")[2], cluster=True))


async def test_what_replicas_do_not_confirm_is_an_error(serve: Serve) -> None:
    served: Served = await serve(durability=Durability(replicas=1, timeout=0.05))
    wire = await served.connect()
    for _ in range(2):
        answer = await wire("QLPUSH", "foo", "1", "x")
    assert answer == "ERR duplicate event 1"  # the first push was carried out, and said that it was not confirmed
    assert "it may be lost when the server fails" in await wire("QLPUSH", "foo", "2", "x")
    assert "it may be lost when the server fails" in await wire("QRPOP", "foo")
    async with asyncio.timeout(PATIENCE):
        while await wire("QSTATUS", "foo") != [[b"foo", 2, 0, 0]]:  # what nobody got goes back
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", SERVERS)
async def test_the_user_of_the_docs_has_the_rights_it_needs(
    make_server: Callable[..., EmbeddedServer], kind: str
) -> None:
    server = make_server(kind)
    with admin(server) as client:
        client.execute_command("ACL", "SETUSER", *rules())
    await use(server.url.replace("redis://", "redis://okq:secret@"))
    with admin(server) as client:
        refused = [entry for entry in client.acl_log() if entry["object"] != "info"]
        assert not refused
