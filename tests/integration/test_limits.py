"""Where there is no room for one more connection: what the program is told, and that it goes on when there is."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import resource
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis.asyncio

from apressure import AsyncQueue, Client, QueueEmptyError, ServerUnavailableError
from apressure.embedded import EmbeddedServer
from tests.integration.conftest import Opener, in_time


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open nothing more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for one in taken:
            os.close(one)


async def test_too_many_open_files_are_a_clear_error(open_queue: Opener) -> None:
    queue = await open_queue(retry_timeout=0)
    with pytest.raises(QueueEmptyError):
        await queue.get(timeout=0)  # its script has been read then
    clear = r"Too many open files.*ulimit -n.*max_connections="
    with no_more_files(), pytest.raises(ServerUnavailableError, match=clear):
        await in_time(queue.get())
    await queue.put(b"x")
    assert await queue.get() == b"x"


async def test_connecting_looks_into_no_file(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later versions of redis-py look up their own version each time, which takes longer than all the rest."""

    def version(name: str) -> str:
        raise AssertionError(f"somebody asks for the version of {name}")

    monkeypatch.setattr(importlib.metadata, "version", version)
    async with Client(url):
        pass


@pytest.mark.parametrize("kind", ["valkey", "redis"])
@pytest.mark.parametrize("password", ["", "secret"], ids=["", "with a password"])
async def test_a_server_that_takes_no_more_clients_is_a_clear_error(
    make_server: Callable[..., EmbeddedServer], kind: str, password: str
) -> None:
    secured = {"requirepass": password} if password else {}
    server = make_server(kind, config={"maxclients": 12, **secured})
    where: dict[str, Any] = {"url": server.url, "password": password or None}
    async with (
        AsyncQueue("jobs", **where, retry_timeout=0.5) as hasty,
        AsyncQueue("jobs", **where) as patient,
        contextlib.AsyncExitStack() as others,
    ):
        await hasty.create()
        with pytest.raises(redis.ConnectionError):
            while True:
                other = redis.asyncio.Redis.from_url(
                    server.url, password=password or None, single_connection_client=True
                )
                await others.enter_async_context(other)

        clear = r"max number of clients reached.*maxclients"
        stranger = AsyncQueue("jobs", **where)
        for attempt in (stranger.put(b"y"), stranger.get()):
            with pytest.raises(ServerUnavailableError, match=clear):
                await in_time(attempt)

        # Who is connected already may work, and learns when a wait finds no connection.
        with pytest.raises(ServerUnavailableError, match=clear):
            await in_time(hasty.get())
        await hasty.put(b"x")
        assert await hasty.get() == b"x"
        waiting = asyncio.create_task(patient.get())
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await others.aclose()
        await hasty.put(b"z")
        assert await in_time(waiting) == b"z"
