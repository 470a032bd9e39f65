"""Services of a queue with limits, which are there to be killed: `python -m tests.chaos.limit_workers URL`.

As in `workers`, which forks, kills and notes. Each note has a message, its attempts, and a time:

* `got`: the handler began.
* `held`, `failed`: it is about to raise `Hold`, or `Retry`.
* `done`: it is about to return.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
from typing import Any, Final

from apressure import Hold, Retry
from tests.chaos.retry_workers import serve_for_ever
from tests.chaos.support import SEED
from tests.chaos.workers import log_in, main

LEASE: Final = 2.0
HELD: Final = 0.1
"""Seconds of a hold, and of a pause before a retry."""


def run(where: str, kind: str, name: str, tag: str, path: str) -> None:
    """Work until killed."""
    log, rng = log_in(path), random.Random(f"{SEED} {tag}")
    logging.disable()
    more = {"shared": True} if kind == "queue" else {}

    async def handle(delivery: Any) -> None:
        def note(word: str) -> None:
            log(f"{word} {delivery.raw.decode()} {delivery.attempts} {time.time()}")

        note("got")
        await asyncio.sleep(rng.uniform(0.02, 0.12))
        what = rng.random()
        if what < 0.025:
            note("held")
            raise Hold(HELD)
        if what < 0.05:
            note("failed")
            raise Retry(after=HELD)
        note("done")

    serve_for_ever(kind, where, name, handle, deliveries=True, concurrency=4, lease=LEASE, **more)


if __name__ == "__main__":
    main(sys.argv[1], run)
