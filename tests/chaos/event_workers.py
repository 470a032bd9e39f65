"""Clients of queues of events that are there to be killed: `python -m tests.chaos.event_workers URL`.

As in `workers`, which forks, kills and notes.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from apressure import EventDelivery, EventQueue, LeaseLostError
from tests.chaos.workers import Log, log_in, main, message

LEASE: Final = 0.6
MANY: Final = 7


async def put(queue: EventQueue[bytes], tag: str, log: Log) -> None:
    number = 0
    while True:
        await queue.put(message(tag, number))
        log(f"put {tag}:{number}:")
        number += 1


async def put_many(queue: EventQueue[bytes], tag: str, log: Log) -> None:
    number = 0
    while True:
        messages = [message(tag, number + i) for i in range(MANY)]
        await queue.put_many(messages)
        log("\n".join(f"put {one.decode()}" for one in messages))
        number += MANY


async def acknowledge(one: EventDelivery[bytes], log: Log) -> None:
    with contextlib.suppress(LeaseLostError):  # a machine so busy that the lease ended: it comes again
        await one.ack()
        log(f"acked {one.raw.decode()}")


async def receive(queue: EventQueue[bytes], _: str, log: Log) -> None:
    while True:
        for one in await queue.receive_many(MANY, lease=LEASE):
            log(f"got {one.raw.decode()} {one.attempts}")
            await asyncio.sleep(0.001)  # most deaths are in here
            await acknowledge(one, log)


async def consumer(queue: EventQueue[bytes], _: str, log: Log) -> None:
    while True:
        async with queue.consumer("manual", lease=LEASE, prefetch=MANY) as block:
            async for one in block:
                log(f"got {one.raw.decode()} {one.attempts}")
                await asyncio.sleep(0.001)
                await acknowledge(one, log)


KINDS: Final[dict[str, Callable[[EventQueue[bytes], str, Log], Awaitable[None]]]] = {
    work.__name__: work for work in (put, put_many, receive, consumer)
}


def run(url: str, kind: str, name: str, tag: str, path: str) -> None:
    """Work until killed."""
    log = log_in(path)

    async def work() -> None:
        async with EventQueue(name, url=url) as queue:
            await KINDS[kind](queue, tag, log)

    asyncio.run(work())


if __name__ == "__main__":
    main(sys.argv[1], run)
