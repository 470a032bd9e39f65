"""Stages of a pipeline that are there to be killed: `python -m tests.chaos.pipe_workers URL`.

As in `workers`, which forks, kills and notes. A stage notes each item that it begins to transform.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, Final

from apressure import AsyncQueue, Client, EventQueue, Piped, pipe
from tests.chaos.workers import Log, main

LEASE: Final = 0.6
STAGES: Final[dict[str, dict[str, Any]]] = {"first": {}, "second": {"batch": 7}, "third": {"concurrency": 4}}
QUEUES: Final = ("pipe0", "pipe1", "pipe2", "pipe3")


WAYS: Final[dict[str, tuple[Any, bool]]] = {
    "alone": (AsyncQueue, False), "shared": (AsyncQueue, True), "events": (EventQueue, True),
}  # fmt: skip
"""The kind of the queues, and whether stages share them."""


async def stage(client: Client, kind: str, log: Log, way: str) -> Piped:
    """Run a stage until its source is drained; then close its destination."""
    number = list(STAGES).index(kind)
    queue, shared = WAYS[way]
    source, destination = (queue(name, client=client) for name in QUEUES[number : number + 2])

    async def transform(found: Any) -> Any:
        log("began")
        if kind == "third":
            await asyncio.sleep(0.001)
        return found

    options = STAGES[kind]
    done: Piped = await pipe(
        source, transform, destination, close=True, exactly_once=True, lease=LEASE, shared=shared, **options
    )
    return done


def run(url: str, kind: str, name: str, tag: str, path: str) -> None:
    """What a worker does until it is killed. `name`: one of `WAYS`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def work() -> None:
        async with Client(url, client_id=tag) as client:
            await stage(client, kind, lambda text: os.write(descriptor, f"{text}\n".encode()) and None, name)

    asyncio.run(work())


if __name__ == "__main__":
    main(sys.argv[1], run)
