"""Operations of every kind that wait while their queues move to another server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from apressure import AsyncQueue, Client
from apressure.embedded import EmbeddedServer
from tests.integration.conftest import eventually
from tests.servers import blocked_clients
from tests.topologies import ask


@contextlib.asynccontextmanager
async def waits(
    url: str, server: Callable[[], EmbeddedServer], name: str = "", scripting: bool = True
) -> AsyncIterator[None]:
    """All kinds of waits at once: they must outlive the body of the block, and then go on.

    Args:
        url: The address of the queues.
        server: Returns the server that has the queues now.
        name: What the names of the queues begin with.
        scripting: As `AsyncQueue`; without scripts fewer kinds are there.
    """
    async with Client(url=url, scripting=scripting) as client, contextlib.AsyncExitStack() as stack:

        async def opened(what: str, bound: int = 0, *first: bytes) -> AsyncQueue[bytes]:
            queue = AsyncQueue(name + what, client=client)
            await queue.create(bound)
            await queue.put_many(first)
            stack.push_async_callback(queue.delete, 10)
            return queue

        async def consume() -> list[bytes]:
            async with consumed.consumer() as consumer:
                return [item async for item in consumer]

        async def share() -> list[bytes]:
            async with AsyncQueue(name + "shared", client=client) as mine, mine.consumer(shared=True) as member:
                return [item async for item in member]

        async def produce() -> None:
            async with produced.producer(exclusive=True, close=False) as producer:
                await producer.put(b"1")
                producing.set()
                await go_on.wait()
                await producer.put(b"2")

        producing, go_on = asyncio.Event(), asyncio.Event()
        full, empty, ending = await opened("full", 1, b"1"), await opened("empty"), await opened("ending")
        works: list[Coroutine[Any, Any, Any]] = [full.put(b"2"), empty.get(), ending.wait_closed()]
        if scripting:
            claimed, received = await opened("claimed", 0, b"1"), await opened("received", 0, b"1", b"2")
            consumed, produced, shared = await opened("consumed"), await opened("produced"), await opened("shared")
            token = f"__pressure__:{name}claimed:consumer_free"
            ask(server(), "RPOP", token)  # as a client does that works step by step
            delivery = await received.receive()
            works += [claimed.get(), consume(), produce(), share(), share()]
        tasks = [asyncio.create_task(work) for work in works]
        if scripting:
            await producing.wait()
        await eventually(lambda: blocked_clients(server()) >= (11 if scripting else 3))
        yield
        assert not any(task.done() for task in tasks)
        async with AsyncQueue[bytes](name + "full", url=url) as other:
            assert await other.get() == b"1"
        await empty.put(b"1")
        await ending.close()
        expected: list[Any] = [None, b"1", None]
        if scripting:
            ask(server(), "LPUSH", token, 1)
            await consumed.put_many([b"1", b"2"])
            await consumed.close()
            await shared.put_many([b"1", b"2", b"3"])
            await shared.close()
            go_on.set()
            expected += [b"1", [b"1", b"2"], None]
        async with asyncio.timeout(30):
            found = await asyncio.gather(*tasks)
            assert found[: len(expected)] == expected
            assert sorted(itertools.chain(*found[len(expected) :])) == ([b"1", b"2", b"3"] if scripting else [])
        assert await full.get() == b"2"
        if scripting:
            await delivery.ack()
            assert await received.get() == b"2"
            assert await produced.get_many(5) == [b"1", b"2"]
            statistics = await received.statistics()
            assert (statistics.length, statistics.in_flight, statistics.consumed_messages) == (0, 0, 2)
            names = ["claimed", "consumed", "empty", "ending", "full", "produced", "received", "shared"]
            assert await client.queues() == [name + what for what in names]
