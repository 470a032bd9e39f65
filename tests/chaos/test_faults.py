"""Connections that break, servers that restart, and what clients make of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from apressure import AsyncQueue, Client, OutcomeUnknownError, QueueClosedError, QueueEmptyError, ServerUnavailableError
from apressure.embedded import EmbeddedServer
from apressure.testing.proxy import Proxy, Trouble
from tests.chaos.support import (
    LONG,
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

COUNT = often(80, 5)
"""Messages that each consumer gets over a bad line."""

PUTS = often(25, 10)
"""Puts of each of four tasks over a bad line, with each mode, bound and server: 4,000 a mode in the long form."""

SETTINGS: dict[str, Any] = {"response_timeout": 0.4, "connect_timeout": 0.4, "retry_timeout": 30.0}

MODES = {
    "drops replies": Trouble(lose=0.02, silence=0.001),
    "delays": Trouble(delay=0.004, stall=0.004, stalled=0.6),
    "duplicates segments of replies": Trouble(twice=0.02),
    "cuts": Trouble(cut=0.02),
}
"""What a proxy does. (What TCP does by itself, to lose segments or deliver them twice, nobody above it sees.)"""

pytestmark = pytest.mark.timeout(often(120, 10))


def some_trouble(rng: random.Random) -> Trouble:
    return Trouble(
        cut=rng.uniform(0.01, 0.04), lose=rng.uniform(0.03, 0.08), silence=rng.uniform(0, 0.002), delay=0.001,
        twice=rng.uniform(0, 0.03),
    )  # fmt: skip


async def settle(
    queue: AsyncQueue[bytes], account: Account, recorder: Recorder, server: EmbeddedServer, cell: str,
    tried: int, may_lose: int = 0, exact: bool = True, **notes: int,
) -> None:  # fmt: skip
    """Settle the account of a drained queue, and delete it."""
    row = account.row(may_lose=may_lose)
    row.tried = tried
    row.notes.update(notes)
    recorder.add(cell, server.software, row)
    assert row.clean(), f"{row} {account.missing()}"
    await check_tidy(queue, account, exact)
    await queue.delete(timeout=PATIENCE)


async def put_all(queue: AsyncQueue[bytes], account: Account, producer: str, rng: random.Random, count: int) -> None:
    """Put so many messages, one by one and many at a time; every put has to return normally."""
    while count > 0:
        count -= await put_some(queue, account, producer, rng, count)


async def put_some(
    queue: AsyncQueue[bytes], account: Account, producer: str, rng: random.Random, most: int = 30
) -> int:
    """One put, or one put_many of up to `most` messages."""
    messages = account.fresh(producer, min(most, rng.choice((1, 1, 1, 4, 30))))
    if len(messages) == 1:
        await queue.put(messages[0])
    else:
        await queue.put_many(messages)
    account.acknowledge(messages)
    return len(messages)


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
    """At least once: redelivered messages are marked."""
    if attempts == 1 or message not in account.arrived:
        account.arrived.append(message)


@pytest.mark.parametrize("bound", [0, 3] if LONG else [3])  # a put that finds room takes the same way at 3
@pytest.mark.parametrize("mode", MODES)
async def test_puts_over_a_bad_line(
    server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder, bound: int, mode: str
) -> None:
    """A put whose reply was lost is sent again, and answered from the server's record of it."""
    account = Account()

    async def work(queue: AsyncQueue[bytes], producer: str) -> None:
        for _ in range(PUTS):
            await put_some(queue, account, producer, rng)

    async with no_complaints(), Proxy(url, rng) as line, AsyncQueue(NAME, url=url) as direct:
        await direct.create(bound)
        draining = asyncio.create_task(drain(direct, account))
        async with Client(line.url, **SETTINGS) as one, Client(line.url, **SETTINGS) as two:
            line.trouble = MODES[mode]
            async with asyncio.timeout(often(90, 6)), asyncio.TaskGroup() as group:
                for number, client in enumerate((one, one, two, two)):
                    # Two queue objects of a client have a lane each: their replies are on the line at the same time.
                    group.create_task(work(AsyncQueue(NAME, client=client), f"p{number}"))
            line.trouble = Trouble()
        await direct.close()
        await draining
        await settle(direct, account, recorder, server, f"proxy {mode}: puts", 4 * PUTS, times=line.cuts)
    await check_server(server)


@pytest.mark.parametrize("kind", ["get", "get_many", "receive", "consumer"])
async def test_gets_over_a_bad_line(
    server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder, kind: str
) -> None:
    """A get is never repeated, so its outcome may be unknown. No message is received twice."""
    account, doubts = Account(), list[int]()
    async with no_complaints(), Proxy(url, rng) as line, AsyncQueue(NAME, url=url) as direct:
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
            direct, account, recorder, server, f"proxy does all of it: {kind}", COUNT,
            may_lose=sum(doubts), exact=not doubts, times=line.cuts,
        )  # fmt: skip
    await check_server(server)


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
            for number in range(often(5, 8)):
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
