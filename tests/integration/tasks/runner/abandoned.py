"""A listener that dies with a task in hand: `python -m tests.integration.tasks.runner.abandoned URL QUEUE PID`.

It notes that the process PID runs the task, and holds the task by a lease of an hour.
"""

from __future__ import annotations

import asyncio
import os
import sys

from apressure.tasks import TaskClient


async def main(url: str, queue: str, pid: str) -> None:
    async with TaskClient(url) as client:
        block = client.queue(queue).consumer("manual", prefetch=1, lease=3600)
        await block.__aenter__()
        task = await anext(block)
        if pid != "0":
            await task.start(int(pid))
        os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
