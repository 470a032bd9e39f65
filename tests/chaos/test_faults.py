"""Connections that break, servers that restart, and what clients make of it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from apressure import AsyncQueue, Client, OutcomeUnknownError, QueueClosedError, QueueEmptyError, ServerUnavailableError
from apressure.embedded import EmbeddedServer
from tests.chaos.proxy import Trouble, proxy
from tests.chaos.support import (
    NAME,
    PATIENCE,
    Account,
    Recorder,
    check_server,
    check_tidy,
    drain,
    no_complaints,
    often,
)
from tests.servers import SERVERS, admin

COUNT = often(150, 4)
"""Messages that each producer puts, or that each consumer gets, over a bad line."""

SETTINGS: dict[str, Any] = {"response_timeout": 0.4, "connect_timeout": 0.4, "retry_timeout": 30.0}

pytestmark = pytest.mark.timeout(often(120, 10))


def some_trouble(rng: random.Random) -> Trouble:
    return Trouble(
        cut=rng.uniform(0.01, 0.04), lose=rng.uniform(0.03, 0.08), silence=rng.uniform(0, 0.002), delay=0.001
    )


async def settle(
    queue: AsyncQueue[bytes], account: Account, recorder: Recorder, server: EmbeddedServer, cell: str,
    tried: int, may_lose: int = 0, exact: bool = True,
) -> None:  # fmt: skip
    """Settle the account of a drained queue, and delete it."""
    row = account.row(may_lose=may_lose)
    row.tried = tried
    recorder.add(cell, server, row)
    assert row.clean(), f"{row} {account.missing()}"
    await check_tidy(queue, account, exact)
    await queue.delete(timeout=PATIENCE)


async def put_all(queue: AsyncQueue[bytes], account: Account, producer: str, rng: random.Random, count: int) -> None:
    """Put, one by one and many at a time; every put has to return normally."""
    while count > 0:
        messages = account.fresh(producer, min(count, rng.choice((1, 1, 1, 4, 30))))
        count -= len(messages)
        if len(messages) == 1:
            await queue.put(messages[0])
        else:
            await queue.put_many(messages)
        account.acknowledge(messages)


async def get_all(queue: AsyncQueue[bytes], account: Account, kind: str, doubts: list[int]) -> None:
    """Get until the queue is closed and drained. A get whose outcome is unknown adds to the doubts."""
    most = 3 if kind == "get_many" else 1
    while True:
        try:
            if kind == "receive":
                try:
                    delivery = await queue.receive(timeout=1)
                except QueueEmptyError:
                    continue
                note(account, delivery.item, delivery.attempts)
                await delivery.ack()
            elif kind == "consumer":
                async with queue.consumer(prefetch=2) as consumer:
                    async for message in consumer:
                        note(account, message, consumer.attempts)
                return
            else:
                account.arrived += await queue.get_many(most)
        except OutcomeUnknownError:
            assert kind not in {"receive", "consumer"}
            doubts.append(most)
        except QueueClosedError:
            return


def note(account: Account, message: bytes, attempts: int) -> None:
    """At least once: what comes again has to say so."""
    if attempts == 1 or message not in account.arrived:
        account.arrived.append(message)


@pytest.mark.parametrize("bound", [0, 3])
async def test_puts_over_a_bad_line(
    server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder, bound: int
) -> None:
    """A put whose reply was lost is sent again, and answered from the server's record of it."""
    account = Account()
    async with no_complaints(), proxy(url, rng) as line, AsyncQueue(NAME, url=url) as direct:
        await direct.create(bound)
        draining = asyncio.create_task(drain(direct, account))
        async with Client(line.url, **SETTINGS) as one, Client(line.url, **SETTINGS) as two:
            line.trouble = some_trouble(rng)
            async with asyncio.timeout(often(90, 6)), asyncio.TaskGroup() as group:
                for number in range(3):
                    queue = AsyncQueue[bytes](NAME, client=two if number else one)
                    group.create_task(put_all(queue, account, f"p{number}", rng, COUNT))
            line.trouble = Trouble()
        await direct.close()
        await draining
        await settle(direct, account, recorder, server, "bad line: puts", line.cuts)
    await check_server(server)


@pytest.mark.parametrize("kind", ["get", "get_many", "receive", "consumer"])
async def test_gets_over_a_bad_line(
    server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder, kind: str
) -> None:
    """A get is never repeated: it may say that its outcome is unknown. What is received is received once."""
    account, doubts = Account(), list[int]()
    async with no_complaints(), proxy(url, rng) as line, AsyncQueue(NAME, url=url) as direct:
        await direct.create(5)
        async with AsyncQueue(NAME, url=line.url, **SETTINGS) as queue:
            line.trouble = some_trouble(rng)
            async with asyncio.timeout(often(90, 6)):
                getting = asyncio.create_task(get_all(queue, account, kind, doubts))
                await put_all(direct, account, "p", rng, COUNT // (2 if kind == "receive" else 1))  # an ack each
                await direct.close()
                await getting
            line.trouble = Trouble()
        await settle(
            direct, account, recorder, server, f"bad line: {kind}", line.cuts,
            may_lose=sum(doubts), exact=not doubts,
        )  # fmt: skip
    await check_server(server)


@pytest.mark.parametrize("how", ["restarted", "killed"])
@pytest.mark.parametrize("program", SERVERS)
async def test_a_server_that_comes_back(
    make_server: Callable[..., EmbeddedServer], tmp_path: Path, rng: random.Random, recorder: Recorder,
    program: str, how: str,
) -> None:  # fmt: skip
    """Clients go on where they were: nothing that was acknowledged is gone, on a server that keeps its data."""
    server = make_server(program, directory=tmp_path, config={"appendfsync": "always"})
    account = Account()
    settings = {**SETTINGS, "url": server.url}
    restarts = often(2, 5)
    async with no_complaints(), AsyncQueue(NAME, **settings) as queue, AsyncQueue(NAME, **settings) as other:
        await queue.create(4)
        getting = asyncio.create_task(get_all(other, account, "consumer", []))
        stop = asyncio.Event()

        async def put_on() -> None:
            while not stop.is_set():
                await put_all(queue, account, "p", rng, 5)
                await asyncio.sleep(0.001)

        putting = asyncio.create_task(put_on())
        for _ in range(restarts):
            await asyncio.sleep(rng.uniform(0.05, 0.2))
            if how == "killed":
                os.kill(server.pid, signal.SIGKILL)
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(rng.uniform(0, 0.1))
            await asyncio.to_thread(server.start)
        await asyncio.sleep(0.2)
        stop.set()
        async with asyncio.timeout(PATIENCE):
            await putting
            await queue.close()
            await getting
        await settle(queue, account, recorder, server, f"server {how}", restarts, exact=False)


OPERATIONS: dict[str, Callable[[AsyncQueue[bytes]], Awaitable[Any]]] = {
    "create": lambda queue: queue.create(exist_ok=True),
    "exists": lambda queue: queue.exists(),
    "statistics": lambda queue: queue.statistics(),
    "put": lambda queue: queue.put(b"1"),
    "put_nowait": lambda queue: queue.put_nowait(b"1"),
    "put_many": lambda queue: queue.put_many([b"1", b"2"]),
    "get": lambda queue: queue.get(),
    "get_nowait": lambda queue: queue.get_nowait(),
    "get_many": lambda queue: queue.get_many(2),
    "receive": lambda queue: queue.receive(),
    "peek": lambda queue: queue.peek(),
    "close": lambda queue: queue.close(),
    "wait_closed": lambda queue: queue.wait_closed(),
    "delete": lambda queue: queue.delete(),
    "producer": lambda queue: queue.producer(exclusive=True).__aenter__(),
    "consumer": lambda queue: queue.consumer().__aenter__(),
    "queues": lambda queue: queue.client.queues(),
}


@pytest.mark.parametrize("program", SERVERS)
async def test_a_server_that_is_down_for_good(make_server: Callable[..., EmbeddedServer], program: str) -> None:
    """Every operation fails with one clear error: those that wait already, those that begin now, new clients."""
    server = make_server(program)
    settings = {**SETTINGS, "url": server.url, "retry_timeout": 0.3}
    async with no_complaints(), AsyncQueue("full", **settings) as full, AsyncQueue("empty", **settings) as empty:
        await full.create(1)
        await full.put(b"1")
        await empty.create()
        blocked = [
            asyncio.create_task(work)
            for work in (full.put(b"2"), full.put_many([b"2"]), empty.get(), empty.get_many(3), full.wait_closed())
        ]
        await asyncio.sleep(0.1)
        await asyncio.to_thread(server.stop)
        async with asyncio.timeout(PATIENCE):
            for error in await asyncio.gather(*blocked, return_exceptions=True):
                assert isinstance(error, ServerUnavailableError), repr(error)
            for operation in OPERATIONS.values():
                with pytest.raises(ServerUnavailableError, match=str(server.port)):
                    await operation(empty)
                fresh = AsyncQueue[bytes](NAME, **settings)
                with pytest.raises(ServerUnavailableError, match=str(server.port)):
                    await operation(fresh)
                await fresh.aclose()


async def test_connections_that_an_administrator_kills(
    server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder
) -> None:
    """CLIENT KILL of waiters and of the connection for steps, while operations are blocked: they go on."""
    account = Account()
    kills = 0
    async with no_complaints(), AsyncQueue(NAME, url=url) as putter, AsyncQueue(NAME, url=url) as getter:
        await putter.create(2)
        with admin(server) as client:
            for number in range(often(8, 10)):
                blocked_on_full = number % 2 == 0
                messages = account.fresh("p", 6)
                putting = asyncio.create_task(putter.put_many(messages))
                receiving: asyncio.Task[None] | None = None
                if not blocked_on_full:
                    receiving = asyncio.create_task(receive_some(getter, account, len(messages) + 1))
                for _ in range(3):
                    await asyncio.sleep(rng.uniform(0, 0.05))
                    kills += client.client_kill_filter(_type="normal", skipme=True)
                if receiving is None:
                    receiving = asyncio.create_task(receive_some(getter, account, len(messages)))
                async with asyncio.timeout(PATIENCE):
                    await putting
                    account.acknowledge(messages)
                    if not blocked_on_full:
                        (last,) = account.fresh("p")
                        await putter.put(last)
                        account.acknowledge([last])
                    await receiving
        await putter.close()
        await settle(putter, account, recorder, server, "CLIENT KILL", kills)


async def receive_some(queue: AsyncQueue[bytes], account: Account, count: int) -> None:
    for _ in range(count):
        delivery = await queue.receive()
        account.arrived.append(delivery.item)
        await delivery.ack()
