"""Clients of queues in directories that are there to be killed: `python -m tests.chaos.file_workers DIRECTORY`.

As in `workers`, which forks, kills and notes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

from apressure import (
    FileDelivery,
    FileQueue,
    LeaseLostError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
)
from tests.chaos.workers import Log, log_in, main, message, put, put_many

LEASE: Final = 0.5
MANY: Final = 7
TURNS: Final = 60


async def acknowledge(one: FileDelivery[bytes], log: Log) -> None:
    try:
        await one.ack()
    except LeaseLostError:  # a machine so busy that its time ran out: it comes again
        log(f"late {one.raw.decode()}")
    else:
        log(f"acked {one.raw.decode()}")


async def receive(queue: FileQueue[bytes], _: str, log: Log) -> None:
    while True:
        one = await queue.receive()
        log(f"got {one.raw.decode()} {one.attempts}")
        await asyncio.sleep(0.001)  # most deaths are in here
        await acknowledge(one, log)


async def receive_many(queue: FileQueue[bytes], _: str, log: Log) -> None:
    while True:
        messages = await queue.receive_many(MANY)
        log("\n".join(f"got {one.raw.decode()} {one.attempts}" for one in messages))
        for one in messages:
            await asyncio.sleep(0.0005)
            await acknowledge(one, log)


async def retry(queue: FileQueue[bytes], _: str, log: Log) -> None:
    """Each message is delayed for a moment when it comes for the first time."""
    while True:
        one = await queue.receive()
        log(f"got {one.raw.decode()} {one.attempts}")
        await asyncio.sleep(0.001)
        if one.attempts > 1:
            await acknowledge(one, log)
        else:
            with contextlib.suppress(LeaseLostError):
                await one.nack(delay=0.02)


async def put_later(queue: FileQueue[bytes], tag: str, log: Log) -> None:
    for number in itertools.count():
        await queue.put(message(tag, number), delay=0.02)
        log(f"put {tag}:{number}:")


async def until_closed(queue: FileQueue[bytes], tag: str, log: Log) -> None:
    with contextlib.suppress(QueueClosedError):
        await put(queue, tag, log)
    log("ended")


async def drain(queue: FileQueue[bytes], _: str, log: Log) -> None:
    async with queue.consumer() as consumer:
        async for item in consumer:
            log(f"got {item.decode()} {consumer.attempts}")
            await asyncio.sleep(0.001)
    log("ended")


async def create_and_delete(queue: FileQueue[bytes], tag: str, log: Log, turns: Iterable[int] = range(TURNS)) -> None:
    """Create the queue or delete it, whatever is possible, over and over, each time with a new object."""
    for number in turns:
        async with FileQueue[bytes](queue.path, fsync=False) as fresh:
            try:
                await fresh.create(bound=5)
                log("created")
                await fresh.put_nowait(message(tag, number))
            except QueueAlreadyExistsError:
                with contextlib.suppress(QueueDoesNotExistError):
                    await fresh.delete()
                    log("deleted")
            except QueueDoesNotExistError:  # deleted by another one before the put
                pass
    log("ended")


async def create_and_delete_for_ever(queue: FileQueue[bytes], tag: str, log: Log) -> None:
    await create_and_delete(queue, tag, log, itertools.count())


KINDS: Final[dict[str, tuple[Callable[[FileQueue[bytes], str, Log], Awaitable[None]], dict[str, Any]]]] = {
    "publish": (put, {"fsync": False}),
    "publish_many": (put_many, {"fsync": False}),
    "fsync": (put_many, {"fsync": True}),
    "listed": (put, {"fsync": False, "notify": False, "poll_interval": 0.01}),
    "publish_later": (put_later, {"fsync": False}),
    "until_closed": (until_closed, {"fsync": False}),
    "until_closed_listed": (until_closed, {"fsync": False, "notify": False, "poll_interval": 0.01}),
    "drain": (drain, {}),
    "drain_listed": (drain, {"notify": False, "poll_interval": 0.01}),
    "create_and_delete": (create_and_delete, {}),
    "create_and_delete_for_ever": (create_and_delete_for_ever, {}),
    "receive": (receive, {}),
    "receive_many": (receive_many, {}),
    "retry": (retry, {}),
    "receive_listed": (receive, {"notify": False, "poll_interval": 0.01}),
}


def run(directory: str, kind: str, name: str, tag: str, path: str, bound: str = "40") -> None:
    """Work until killed."""
    log = log_in(path)
    act, options = KINDS[kind]

    async def work() -> None:
        place = Path(directory) / name
        async with FileQueue(place, bound=int(bound), lease=LEASE, **options) as queue:
            await act(queue, tag, log)

    asyncio.run(work())


if __name__ == "__main__":
    main(sys.argv[1], run)
