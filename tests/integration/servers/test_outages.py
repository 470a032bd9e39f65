"""Lost and restored connections are logged: two lines an outage, however many connections and tries there were."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apressure import AsyncQueue, OutcomeUnknownError, ServerUnavailableError
from apressure.embedded import EmbeddedServer
from tests.integration.conftest import eventually, in_time
from tests.servers import admin, blocked_clients
from tests.topologies import Watched, heard, sentinel

SECRET = "Pa55word"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The log so far."""
    caplog.set_level(logging.DEBUG, "apressure")

    def said() -> list[str]:
        assert SECRET not in caplog.text
        of_outages = [one for one in caplog.records if getattr(one, "event", "") in ("connection_lost", "reconnected")]
        assert {record.levelname for record in of_outages} <= {"INFO"}
        return [record.getMessage() for record in of_outages]

    return said


Lines = Callable[[], list[str]]


async def test_all_connections_that_end_together_are_one_line_and_so_is_their_return(
    make_server: Callable[..., EmbeddedServer], lines: Lines
) -> None:
    server = make_server("valkey")
    with admin(server) as db:
        db.execute_command("ACL", "SETUSER", "me", "on", f">{SECRET}", "~*", "+@all")
        url = server.url.replace("redis://", f"redis://me:{SECRET}@")
        async with AsyncQueue("jobs", url=url) as queue, AsyncQueue("more", client=queue.client) as more:
            await queue.create()
            await more.create()
            waiting = [asyncio.create_task(one.get()) for one in (queue, more)]
            await eventually(lambda: blocked_clients(server) >= 4)
            assert lines() == []
            for _ in range(2):
                db.client_kill_filter(_type="normal", skipme=True)
                await eventually(lambda: blocked_clients(server) >= 4)
            await queue.put(b"1")
            await more.put(b"2")
            assert await in_time(asyncio.gather(*waiting)) == [b"1", b"2"]
    where = rf"the server at {server.url.removeprefix('redis://').removesuffix('/0')} (database 0)"
    assert [line.partition(": ")[0].partition(", ")[0] for line in lines()] == [
        f"lost the connection to {where}",
        f"connected to {where} again",
    ] * 2


async def test_a_server_that_is_down_for_many_tries_is_one_line(
    make_server: Callable[..., EmbeddedServer], tmp_path: Path, lines: Lines
) -> None:
    server = make_server("valkey", directory=tmp_path, config={"appendonly": True, "appendfsync": "always"})
    async with AsyncQueue("jobs", url=server.url, retry_timeout=0.3) as queue:
        await queue.create()
        await queue.put(b"1")
        await asyncio.to_thread(server.stop)
        for _ in range(3):  # the first one may leave before the end of the connection has come
            with pytest.raises((ServerUnavailableError, OutcomeUnknownError)):
                await queue.put(b"2")
        (lost,) = lines()
        assert lost.startswith("lost the connection to the server at 127.0.0.1")
        await asyncio.to_thread(server.start)
        assert await queue.get() == b"1"
        assert [line.split()[0] for line in lines()] == ["lost", "connected"]


async def test_a_server_that_does_not_answer_is_lost(make_server: Callable[..., EmbeddedServer], lines: Lines) -> None:
    server = make_server("valkey")
    async with AsyncQueue("jobs", url=server.url, response_timeout=0.3, connect_timeout=0.3) as queue:
        await queue.create()
        os.kill(server.pid, signal.SIGSTOP)
        putting = asyncio.create_task(queue.put(b"1"))
        await eventually(lines)
        os.kill(server.pid, signal.SIGCONT)
        await in_time(putting)
        lost, again = lines()
        assert lost.endswith("the server did not answer for 0.3 seconds")
        assert again.startswith("connected to the server at 127.0.0.1")


async def test_a_process_that_stands_still_again_and_again_connects(url: str) -> None:
    """The server has answered long ago, each time that the loop turns."""
    queue = AsyncQueue[bytes]("jobs", url=url, connect_timeout=0.5)
    creating = asyncio.create_task(queue.create())
    while not creating.done():
        await asyncio.sleep(0)
        time.sleep(0.2)
    await creating
    await queue.delete()
    await queue.aclose()


async def test_connections_that_the_client_ends_are_not_lost(url: str, lines: Lines) -> None:
    async with AsyncQueue("jobs", url=url, max_connections=3) as queue:
        await queue.create(bound=1)
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        await queue.put(b"1")
        assert await in_time(waiting) == b"1"
        assert queue.client.connection.close_if_idle()
        await queue.delete()
    assert lines() == []


async def test_a_failover_is_two_lines_and_the_second_one_says_where_the_primary_is(lines: Lines) -> None:
    with sentinel("valkey") as watched:
        async with AsyncQueue("jobs", url=watched.url) as queue:
            await queue.create()
            getting = asyncio.create_task(queue.get())
            await eventually(lambda: blocked_clients(watched.primary))
            heard(watched.primary, 1)
            old = watched.primary.port
            await asyncio.to_thread(Watched.failover, watched, rejoin=False)
            await queue.put(b"1")
            assert await in_time(getting) == b"1"
            said = [line for line in lines() if line.startswith(("lost", "connected"))]
            assert f":{old} " in said[0]
            assert said[-1].startswith("connected")
            assert f":{watched.primary.port} " in said[-1]
            assert len(said) == 2


def test_code_that_is_not_asyncio_logs_the_same(make_server: Callable[..., EmbeddedServer], lines: Lines) -> None:
    from apressure.connection.settings import settings_from
    from apressure.connection.wire.blocking import Blocking

    server = make_server("valkey")
    options: Any = {"url": server.url.replace("redis://", f"redis://default:{SECRET}@")}
    with admin(server) as db:
        db.execute_command("ACL", "SETUSER", "default", "on", f">{SECRET}", "~*", "+@all", "nopass")
    blocking = Blocking(settings_from({**options, "retry_timeout": 0.1}))
    blocking.ask(b"PING")
    blocking.close()
    blocking.ask(b"PING")
    server.stop()
    for _ in range(2):
        with pytest.raises(ServerUnavailableError):
            blocking.ask(b"PING")
    with pytest.raises(ServerUnavailableError):
        Blocking(settings_from({**options, "retry_timeout": 0.1})).ask(b"PING")  # was never connected
    server.start()
    blocking.ask(b"PING")
    blocking.close()
    assert [line.split()[0] for line in lines()] == ["lost", "connected"]
