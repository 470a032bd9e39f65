"""Processes that work on tasks: `python -m tests.integration.tasks.workers KIND URL TAG`.

Each line that it writes is what it knows: `put ID`, `began ID`, `ended ID`, `done ID`; of tasks that it gives back for
later `back ID TIME`, or `got`, `gives` and `gave`, each with the id, the attempt and the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time

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


async def later(client: TaskClient, tag: str) -> None:
    """Give back each task, to be due after so many seconds."""
    queue = client.queue("jobs")
    while True:
        delivery = await queue.receive(lease=600)
        begun = time.time()
        await delivery.nack(ValueError("not yet"), delay=float(tag))
        note(f"back {delivery.id} {begun}")


async def retry(client: TaskClient, _: str) -> None:
    """Give back each task for later, until its third attempt."""
    async with client.queue("jobs").consumer("manual", lease=LEASE) as consumer:
        async for delivery in consumer:
            what = f"{delivery.id} {delivery.attempts}"
            note(f"got {what} {time.time()}")
            with contextlib.suppress(LeaseLostError):
                if delivery.attempts < 3:
                    note(f"gives {what} {time.time()}")
                    await delivery.nack("again", delay=0.2)
                    note(f"gave {what} {time.time()}")
                else:
                    await delivery.complete()


async def main(kind: str, url: str, tag: str) -> None:
    async with TaskClient(url) as client:
        note("ready")
        await {"put": put, "process": process, "hold": hold, "later": later, "retry": retry}[kind](client, tag)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
