"""An operation sends the server the same commands, however many messages the queue has."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import redis

from apressure import AsyncQueue
from apressure.pressure.engine.keys import Keys
from tests.integration.conftest import Opener

MESSAGE = b"x" * 10
FEW, MANY = 300, 50_000

RANGES = ("GETRANGE", "LINDEX", "LRANGE")
"""Commands that read as much as their arguments say."""

LONG = {"KEYS", "LINSERT", "LPOS", "LREM", "SCAN", "SORT"}
"""Commands that look at all of a list, or at all keys."""

LONG_HASH = {"HGETALL", "HKEYS", "HSCAN", "HVALS"}
"""Those that look at all of a hash: at everything in flight."""

Operation = Callable[[AsyncQueue[bytes]], Awaitable[object]]


async def receive_and_ack(queue: AsyncQueue[bytes]) -> None:
    await (await queue.receive()).ack()


async def receive_and_nack(queue: AsyncQueue[bytes]) -> None:
    await (await queue.receive()).nack()
    await queue.put(MESSAGE)
    await queue.get()  # the nack has been carried out by now


async def consume(queue: AsyncQueue[bytes]) -> None:
    async with queue.consumer(prefetch=1) as items:
        for _ in range(3):
            await anext(items)


OPERATIONS: dict[str, Operation] = {
    "put": lambda queue: queue.put(MESSAGE),
    "put_many": lambda queue: queue.put_many([MESSAGE] * 10),
    "get": lambda queue: queue.get(),
    "get_many": lambda queue: queue.get_many(10),
    "receive and ack": receive_and_ack,
    "receive and nack": receive_and_nack,
    "consumer": consume,
    "qsize": lambda queue: queue.qsize(),
    "peek": lambda queue: queue.peek(),
    "peek_newest": lambda queue: queue.peek_newest(),
    "statistics": lambda queue: queue.statistics(),
}


async def commands(db: redis.Redis, operation: Awaitable[object]) -> list[str]:
    """What the server does for an operation: commands, those inside scripts too, and how much the reading ones read."""
    with db.monitor() as monitor:

        def until(mark: str) -> list[str]:
            db.echo(mark)
            seen = []
            while mark not in (line := monitor.next_command()["command"]):
                name, _, arguments = line.partition(" ")
                line = re.sub(r"\bof-\d+", "of", line)
                seen.append(line if name.upper() in RANGES else f"{name} and {len(arguments.split())} arguments")
            return seen

        until("the beginning")
        await operation
        return until("the end")


def names(seen: list[str]) -> set[str]:
    return {line.partition(" ")[0].upper() for line in seen}


async def fill(queue: AsyncQueue[bytes], db: redis.Redis, length: int, redelivered: int = 0) -> None:
    """Make a queue of that length; the newest entry of what was redelivered belongs to the next message."""
    await queue.put_many(MESSAGE for _ in range(length))
    entry = b"1:" + hashlib.sha1(MESSAGE, usedforsecurity=False).hexdigest().encode()
    if redelivered:
        db.rpush(Keys(queue.prefix, queue.name).redelivered, *[entry] * redelivered)


@pytest.mark.parametrize("bound", [0, 10 * MANY])
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_an_operation_is_the_same_commands_in_a_long_queue(
    open_queue: Opener, db: redis.Redis, operation: str, bound: int
) -> None:
    seen = []
    for length in (FEW, MANY):
        queue = await open_queue(f"of-{length}", bound=bound)
        await fill(queue, db, 20)
        await OPERATIONS[operation](queue)  # the server knows the scripts now, and both have done the same before
        await fill(queue, db, length)
        seen.append(await commands(db, OPERATIONS[operation](queue)))
    assert len(seen[0]) > 1
    assert seen[0] == seen[1]
    assert names(seen[1]).isdisjoint(LONG)


@pytest.mark.parametrize("operation", ["put", "get", "receive and ack", "consumer", "statistics"])
async def test_an_operation_is_the_same_commands_where_many_were_redelivered(
    open_queue: Opener, db: redis.Redis, operation: str
) -> None:
    seen = []
    for redelivered in (FEW, MANY):
        queue = await open_queue(f"of-{redelivered}")
        await fill(queue, db, 2 * MANY)
        await OPERATIONS[operation](queue)
        await fill(queue, db, 0, redelivered)
        seen.append(await commands(db, OPERATIONS[operation](queue)))
    assert seen[0] == seen[1]
    assert names(seen[1]).isdisjoint(LONG)


async def test_a_delivery_is_the_same_commands_with_many_in_flight(open_queue: Opener, db: redis.Redis) -> None:
    seen = []
    async with AsyncExitStack() as stack:
        for in_flight in (FEW, 20 * FEW):
            queue = await open_queue(f"of-{in_flight}")
            await fill(queue, db, 21 * FEW)
            deliveries = await stack.enter_async_context(queue.consumer(ack="manual", prefetch=1))
            for _ in range(in_flight):
                await anext(deliveries)
            for _ in range(2):  # the first one teaches the server the script

                async def one(deliveries: object = deliveries) -> None:
                    delivery = await anext(deliveries)  # type: ignore[call-overload]
                    await delivery.ack()
                    await asyncio.sleep(0)

                again = await commands(db, one())
            seen.append(again)
    assert seen[0] == seen[1]
    assert len(seen[1]) > 1
    assert names(seen[1]).isdisjoint(LONG | LONG_HASH)


@pytest.mark.parametrize("small", [3, 30, 85, 300])
async def test_large_messages_behind_small_ones_do_not_pile_up_in_one_step(open_queue: Opener, small: int) -> None:
    queue = await open_queue()
    large = b"x" * 500_000
    await queue.put_many([MESSAGE] * small + [large] * 100)
    longest = 0
    while await queue.qsize():
        longest = max(longest, sum(map(len, await queue.get_many(1000))))
    assert longest < 17 * len(large)
