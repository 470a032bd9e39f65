"""Nodes that are there to be killed: `python -m tests.chaos.task_workers URL`.

As in `workers`, which forks, kills and notes. The first note of each is `pid NUMBER`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import Final

from apressure import LeaseLostError
from apressure.tasks import Command, Runner, TaskClient
from tests.chaos import exclusive
from tests.chaos.workers import log_in, main

LEASE: Final = 4.0
GRACE: Final = 0.5
CONCURRENCY: Final = 2


async def runner(client: TaskClient, name: str, folder: str) -> None:
    """Run the tasks, each as a process."""
    command = Command([sys.executable, "-I", "-S", exclusive.__file__, folder])
    options = {"concurrency": CONCURRENCY, "lease": LEASE, "grace": GRACE, "max_attempts": None, "signals": ()}
    await Runner(client, name, command, **options).run()  # type: ignore[arg-type]


async def listener(client: TaskClient, name: str, folder: str) -> None:
    """Reserve tasks, and do them here."""
    async for task in client.listener(name, lease=LEASE):
        processor = client.processor(task)
        with contextlib.suppress(LeaseLostError):  # a machine so busy that the lease ended
            seconds, *_ = await processor.start()
            with exclusive.exclusive(folder, task.id):
                await asyncio.sleep(float(seconds))
            await processor.complete("done")


KINDS: Final = {"runner": runner, "listener": listener}


def run(url: str, kind: str, name: str, tag: str, path: str) -> None:
    """Work until killed."""
    log_in(path)(f"pid {os.getpid()}")

    async def work() -> None:
        async with TaskClient(url) as client:
            await KINDS[kind](client, name, str(Path(path).parent / "tasks"))

    asyncio.run(work())


if __name__ == "__main__":
    main(sys.argv[1], run)
