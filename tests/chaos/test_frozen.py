"""A server that does not answer: cancelled operations wait for it, without spinning and not for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from apressure import AsyncQueue, Client, OutcomeUnknownError, PressureError, ServerUnavailableError
from apressure.embedded import EmbeddedServer
from tests.chaos.support import PATIENCE, check_server, no_complaints
from tests.servers import SERVERS, frozen

STALL = 1.5

pytestmark = pytest.mark.parametrize("program", SERVERS)


class Victims:
    """A queue for each kind of operation, so that one operation of each can be on its way to a frozen server."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stack = AsyncExitStack()
        self.queues: dict[str, AsyncQueue[bytes]] = {}
        self.operations: dict[str, Callable[[], Awaitable[Any]]] = {}

    async def prepare(self) -> None:
        for kind in ("put", "put_many", "get", "get_many", "receive", "advance", "close", "exclusive"):
            queue = self.queues[kind] = AsyncQueue(kind, client=self._client)
            await queue.create(5)
            if kind in {"get", "get_many", "receive", "advance"}:
                await queue.put_many([b"1", b"2", b"3"])
        of = self.queues
        self._consumer = await self._stack.enter_async_context(of["advance"].consumer(prefetch=1))
        self.operations = {
            "put": lambda: of["put"].put(b"1"),
            "put_many": lambda: of["put_many"].put_many([b"1", b"2", b"3"]),
            "get": of["get"].get,
            "get_many": lambda: of["get_many"].get_many(2),
            "receive": of["receive"].receive,
            "advance": lambda: anext(self._consumer),
            "close": of["close"].close,
            "exclusive": lambda: of["exclusive"].producer(exclusive=True).__aenter__(),
        }

    async def begin(self, cancel: bool) -> list[asyncio.Task[Any]]:
        """Tasks that wait for `go` to start their operation; they end it themselves if they are to."""
        self.go = asyncio.Event()
        ready = asyncio.Barrier(len(self.operations) + 1)

        async def work(kind: str, operation: Callable[[], Awaitable[Any]]) -> None:
            if kind == "advance":  # an iteration belongs to one task
                assert await anext(self._consumer) == b"1"
            await ready.wait()
            await self.go.wait()
            # anyio cancels again and again as long as the task does not end.
            with anyio.move_on_after(0.05 if cancel else None) as scope:
                await operation()
            assert scope.cancelled_caught, kind

        tasks = [asyncio.create_task(work(*item), name=item[0]) for item in self.operations.items()]
        await ready.wait()
        return tasks

    async def leave_block(self) -> None:
        await self._stack.aclose()

    async def check(self) -> None:
        """Every operation was carried out wholly or not at all, and nothing that was taken is gone."""
        async with asyncio.timeout(PATIENCE):
            for kind, most in (("put", 1), ("put_many", 3)):
                assert await self.queues[kind].qsize() in {0, most}
            for kind in ("get", "get_many", "receive"):
                assert await self.queues[kind].get_many(5) == [b"1", b"2", b"3"], kind
            assert await self.queues["advance"].get_many(5) == [b"2", b"3"]  # asking for more acknowledged the first
            for kind, queue in self.queues.items():
                if not await queue.closed():
                    await queue.put(b"last")
                else:
                    assert kind == "close"
                seen = await queue.statistics()
                assert (seen.producer.state, seen.consumer.state, seen.in_flight) == ("free", "free", 0), (kind, seen)
                await queue.delete()


@asynccontextmanager
async def victims(url: str, **settings: Any) -> AsyncIterator[Victims]:
    async with no_complaints(), Client(url, **settings) as client:
        made = Victims(client)
        await made.prepare()
        yield made
        with suppress(PressureError):
            await made.leave_block()


async def test_a_cancelled_operation_waits_without_spinning(
    make_server: Callable[..., EmbeddedServer], program: str
) -> None:
    server = make_server(program)
    async with victims(server.url) as made:
        tasks = await made.begin(cancel=True)
        with frozen(server, STALL):
            before = time.process_time()
            made.go.set()
            await asyncio.gather(*tasks)
            spent = time.process_time() - before
        # A loop that wakes for each of anyio's cancellations burns the whole stall.
        assert spent < STALL / 2, f"{spent:.2f} s of CPU in a stall of {STALL} s"
        await made.leave_block()
        await made.check()
    await check_server(server)


async def test_a_cancelled_operation_gives_up_after_settle_timeout(
    make_server: Callable[..., EmbeddedServer], program: str
) -> None:
    """The server stays frozen: the tasks go on, and what became of the operations is seen to when it thaws."""
    server = make_server(program)
    async with victims(server.url, settle_timeout=0.3) as made:
        tasks = await made.begin(cancel=True)
        with frozen(server):
            made.go.set()
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*tasks)
        await made.leave_block()
        await made.check()
    await check_server(server)


async def test_response_timeout(make_server: Callable[..., EmbeddedServer], program: str) -> None:
    """Without a cancellation, operations that were sent end with an unknown outcome; later ones cannot reach it."""
    server = make_server(program)
    settings = {"response_timeout": 0.3, "connect_timeout": 0.3, "retry_timeout": 0.3}
    async with victims(server.url, **settings) as made:
        tasks = await made.begin(cancel=False)
        with frozen(server):
            made.go.set()
            async with asyncio.timeout(PATIENCE):
                for task, result in zip(tasks, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
                    assert isinstance(result, OutcomeUnknownError), f"{task.get_name()}: {result!r}"
                with pytest.raises(ServerUnavailableError):
                    await made.queues["put"].put(b"later")
        async with asyncio.timeout(PATIENCE):
            assert await made.queues["put"].qsize() <= 1
            assert await made.queues["get"].get_many(5) in ([b"1", b"2", b"3"], [b"2", b"3"])


ENDLESS = {"response_timeout": 100.0, "retry_timeout": 150.0}
"""Nothing but `settle_timeout` can end a wait for a frozen server."""

LEAVING = ("consumer", "manual", "by hand", "exclusive", "prefetched")


async def hold(kind: str, queue: AsyncQueue[bytes], held: asyncio.Event, until: asyncio.Event) -> None:
    """Hold a role with something in flight, until something happens in the block."""
    if kind == "exclusive":
        async with queue.producer(exclusive=True) as producer:
            await producer.put(b"4")
            held.set()
            await until.wait()
            raise KeyError
    if kind == "by hand":
        try:
            await queue.receive()
            held.set()
            await until.wait()
            raise KeyError
        finally:
            await queue.aclose()
    async with queue.consumer("manual" if kind == "manual" else "auto", prefetch=2) as consumer:  # type: ignore[call-overload]
        await anext(consumer)
        if kind == "prefetched":
            await anext(consumer)  # acknowledges the first one
        held.set()
        await until.wait()
        raise KeyError


@pytest.mark.parametrize("how", ["cancelled", "failed"])
@pytest.mark.parametrize("kind", LEAVING)
async def test_leaving_a_block_gives_up_after_settle_timeout(
    make_server: Callable[..., EmbeddedServer], program: str, kind: str, how: str
) -> None:
    """The block is left while the server is frozen; the role goes back when it thaws."""
    server = make_server(program)
    async with no_complaints(), Client(server.url, settle_timeout=0.2, **ENDLESS) as client:
        queue = AsyncQueue("jobs", client=client)
        await queue.create()
        await queue.put_many([b"1", b"2", b"3"])
        held, until = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(hold(kind, queue, held, until))
        await held.wait()
        with frozen(server):
            if how == "cancelled":
                task.cancel()
            else:
                until.set()
            async with asyncio.timeout(PATIENCE):
                with pytest.raises(asyncio.CancelledError if how == "cancelled" else KeyError):
                    await task
        async with asyncio.timeout(PATIENCE), AsyncQueue("jobs", url=server.url) as other:
            expected = [b"1", b"2", b"3", b"4"] if kind == "exclusive" else [b"1", b"2", b"3"][kind == "prefetched" :]
            assert await other.get_many(5) == expected
            await other.put(b"the producer role is free, too")
            assert (await other.statistics()).in_flight == 0
            await other.delete()
    await check_server(server)


@asynccontextmanager
async def leaving(server: EmbeddedServer, client: Client, kind: str) -> AsyncIterator[asyncio.Task[Any]]:
    """The end of a block that ends well, while the server is frozen. Afterwards the queue is deleted."""
    queue: AsyncQueue[bytes] = AsyncQueue("jobs", client=client)
    await queue.create()
    await queue.put(b"1")
    closes = kind == "exclusive"
    block: Any = queue.consumer() if kind == "consumer" else queue.producer(close=closes, exclusive=True)
    await block.__aenter__()
    with frozen(server):
        task = asyncio.create_task(block.__aexit__(None, None, None))
        yield task
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait((task,))
    if not task.cancelled():
        await task
        assert await queue.closed() == closes
    await queue.delete()


@pytest.mark.parametrize("kind", ["consumer", "exclusive", "exclusive, left open"])
async def test_a_block_that_ends_well_waits_for_its_outcome(
    make_server: Callable[..., EmbeddedServer], program: str, kind: str
) -> None:
    server = make_server(program)
    async with (
        no_complaints(),
        Client(server.url, settle_timeout=0.05, **ENDLESS) as client,
        leaving(server, client, kind) as task,
    ):
        await asyncio.wait({task}, timeout=0.5)
        assert not task.done()
    await check_server(server)


async def test_a_block_that_ends_well_can_still_be_cancelled(
    make_server: Callable[..., EmbeddedServer], program: str
) -> None:
    server = make_server(program)
    async with no_complaints(), Client(server.url, settle_timeout=0.2, **ENDLESS) as client:
        for kind in ("consumer", "exclusive, left open"):
            async with leaving(server, client, kind) as task:
                await asyncio.wait({task}, timeout=0.05)
                task.cancel()
                async with asyncio.timeout(PATIENCE):
                    with pytest.raises(asyncio.CancelledError):
                        await task
    await check_server(server)
