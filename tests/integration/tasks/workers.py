"""Processes that work on tasks: `python -m tests.integration.tasks.workers KIND URL TAG`.

Each line that it writes is what it knows: `put ID`, `began ID`, `ended ID`, `done ID`.
"""

from __future__ import annotations

import asyncio
import os
import sys

from apressure import LeaseLostError, TaskClient

LEASE = 1.0


def note(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def put(client: TaskClient, tag: str) -> None:
    queue = client.queue("jobs")
    for number in range(1_000_000):
        note(f"put {await queue.enqueue(f'{tag}:{number}')}")


async def process(client: TaskClient, tag: str) -> None:
    async with client.listener("jobs", lease=LEASE) as listener:
        async for task in listener:
            processor = client.processor(task)
            try:
                await processor.start()
                note(f"began {task.id}")
                await asyncio.sleep(0.01)
                await processor.complete(tag)
            except LeaseLostError:  # the machine stood still for longer than the lease
                continue
            note(f"done {task.id}")


async def hold(client: TaskClient, tag: str) -> None:
    """Start a task, and never end it."""
    async with client.listener("jobs", lease=LEASE) as listener:
        task = await anext(listener)
        await client.processor(task).start()
        note(f"began {task.id}")
        await asyncio.sleep(3600)


async def main(kind: str, url: str, tag: str) -> None:
    async with TaskClient(url) as client:
        note("ready")
        await {"put": put, "process": process, "hold": hold}[kind](client, tag)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
