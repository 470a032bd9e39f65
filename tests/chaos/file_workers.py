"""Clients of queues in directories that are there to be killed: `python -m tests.chaos.file_workers DIRECTORY`.

As in `workers`, which forks, kills and notes.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from apressure import FileQueue, LeaseLostError
from tests.chaos.workers import Log, main, message

VISIBILITY: Final = 0.5
MANY: Final = 7


async def publish(queue: FileQueue[bytes], tag: str, log: Log) -> None:
    number = 0
    while True:
        await queue.publish(message(tag, number))
        log(f"put {tag}:{number}:")
        number += 1


async def publish_many(queue: FileQueue[bytes], tag: str, log: Log) -> None:
    number = 0
    while True:
        messages = [message(tag, number + i) for i in range(MANY)]
        await queue.publish_many(messages)
        log("\n".join(f"put {one.decode()}" for one in messages))
        number += MANY


async def receive(queue: FileQueue[bytes], _: str, log: Log) -> None:
    async for one in queue:
        log(f"got {one.raw.decode()} {one.attempts}")
        await asyncio.sleep(0.001)  # most deaths are in here
        try:
            await one.ack()
        except LeaseLostError:  # a machine so busy that its time ran out: it comes again
            log(f"late {one.raw.decode()}")
        else:
            log(f"acked {one.raw.decode()}")


async def receive_many(queue: FileQueue[bytes], _: str, log: Log) -> None:
    while True:
        messages = await queue.receive_many(MANY)
        log("\n".join(f"got {one.raw.decode()} {one.attempts}" for one in messages))
        for one in messages:
            await asyncio.sleep(0.0005)
            try:
                await one.ack()
            except LeaseLostError:
                log(f"late {one.raw.decode()}")
            else:
                log(f"acked {one.raw.decode()}")


KINDS: Final[dict[str, tuple[Callable[[FileQueue[bytes], str, Log], Awaitable[None]], dict[str, Any]]]] = {
    "publish": (publish, {"fsync": False}),
    "publish_many": (publish_many, {"fsync": False}),
    "fsync": (publish_many, {"fsync": True}),
    "listed": (publish, {"fsync": False, "notify": False, "poll_interval": 0.01}),
    "receive": (receive, {}),
    "receive_many": (receive_many, {}),
    "receive_listed": (receive, {"notify": False, "poll_interval": 0.01}),
}


def run(directory: str, kind: str, name: str, tag: str, path: str, capacity: str = "40") -> None:
    """What a worker does until it is killed."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def log(text: str) -> None:
        os.write(descriptor, f"{text}\n".encode())

    act, options = KINDS[kind]

    async def work() -> None:
        place = Path(directory) / name
        async with FileQueue(place, capacity=int(capacity), visibility_timeout=VISIBILITY, **options) as queue:
            await act(queue, tag, log)

    asyncio.run(work())


if __name__ == "__main__":
    main(sys.argv[1], run)
