"""Processes that drive schedules, and are there to be killed: `python -m tests.chaos.schedule_workers URL`.

As in `workers`, which forks, kills and notes. For queues in directories, URL is the directory above them. Each note
says that the schedules of a queue were driven once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys

from apressure import PressureError
from tests.chaos.retry_workers import open_queue
from tests.chaos.workers import log_in, main


def run(where: str, kind: str, name: str, tag: str, path: str) -> None:
    """Drive until killed."""
    log = log_in(path)
    logging.disable()

    async def drive() -> None:
        while True:
            with contextlib.suppress(PressureError):  # while there is no server
                async with open_queue(kind, where, name) as queue:
                    while True:
                        pause = await queue.drive_schedules()
                        log(f"drove {tag}")
                        await asyncio.sleep(min(pause, 0.05))
            await asyncio.sleep(0.05)

    asyncio.run(drive())


if __name__ == "__main__":
    main(sys.argv[1], run)
