"""Operations that are cancelled at random moments, in every way: nothing is lost, doubled, reordered or leaked."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import pytest

from apressure import (
    AsyncQueue,
    Client,
    QueueClosedError,
    QueueEmptyError,
    QueueFullError,
    QueueInUseError,
)
from apressure.embedded import EmbeddedServer
from tests.chaos.support import (
    LONG,
    NAME,
    PATIENCE,
    WAYS,
    Account,
    Outcome,
    Recorder,
    Row,
    cancelled,
    check_server,
    check_tidy,
    drain,
    no_complaints,
    often,
    some_moment,
)
from tests.reference import QueueClosedError as ReferenceClosedError
from tests.reference import ReferenceQueue, connect

BOUNDS = (1, 2, 5, 0)
PORTION = often(60, 25)
"""Cancellations in one run of a cell with one bound on one server; there are 70 runs: 105,000 in the long form."""

pytestmark = pytest.mark.timeout(3600 if PORTION > 60 else 120)


class Cell:
    """One queue, several clients, one account."""

    def __init__(self, url: str, rng: random.Random, **settings: Any) -> None:
        self.url = url
        self.rng = rng
        self.settings = settings
        self.account = Account()
        self.goal = PORTION
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(no_complaints())
        await self._stack.enter_async_context(asyncio.timeout(PATIENCE if PORTION == 60 else 1800))
        self.queue = await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    async def open(self, client: Client | None = None) -> AsyncQueue[bytes]:
        """A queue object; with a client of its own, or with the given one."""
        if client is not None:
            return await self._stack.enter_async_context(AsyncQueue(NAME, client=client))
        return await self._stack.enter_async_context(AsyncQueue(NAME, url=self.url, **self.settings))

    async def client(self) -> Client:
        return await self._stack.enter_async_context(Client(self.url, **self.settings))

    @property
    def enough(self) -> bool:
        return self.account.cancelled >= self.goal

    async def attempt(self, operation: Callable[[], Awaitable[Any]]) -> Outcome[Any]:
        """Cancel an operation at a random moment in a random way."""
        outcome = await cancelled(self.rng.choice(WAYS), some_moment(self.rng), operation)
        self.account.cancelled += outcome.ended == "cancelled"
        return outcome

    async def finish(self, recorder: Recorder, server: EmbeddedServer, name: str, ordered: bool = True) -> None:
        """Settle the account of a queue that is closed and drained; delete it, and check that no key is left."""
        row = self.account.row(ordered=ordered)
        recorder.add(f"cancelled {name}", server.software, row)
        assert row.clean(), f"{row} {self.account.missing()}"
        await check_tidy(self.queue, self.account)
        await self.queue.delete(timeout=PATIENCE)


async def puts(cell: Cell, queue: AsyncQueue[bytes], producer: str, exclusive: bool = False) -> None:
    """Put one after the other, each put cancelled at a random moment."""
    rng, account = cell.rng, cell.account
    while not cell.enough:
        messages = account.fresh(producer, rng.choice((1, 1, 2, 7)))

        async def stream(items: list[bytes]) -> AsyncIterator[bytes]:
            for item in items:
                yield item
                if rng.random() < 0.3:
                    await asyncio.sleep(0)

        async def put(messages: list[bytes] = messages) -> None:
            if exclusive:
                async with queue.producer(close=False, exclusive=True) as block:
                    await block.put_many(messages)
            elif len(messages) == 1:
                timeout = rng.choice((None, None, 0.001, 0))
                await queue.put(messages[0], timeout, force=rng.random() < 0.05)
            else:
                await queue.put_many(stream(messages) if rng.random() < 0.3 else messages)

        outcome = await cell.attempt(put)
        if outcome.ended == "done":
            account.acknowledge(messages)
        elif outcome.ended == "cancelled":
            account.perhaps(messages)
        elif outcome.ended == "error":
            assert isinstance(outcome.error, (QueueFullError, QueueInUseError)), (
                outcome
            )  # a timeout is certain: nothing was put
        await asyncio.sleep(0)


async def gets(cell: Cell, queue: AsyncQueue[bytes], kind: str) -> None:
    """Get one after the other, each get cancelled at a random moment."""
    rng, account = cell.rng, cell.account

    async def get() -> None:
        if kind == "get":
            account.arrived.append(await queue.get(rng.choice((None, None, 0.001, 0))))
        elif kind == "get_many":
            account.arrived.extend(await queue.get_many(rng.choice((1, 3, 10))))
        elif kind == "receive":
            delivery = await queue.receive()
            try:
                if rng.random() < 0.5:
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                await delivery.nack()  # may be cancelled again: the message is given back all the same
                raise
            if rng.random() < 0.7:
                account.arrived.append(delivery.raw)
                await delivery.ack()
            else:
                await delivery.nack()
        else:
            shared = kind == "shared"
            async with queue.consumer(prefetch=rng.choice((None, 1, 10)), shared=shared) as consumer:
                async for message in consumer:
                    if rng.random() < 0.5:
                        await asyncio.sleep(0)
                    account.arrived.append(message)  # from here to the next item no cancellation can come
                    if rng.random() < 0.05:
                        break

    while not cell.enough:
        outcome = await cell.attempt(get)
        if outcome.ended == "error":
            assert isinstance(outcome.error, (QueueEmptyError, QueueInUseError)), outcome
        await asyncio.sleep(0)


async def feed(cell: Cell, stop: asyncio.Event, producer: str = "feeder") -> None:
    """Put in bursts, so that getters find the queue empty now, and full of messages then."""
    queue = await cell.open()
    while not stop.is_set():
        messages = cell.account.fresh(producer, cell.rng.choice((1, 1, 3, 12)))
        await queue.put_many(messages)
        cell.account.acknowledge(messages)
        await asyncio.sleep(cell.rng.choice((0, 0, cell.rng.uniform(0, 0.003))))


async def plain_feed(cell: Cell, stop: asyncio.Event, producer: str = "plain") -> None:
    """The same from a client that follows the specification step by step."""
    messages: list[bytes] = []

    def work() -> None:
        with connect(cell.url) as client:
            queue = ReferenceQueue(client, NAME)
            while not stop.is_set():
                (message,) = cell.account.fresh(producer)
                queue.put(message, PATIENCE)
                messages.append(message)

    await _in_thread(work)
    cell.account.acknowledge(messages)


async def plain_drain(cell: Cell) -> None:
    """Get until the queue is closed, as a client that follows the specification step by step."""

    def work() -> None:
        with connect(cell.url) as client, contextlib.suppress(ReferenceClosedError):
            queue = ReferenceQueue(client, NAME)
            while True:
                cell.account.arrived.append(queue.get(PATIENCE))

    await _in_thread(work)


async def _in_thread(work: Callable[[], None]) -> None:
    """As `asyncio.to_thread`, in a daemon thread: a test that fails does not wait for a client that is blocked."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(finish, error)

    def finish(error: BaseException | None) -> None:
        if not done.done():
            done.set_exception(error) if error else done.set_result(None)

    threading.Thread(target=run, daemon=True).start()
    await done


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("beside", ["ours", "plain"])
async def test_puts(
    server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder, bound: int, beside: str
) -> None:
    """Producers of one client and of several, some of them exclusive; a consumer of either kind keeps the order."""
    async with Cell(url, rng) as cell:
        await cell.queue.create(bound)
        shared, client = await cell.open(), await cell.client()
        draining = asyncio.create_task(
            plain_drain(cell) if beside == "plain" else drain(await cell.open(), cell.account)
        )
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(puts(cell, shared, f"shared{number}"))
            group.create_task(puts(cell, await cell.open(client), "own"))
            group.create_task(puts(cell, await cell.open(client), "exclusive", exclusive=True))
        await cell.queue.close()
        await draining
        await cell.finish(recorder, server, f"puts, {beside} beside")
    await check_server(server)


@pytest.mark.parametrize("bound", BOUNDS if LONG else (0, 2))  # with permits for the producer, and without
@pytest.mark.parametrize("kind", ["get", "get_many", "receive", "consumer", "shared"])
async def test_gets(
    server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder, bound: int, kind: str
) -> None:
    """One getter, so that the order can be told; producers of both kinds."""
    async with Cell(url, rng) as cell:
        await cell.queue.create(bound)
        stop = asyncio.Event()
        feeding = [asyncio.create_task(feed(cell, stop)), asyncio.create_task(plain_feed(cell, stop))]
        victim = await cell.open()
        await gets(cell, victim, kind)
        await finish_feeding(cell, stop, feeding)
        await cell.finish(recorder, server, kind)
    await check_server(server)


async def finish_feeding(cell: Cell, stop: asyncio.Event, feeding: list[asyncio.Task[None]]) -> None:
    """End the producers, who may wait for room, and drain."""
    stop.set()
    draining = asyncio.create_task(drain(await cell.open(), cell.account))
    await asyncio.gather(*feeding)
    await cell.queue.close()
    await draining


@pytest.mark.parametrize("bound", BOUNDS)
async def test_both_sides(server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder, bound: int) -> None:
    """Many putters and getters, all of them cancelled, on few clients. Their order is not checked."""
    async with Cell(url, rng) as cell:
        await cell.queue.create(bound)
        clients = [await cell.client() for _ in range(2)]
        shared = [await cell.open(client) for client in clients]
        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(puts(cell, shared[number % 2], f"producer{number}"))
                group.create_task(gets(cell, shared[number % 2], ("get", "get_many")[number // 2 % 2]))
            for kind in ("receive", "consumer"):
                group.create_task(gets(cell, await cell.open(clients[0]), kind))
        await cell.queue.close()
        await drain(await cell.open(), cell.account)
        await cell.finish(recorder, server, "both sides", ordered=False)
    await check_server(server)


@pytest.mark.parametrize("bound", [0, 5])
async def test_members(server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder, bound: int) -> None:
    """Several that share the role, all of them cancelled, beside gets that come in when all have left."""
    async with Cell(url, rng) as cell:
        await cell.queue.create(bound)
        stop = asyncio.Event()
        feeding = asyncio.create_task(feed(cell, stop))
        async with asyncio.TaskGroup() as group:
            for kind in ("shared", "shared", "shared", "shared", "get"):
                group.create_task(gets(cell, await cell.open(), kind))
        await finish_feeding(cell, stop, [feeding])
        await cell.finish(recorder, server, "members", ordered=False)
    await check_server(server)


async def test_close(server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder) -> None:
    """A cancelled close has closed the queue or has not; all who wait learn which, and no role stays taken."""
    row = Row()
    async with Cell(url, rng) as cell:
        other, client = await cell.open(), await cell.client()
        while row.tried < PORTION:
            await cell.queue.create(2)
            messages = cell.account.fresh("close", 2)
            await cell.queue.put_many(messages)
            busy = rng.random() < 0.5
            victims = [await _victim(client) for _ in range(2)]
            blocked = asyncio.create_task(other.put(b"late"))
            async with contextlib.AsyncExitStack() as stack:
                if busy:  # an exclusive producer makes close wait
                    await stack.enter_async_context(cell.queue.producer(close=False, exclusive=True))
                outcomes = await asyncio.gather(*(cell.attempt(victim.close) for victim in victims))
            row.tried += sum(outcome.ended == "cancelled" for outcome in outcomes)
            for outcome in outcomes:
                assert outcome.error is None or isinstance(outcome.error, QueueClosedError), outcome
            closed = await cell.queue.closed()
            assert closed or not any(outcome.ended == "done" for outcome in outcomes)
            with contextlib.suppress(QueueClosedError):
                await cell.queue.close(timeout=PATIENCE)
            with pytest.raises(QueueClosedError):
                await blocked
            assert await cell.queue.get_many(5) == messages
            with pytest.raises(QueueClosedError):
                await cell.queue.get()
            for victim in victims:
                await victim.aclose()
            await cell.queue.delete(timeout=PATIENCE)
            row.acknowledged += len(messages)
    recorder.add("cancelled close", server.software, row)
    await check_server(server)


async def _victim(client: Client) -> AsyncQueue[bytes]:
    return AsyncQueue(NAME, client=client)


@pytest.mark.parametrize("bound", [0, 1, 5])
@pytest.mark.parametrize("side", ["puts", "gets"])
async def test_without_scripts(
    server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder, bound: int, side: str
) -> None:
    """The specification's plain commands with BRPOP are cancelled as safely."""
    async with Cell(url, rng, scripting=False) as cell:
        await cell.queue.create(bound)
        if side == "puts":
            draining = asyncio.create_task(drain(await cell.open(), cell.account))
            shared = await cell.open()
            async with asyncio.TaskGroup() as group:
                for number in range(2):
                    group.create_task(puts(cell, shared, f"shared{number}"))
                group.create_task(puts(cell, await cell.open(), "own"))
            await cell.queue.close()
            await draining
        else:
            stop = asyncio.Event()
            feeding = [asyncio.create_task(feed(cell, stop)), asyncio.create_task(plain_feed(cell, stop))]
            victim = await cell.open()
            while not cell.enough:
                cell.goal, goal = min(cell.account.cancelled + 5, cell.goal), cell.goal
                await gets(cell, victim, rng.choice(("get", "get_many")))
                cell.goal = goal
            await finish_feeding(cell, stop, feeding)
        await cell.finish(recorder, server, f"{side}, no scripts")
    await check_server(server)
