"""Services that reply, and that are there to be killed: `python -m tests.chaos.request_workers URL`.

As in `workers`, which forks, kills and notes. Each note names a request whose handler began.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from typing import Any, Final

from apressure import Envelope
from tests.chaos.retry_workers import serve_for_ever
from tests.chaos.support import SEED
from tests.chaos.workers import log_in, main

LEASE: Final = 1.0


def run(where: str, kind: str, name: str, tag: str, path: str) -> None:
    """Work until killed."""
    log, rng = log_in(path), random.Random(f"{SEED} {tag}")
    logging.disable()

    async def handle(item: Any) -> str:
        item = item.data if isinstance(item, Envelope) else item
        log(f"got {item.decode()}")
        await asyncio.sleep(rng.choice((0.0, 0.002, 0.01)))
        return f"re: {item.decode()}"

    serve_for_ever(kind, where, name, handle, reply=True, concurrency=4, lease=LEASE)


if __name__ == "__main__":
    main(sys.argv[1], run)
