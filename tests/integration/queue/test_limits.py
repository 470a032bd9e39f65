"""No room for another connection: the error says so, and the program goes on when there is room again."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.metadata
import os
import resource
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis.asyncio

from apressure import AsyncQueue, Client, QueueEmptyError, ServerUnavailableError
from apressure.embedded import EmbeddedServer
from tests.integration.conftest import PATIENCE, Opener, fails, in_time
from tests.servers import SERVERS


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open nothing more."""
    gc.collect()  # what earlier tests left would be closed in between
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


@pytest.mark.parametrize("kind", SERVERS)
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
                inside = other

        clear = r"max number of clients reached.*maxclients"
        stranger = AsyncQueue("jobs", **where)
        for attempt in (stranger.put(b"y"), stranger.get()):
            await fails(ServerUnavailableError, attempt, clear)

        # Who is connected already may work, and learns when a wait finds no connection.
        await fails(ServerUnavailableError, hasty.get(), clear)
        await hasty.put(b"x")
        assert await hasty.get() == b"x"
        before = (await inside.info("stats"))["rejected_connections"]
        waiting = asyncio.create_task(patient.get())
        async with asyncio.timeout(PATIENCE):
            while (await inside.info("stats"))["rejected_connections"] < before + 2:
                await asyncio.sleep(0.01)
        assert not waiting.done()
        await others.aclose()
        await hasty.put(b"z")
        assert await in_time(waiting) == b"z"
