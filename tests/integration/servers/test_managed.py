"""Servers that refuse some commands, as managed ones do: the queues work, or an error says what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from apressure import (
    AsyncQueue,
    Durability,
    EventQueue,
    QueueClosedError,
    ScriptingRefusedError,
    ServerTooOldError,
    TaskQueue,
    serve,
)
from apressure.embedded import EmbeddedServer
from apressure.testing.contract.steps import begun
from tests.integration.commands import Commands
from tests.integration.conftest import fails, in_time
from tests.servers import SERVERS

Make = Callable[..., EmbeddedServer]
KINDS = (AsyncQueue, EventQueue, TaskQueue)
NOT_NEEDED = (
    "CLIENT",
    "CLUSTER",
    "COMMAND",
    "CONFIG",
    "HELLO",
    "INFO",
    "KEYS",
    "MEMORY",
    "OBJECT",
    "SELECT",
    "WAIT",
)
"""Managed servers refuse some of these; whether all at once makes no difference."""

PUB_SUB = ("PSUBSCRIBE", "PUBLISH", "SUBSCRIBE")
SCRIPTS = ("EVAL", "EVALSHA", "SCRIPT")


@pytest.fixture(params=SERVERS)
def without(make_server: Make, request: pytest.FixtureRequest) -> Callable[..., EmbeddedServer]:
    """Start a server that lacks some commands."""

    def start(*commands: str) -> EmbeddedServer:
        return make_server(request.param, config={"rename-command": [(command, "") for command in commands]})

    return start


async def work(queue: Any) -> None:
    """Do what a program does with a queue."""
    async with queue:
        await queue.create(bound=5)
        await queue.put("0")
        await queue.put("1", delay=0.05)
        assert await in_time(queue.get()) == "0"
        assert await in_time(queue.get()) == "1"
        waiting = await begun(queue.get())
        await queue.put("2")
        assert await in_time(waiting) == "2"
        await queue.set_rate(1000)
        stop, handled = asyncio.Event(), []

        async def handle(item: str) -> None:
            handled.append(item)
            stop.set()

        await queue.put("3")
        await in_time(serve(handle, queue, stop=stop, signals=()))
        assert handled == ["3"]
        assert (await queue.statistics()).length == 0
        await queue.close()
        await fails(QueueClosedError, queue.get())
        await queue.delete(timeout=10)


@pytest.mark.parametrize("kind", KINDS)
async def test_queues_need_no_command_of_administration(without: Any, kind: Any) -> None:
    server = without(*NOT_NEEDED, "SCAN", *(PUB_SUB if kind is AsyncQueue else ()))
    await work(kind("jobs", url=server.url, codec="json"))


@pytest.mark.parametrize("kind", [EventQueue, TaskQueue])
async def test_without_publish_the_error_says_that_scripts_call_it(without: Any, kind: Any) -> None:
    server = without(*PUB_SUB)
    async with kind("jobs", url=server.url, codec="json") as queue:
        await queue.create()
        await fails(ServerTooOldError, queue.put("1"), "lacks a command that scripts of apressure call")


@pytest.mark.parametrize("kind", KINDS)
async def test_without_scripts_the_error_says_which_queue_can_do_without(without: Any, kind: Any) -> None:
    server = without(*SCRIPTS)
    async with kind("jobs", url=server.url) as queue:
        error = await fails(ScriptingRefusedError, queue.create())
    assert "allow EVAL and EVALSHA" in str(error)
    assert "AsyncQueue puts and gets without them, with scripting=False" in str(error)
    assert "args" not in str(error)


async def test_without_scripts_a_plain_queue_works(without: Any) -> None:
    server = without(*SCRIPTS, *(command for command in NOT_NEEDED if command != "CLIENT"), "SCAN")
    async with AsyncQueue("jobs", url=server.url, scripting=False) as queue:
        await queue.create(bound=1)
        await queue.put(b"1")
        putting = await begun(queue.put(b"2"))
        assert await in_time(queue.get()) == b"1"
        await in_time(putting)
        assert await in_time(queue.get()) == b"2"
        waiting = await begun(queue.get())
        await queue.close()
        with pytest.raises(QueueClosedError):
            await in_time(waiting)


async def test_without_wait_durability_is_refused_before_anything_is_written(without: Any) -> None:
    server = without("WAIT")
    with pytest.raises(ServerTooOldError, match="lacks the command WAIT:"):
        async with AsyncQueue("jobs", url=server.url, durability=Durability(1)):
            pass
    async with AsyncQueue("jobs", url=server.url) as queue:
        assert not await queue.exists()


def test_without_scan_commands_take_the_names_of_queues(without: Any) -> None:
    server = without("SCAN", *NOT_NEEDED)
    run = Commands(server.url)
    run("create", "jobs")
    run("put", "jobs", "1")
    assert b"lacks the command SCAN: name the queues" in run("ls", code=7).stderr
    assert run.json("stat", "jobs")["length"] == 1
    run("doctor", "jobs")
    run("health", "jobs")
    assert b"jobs" in run("top", "jobs", "--once").stdout
    assert run("get", "jobs", "-n", "1").stdout == b"1\n"
