"""Only the server sees a password, however it was given and whatever fails."""

from __future__ import annotations

import logging
import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import redis.asyncio

from apressure import AsyncQueue, Client
from apressure.embedded import EmbeddedServer
from tests.integration.commands import COMMAND, environment, running
from tests.integration.conftest import fails
from tests.servers import SERVERS

Make = Callable[..., EmbeddedServer]
SECRET = "Xq7hidden"
"""No part of any other text."""
USER = "somebody"


def told(error: BaseException) -> str:
    """Everything that printing or inspecting an error shows."""
    shown = ["".join(traceback.format_exception(error))]
    pending, seen = [error], set()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        shown += [repr(one), str(one), repr(one.args), repr(vars(one)), *getattr(one, "__notes__", ())]
        pending += [linked for linked in (one.__cause__, one.__context__) if linked is not None]
    return "\n".join(shown)


@pytest.fixture
def nowhere() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> Any:
    """Whatever any logger says at DEBUG shows no password."""
    caplog.set_level(logging.DEBUG)
    yield caplog
    assert SECRET not in caplog.text
    for record in caplog.records:
        assert SECRET not in repr(vars(record))


def ways(port: int) -> dict[str, dict[str, Any]]:
    """The ways that a password can come."""
    at = f"127.0.0.1:{port}"
    return {
        "url": {"url": f"redis://:{SECRET}@{at}"},
        "url with a user": {"url": f"redis://{USER}:{SECRET}@{at}/0"},
        "url's query": {"url": f"redis://{at}?password={SECRET}"},
        "tls": {"url": f"rediss://{USER}:{SECRET}@{at}?ssl_cert_reqs=none", "connect_timeout": 0.3},
        "unix": {"url": f"unix://{USER}:{SECRET}@/tmp/apressure-no-such.sock"},
        "arguments": {"host": "127.0.0.1", "port": port, "username": USER, "password": SECRET},
        "arguments over a url": {"url": f"redis://{at}", "password": SECRET},
        "client": {"redis": redis.asyncio.Redis(host="127.0.0.1", port=port, password=SECRET)},
        "client from a url": {"redis": redis.asyncio.Redis.from_url(f"redis://{USER}:{SECRET}@{at}")},
        "sentinels": {"url": f"redis+sentinel://{USER}:{SECRET}@{at}/primary"},
        "sentinels' own": {"url": f"redis+sentinel://{at}/primary?sentinel_password={SECRET}"},
        "cluster": {"url": f"redis+cluster://{USER}:{SECRET}@{at},127.0.0.1:1"},
    }


@pytest.mark.parametrize("way", ways(1))
async def test_a_server_out_of_reach_or_a_wrong_password(make_server: Make, nowhere: int, way: str) -> None:
    server = make_server("valkey", config={"requirepass": "another"})
    for port in (nowhere, server.port):
        options = ways(port)[way]
        queue: AsyncQueue[bytes] = AsyncQueue("{jobs}", retry_timeout=0.1, **options)
        client = queue.client
        for shown in (queue, client, client.settings, client.server, client.settings.address, client.__dict__):
            assert SECRET not in repr(shown)
            assert SECRET not in str(shown)
        for operation in (queue.put(b"x"), queue.get(), queue.statistics(), queue.exists(), queue.client.queues()):
            raised = await fails(Exception, operation)
            assert SECRET not in told(raised)
        await queue.aclose()


@pytest.mark.parametrize("kind", SERVERS)
async def test_the_right_password(make_server: Make, kind: str, log: Any) -> None:
    server = make_server(kind, config={"requirepass": SECRET})
    async with AsyncQueue("jobs", url=f"redis://:{SECRET}@127.0.0.1:{server.port}") as queue:
        await queue.create()
        await queue.put(b"x")
        async with queue.consumer() as consumer:
            assert await anext(consumer) == b"x"
            assert SECRET not in repr(queue) + repr(queue.client) + repr(consumer) + repr(await queue.statistics())
            shown = repr(vars(queue.client)) + repr(vars(queue.client.server)) + repr(queue.client.settings)
            assert SECRET not in shown
        await queue.delete()


BAD = [
    f"redis://:{SECRET}#@localhost",
    f"redis://:{SECRET}/@localhost",
    f"redis://:{SECRET}?@localhost",
    f"redis://:{SECRET}/x@localhost:6379/0",
    f"redis://:[{SECRET}@localhost",
    f"redis://:{SECRET}]@localhost",
    f"redis://:{SECRET}@localhost:port",
    f"redis://:{SECRET}@localhost:99999",
    f"redis://:{SECRET}@localhost:0",
    f"redis://:{SECRET}@localhost/zero",
    f"redis://{USER}:{SECRET}@localhost?no_such_option=1",
    f"redis://{USER}:{SECRET}@localhost?protocol=3",
    f"redis://{USER}:{SECRET}@localhost?db=x",
    f"redis:{USER}:{SECRET}@localhost",
    f"redis//{USER}:{SECRET}@localhost",
    f"{USER}:{SECRET}@localhost",
    f":{SECRET}@localhost",
    f"http://{USER}:{SECRET}@localhost",
    f"redis://{USER}:{SECRET}:localhost",
    f"redis://localhost:{SECRET}",
    f"redis://localhost:{SECRET}@",
    f"redis://{USER}:{SECRET}@",
    f"redis://{USER}@{SECRET}@localhost:x",
    f"unix://:{SECRET}@",
    f"unix://:{SECRET}/@/tmp/x?nope=1",
    f"embedded://{USER}:{SECRET}@localhost",
    f"embedded:{SECRET}@x",
    f"redis+sentinel://:{SECRET}@localhost",
    f"redis+sentinel://:{SECRET}@/primary",
    f"redis+sentinel://:{SECRET}/@localhost/primary",
    f"redis+sentinel://:{SECRET}#@localhost/primary",
    f"redis+sentinel://:{SECRET}@localhost:x/primary",
    f"redis+sentinel://localhost:{SECRET}/primary",
    f"redis+sentinel://localhost/primary?sentinel_password={SECRET}&nope=1",
    f"redis+cluster://:{SECRET}@localhost:x",
    f"redis+cluster://:{SECRET}@localhost/3",
    f"redis+cluster://{USER}:{SECRET},localhost",
    f"redis+cluster://:{SECRET}/,x@localhost",
    f"redis+clutser://{USER}:{SECRET}@localhost",
    f"redis://{USER}:{SECRET}%@localhost:x",
    f"redis ://{USER}:{SECRET}@localhost",
]


@pytest.mark.parametrize("url", BAD, ids=range(len(BAD)))
def test_a_url_that_is_wrong(url: str) -> None:
    refusal: Exception | None = None
    client = None
    try:
        client = Client(url)
    except (ValueError, TypeError) as error:
        refusal = error
    assert refusal is None or SECRET not in told(refusal)
    assert SECRET not in repr(client)  # some are valid, and mean something else than was meant


@pytest.mark.parametrize("option", ["password", "username", "url"])
def test_an_option_of_the_wrong_type(option: str) -> None:
    with pytest.raises(TypeError) as raised:
        Client(**{option: SECRET.encode()})  # type: ignore[arg-type]
    assert SECRET not in told(raised.value)


COMMANDS = [command.split() for command in ("ls", "ls --json", "stat jobs", "put jobs x --json", "get jobs")]


@pytest.mark.parametrize("how", ["option", "environment"])
def test_the_command_line(nowhere: int, how: str) -> None:
    urls = [f"redis://{USER}:{SECRET}@127.0.0.1:{nowhere}", BAD[0], BAD[5], BAD[14]]
    for url, command in [*zip(urls, COMMANDS, strict=False), (urls[0], COMMANDS[-1])]:
        arguments = [*command, "--url", url] if how == "option" else command
        with running([*COMMAND, *arguments], env=environment(url if how == "environment" else None)) as process:
            output, errors = process.communicate(timeout=30)
        assert process.returncode != 0
        assert SECRET.encode() not in output + errors
        assert os.fsencode("Traceback") not in errors
