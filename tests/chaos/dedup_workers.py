"""Processes that put orders once, and are there to be killed: `python -m tests.chaos.dedup_workers URL`.

As in `workers`, which forks, kills and notes. All of them put the orders that the clock says, at the same time. Each
note says that one is in the queue: `put ORDER` or `known ORDER`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from typing import Any, Final

from apressure import DuplicateMessageError, PressureError
from tests.chaos.retry_workers import open_queue
from tests.chaos.workers import log_in, main

ORDERS: Final = 100
"""So many new ones come in a second."""

WINDOW: Final = 36000.0
AT_ONCE: Final = 5


def run(where: str, kind: str, name: str, tag: str, path: str) -> None:
    """Put until killed."""
    log = log_in(path)
    logging.disable()

    async def put(queue: Any, order: int) -> None:
        window = WINDOW if kind == "queue" else None
        try:
            await queue.put(b"%d" % order, dedup_id=f"order-{order}", dedup_window=window)
        except DuplicateMessageError:
            log(f"known {order}")
        else:
            log(f"put {order}")

    async def work() -> None:
        while True:
            with contextlib.suppress(PressureError):  # while there is no server
                async with open_queue(kind, where, name) as queue:
                    while True:
                        first = int(time.time() * ORDERS)
                        await asyncio.gather(*(put(queue, first + more) for more in range(AT_ONCE)))
            await asyncio.sleep(0.05)

    asyncio.run(work())


if __name__ == "__main__":
    main(sys.argv[1], run)
