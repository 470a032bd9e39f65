"""A node of ours to kill. `python -m tests.integration.tasks.nodes URL QUEUE TASKS STARTED`

It reserves so many tasks, starts the first ones of them, says so in one line of JSON, and holds them until it dies.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys

from apressure.tasks import TaskClient


async def main(url: str, queue: str, tasks: int, started: int) -> None:
    async with TaskClient(url) as client, client.listener(queue) as listener:
        reserved = [await anext(listener) for _ in range(tasks)]
        for task in reserved[:started]:
            await client.processor(task).start(os.getpid())
        print(
            json.dumps({"node": f"{socket.getfqdn()}_{os.getpid()}", "tasks": [task.id for task in reserved]}),
            flush=True,
        )
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3], *map(int, sys.argv[3:])))  # type: ignore[call-arg, arg-type]
