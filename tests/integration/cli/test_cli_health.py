"""`apressure health`: the exit code and one line."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable

import pytest

from apressure import EventQueue
from apressure.embedded import EmbeddedServer
from tests.integration.commands import Commands
from tests.integration.conftest import Opener
from tests.integration.events.remote.conftest import serving


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_a_queue_is_healthy_while_it_can_be_used(cli: Commands, open_queue: Opener) -> None:
    queue = await open_queue(bound=2)
    await queue.put_many([b"a", b"b"])
    async with queue.consumer():
        assert cli("health", "jobs", "--max-length", "2", "--consumed").stdout.startswith(b"healthy: jobs answered in ")
    assert cli("health", "jobs", "--max-length", "1", code=1).stdout == b"unhealthy: jobs has 2 items, more than 1\n"
    told = json.loads(cli("health", "jobs", "--consumed", "--json", code=1).stdout)
    assert (told["healthy"], told["name"], told["reason"], told["length"]) == (False, "jobs", "has no consumer", 2)
    await queue.pause()
    assert re.search(rb"^healthy: jobs answered in .* ms; paused since \d\d:\d\d\n$", cli("health", "jobs").stdout)
    assert json.loads(cli("health", "jobs", "--json").stdout)["paused"]
    await queue.close()
    assert cli("health", "jobs", code=1).stdout == b"unhealthy: jobs is closed\n"


@pytest.mark.leaves_keys
async def test_a_queue_on_an_okq_server_can_be_probed(url: str) -> None:
    async with serving(url) as okq, EventQueue("clicks", url=okq) as clicks:
        cli = Commands(okq)

        async def health(*options: str, code: int = 0) -> bytes:
            done = await asyncio.to_thread(cli, "health", "clicks", *options, code=code)
            return done.stdout or done.stderr

        assert b"does not exist" in await health(code=3)
        await clicks.put(b"1")
        assert (await health()).startswith(b"healthy: events:clicks answered in ")
        assert await health("--max-length", "0", code=1) == b"unhealthy: events:clicks has 1 items, more than 0\n"
        assert b"has no consumer" in await health("--consumed", code=1)
        async with clicks.consumer():
            assert b"healthy" in await health("--consumed")
    assert await health(code=7)


def test_a_server_that_does_not_answer_is_an_error(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server()
    cli = Commands(server.url)
    os.kill(server.pid, signal.SIGSTOP)
    errors = cli("health", "jobs", "--timeout", "0.3", code=7).stderr
    assert errors == b"apressure: the server did not answer in 0.3 seconds\n"
    os.kill(server.pid, signal.SIGCONT)
    assert b"does not exist" in cli("health", "jobs", code=3).stderr
