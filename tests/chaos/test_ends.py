"""Event loops, queues and clients that end while operations wait."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from apressure import AsyncQueue, Client, ClientClosedError, QueueClosedError, QueueDoesNotExistError
from apressure.embedded import EmbeddedServer
from tests.chaos.support import NAME, PATIENCE, Account, Recorder, check_server, check_tidy, drain, no_complaints, often
from tests.reference import ReferenceQueue, connect

MANY = often(20, 10)
LOOPS = often(75, 10)
"""Event loops that end on each server: 150 at every push."""


async def put_for_ever(queue: AsyncQueue[bytes], account: Account, producer: str, count: int) -> None:
    while True:
        messages = account.fresh(producer, count)
        try:
            if count == 1:
                await queue.put(messages[0])
            else:
                await queue.put_many(messages)
        except BaseException:
            account.perhaps(messages)
            raise
        account.acknowledge(messages)


async def get_for_ever(queue: AsyncQueue[bytes], account: Account, most: int) -> None:
    while True:
        account.arrived += await queue.get_many(most)


async def receive_for_ever(queue: AsyncQueue[bytes], account: Account) -> None:
    while True:
        delivery = await queue.receive()
        account.handed_out(
            delivery.raw, delivery.attempts
        )  # no cancellation comes between this and the ack, which outlives one
        try:
            await delivery.ack()
        except ClientClosedError:
            account.again[delivery.raw] += 1  # given back, since the client was closed meanwhile
            raise


async def consume_for_ever(queue: AsyncQueue[bytes], account: Account) -> None:
    message = b""
    try:
        async with queue.consumer() as consumer:
            async for message in consumer:
                await asyncio.sleep(0)
                account.handed_out(message, consumer.attempts)
    except ClientClosedError:
        account.again[message] += 1  # given back, since the client was closed while the body worked on it
        raise


async def in_its_own_block(url: str, work: Any, account: Account, *arguments: Any) -> None:
    async with AsyncQueue(NAME, url=url) as queue:
        await work(queue, account, *arguments)


def one_loop(url: str, account: Account, rng: random.Random, heard: list[Any]) -> None:
    """An event loop that ends while operations are pending; asyncio.run cancels them."""
    tag = f"loop{rng.getrandbits(40)}"
    works: list[tuple[Any, ...]] = [
        (put_for_ever, account, f"{tag}a", 1),
        (put_for_ever, account, f"{tag}b", 7),
        (get_for_ever, account, 1),
        (get_for_ever, account, 5),
        (receive_for_ever, account),
        (consume_for_ever, account),
    ]
    works = rng.sample(works, rng.randrange(1, 5))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: heard.append(context))
        tasks: list[asyncio.Task[None]] = []
        how = rng.choice(("own blocks", "own blocks", "one block", "closed first"))
        if how == "own blocks":  # they are closed by the cancellation
            tasks += [loop.create_task(in_its_own_block(url, *work)) for work in works]
            await asyncio.sleep(rng.uniform(0, 0.05))
        else:  # closed before the tasks end: they get ClientClosedError, or the cancellation
            async with Client(url) as client:
                for work, *arguments in works:
                    tasks.append(loop.create_task(work(AsyncQueue(NAME, client=client), *arguments)))
                await asyncio.sleep(rng.uniform(0, 0.04))
                if how == "closed first":
                    for task in tasks:
                        task.cancel()
                    await asyncio.sleep(0)
        for task in tasks:  # read each task's outcome, or asyncio complains
            task.add_done_callback(lambda task: task.cancelled() or task.exception())

    asyncio.run(main())


def test_loops_that_end(server: EmbeddedServer, url: str, rng: random.Random, recorder: Recorder) -> None:
    account, heard = Account(), list[Any]()

    async def begin() -> None:
        async with AsyncQueue(NAME, url=url) as queue:
            await queue.create(4)

    async def finish() -> None:
        async with AsyncQueue(NAME, url=url) as queue, no_complaints():
            async with asyncio.timeout(PATIENCE):
                draining = asyncio.create_task(drain(queue, account))
                await queue.put(b"last:0:")
                account.acknowledge([b"last:0:"])
                await queue.close()
                await draining
            row = account.row(ordered=False)
            row.tried = LOOPS
            recorder.add("loop exits", server.software, row)
            assert row.clean(), f"{row} {account.missing()}"
            await check_tidy(queue, account)
            await queue.delete(timeout=PATIENCE)
        await check_server(server)

    asyncio.run(begin())
    for _ in range(LOOPS):
        one_loop(url, account, rng, heard)
    gc.collect()
    assert not heard, heard
    asyncio.run(finish())


def waiting_on(full: AsyncQueue[bytes], empty: AsyncQueue[bytes]) -> list[Coroutine[Any, Any, Any]]:
    """One operation of each kind that waits."""

    async def iterate(queue: AsyncQueue[bytes]) -> None:
        async for _ in queue:
            pass

    async def consume(queue: AsyncQueue[bytes], shared: bool = False) -> None:
        async with queue.consumer(shared=shared) as consumer:
            async for _ in consumer:
                pass

    return [
        full.put(b"late"), full.put_many([b"late"] * 3), full.wait_closed(),
        empty.get(), empty.get_many(3), empty.receive(), iterate(empty), consume(empty), empty.wait_closed(),
        consume(AsyncQueue("empty", client=empty.client), shared=True),
    ]  # fmt: skip


async def start_waiting(url: str, clients: list[Client]) -> list[asyncio.Task[Any]]:
    async with AsyncQueue("full", url=url) as full, AsyncQueue("empty", url=url) as empty:
        await full.create(1)
        await full.put(b"1")
        await empty.create(1)
    tasks = [
        asyncio.create_task(work)
        for number in range(MANY)
        for work in waiting_on(*(AsyncQueue(name, client=clients[number % len(clients)]) for name in ("full", "empty")))
    ]
    await asyncio.sleep(0.2)
    assert not [task for task in tasks if task.done()]
    return tasks


async def results_of(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    async with asyncio.timeout(PATIENCE):
        return await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("who", ["ours", "plain"])
@pytest.mark.parametrize("what", ["close", "delete"])
async def test_many_who_wait(server: EmbeddedServer, url: str, what: str, who: str) -> None:
    """All of them wake with an error, whichever client closes or deletes the queue."""
    async with no_complaints(), Client(url) as one, Client(url) as two, Client(url) as three:
        tasks = await start_waiting(url, [one, two])
        for name in ("full", "empty"):
            if who == "plain":
                await asyncio.to_thread(plainly, url, name, what)
            else:
                queue = AsyncQueue[bytes](name, client=three)
                await (queue.close(PATIENCE) if what == "close" else queue.delete(PATIENCE))
        for index, result in enumerate(await results_of(tasks)):
            if what == "delete":
                assert isinstance(result, QueueDoesNotExistError), (index, repr(result))
            elif index % 10 in {2, 6, 7, 8, 9}:  # a wait for the end, and loops
                assert result is None, (index, repr(result))
            else:
                assert isinstance(result, QueueClosedError), (index, repr(result))
        if what == "close":
            for name in ("full", "empty"):
                await AsyncQueue[bytes](name, client=three).delete(timeout=PATIENCE)
    await check_server(server)


def plainly(url: str, name: str, what: str) -> None:
    with connect(url) as client:
        queue = ReferenceQueue(client, name)
        queue.close(PATIENCE) if what == "close" else queue.delete(PATIENCE)


async def test_aclose_while_many_wait(server: EmbeddedServer, url: str) -> None:
    async with no_complaints(), Client(url) as one, Client(url) as two:
        tasks = await start_waiting(url, [one, two])
        await one.aclose()
        await two.aclose()
        for result in await results_of(tasks):
            assert isinstance(result, ClientClosedError), repr(result)
        async with Client(url) as three:
            for name in ("full", "empty"):
                queue = AsyncQueue[bytes](name, client=three)
                await queue.put(b"after", force=True)
                assert (await queue.get_many(2))[-1] == b"after"
                await queue.delete(timeout=PATIENCE)
    await check_server(server)


@pytest.mark.parametrize("kind", ["consumer", "receive", "exclusive"])
async def test_closing_the_client_while_a_role_is_being_taken(server: EmbeddedServer, url: str, kind: str) -> None:
    """No role and no message stays behind until the lease ends, whatever the client knew when it was closed."""

    async def hold(queue: AsyncQueue[bytes]) -> None:
        if kind == "consumer":
            async with queue.consumer() as consumer:
                async for _ in consumer:
                    await asyncio.Event().wait()
        elif kind == "receive":
            await queue.receive()
            await asyncio.Event().wait()
        else:
            async with queue.producer(exclusive=True):
                await asyncio.Event().wait()

    async with no_complaints(), AsyncQueue("ends", url=url) as looker:
        await looker.create()
        await looker.put_many([b"1", b"2"])
        for turns in range(10):
            async with Client(url) as client:
                task = asyncio.create_task(hold(AsyncQueue("ends", client=client)))
                for _ in range(turns):
                    await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            seen = await looker.statistics()
            assert (seen.consumer.state, seen.producer.state, seen.in_flight) == ("free", "free", 0), turns
        assert await looker.get_many(3) == [b"1", b"2"]
        await looker.delete()
    await check_server(server)
