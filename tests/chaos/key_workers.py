"""Services of a queue whose messages have keys, which are there to be killed: `python -m tests.chaos.key_workers URL`.

As in `workers`, which forks, kills and notes. Each note has a word, the key and the number of a message, and a time of
this host's monotonic clock, which all processes share:

* `got`: the handler began.
* `failed`: it is about to raise `Retry`.
* `done`: it is about to return.
* `lost`: it was cancelled.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import time
from typing import Any, Final

from apressure import Retry
from tests.chaos.retry_workers import serve_for_ever
from tests.chaos.support import SEED
from tests.chaos.workers import log_in, main

LEASE: Final = 1.5


def run(where: str, kind: str, name: str, tag: str, path: str) -> None:
    """Work until killed."""
    log, rng = log_in(path), random.Random(f"{SEED} {tag}")
    logging.disable()

    async def handle(delivery: Any) -> None:
        found = json.loads(delivery.raw)

        def note(word: str) -> None:
            log(f"{word} {found['key']} {found['number']} {time.monotonic()}")

        note("got")
        try:
            await asyncio.sleep(rng.choice((0.0, 0.002, 0.01)))
        except asyncio.CancelledError:
            note("lost")
            raise
        if rng.random() < 0.05:
            note("failed")
            raise Retry(after=rng.choice((0.0, 0.03, 0.15)))
        note("done")

    serve_for_ever(kind, where, name, handle, deliveries=True, concurrency=4, lease=LEASE)


if __name__ == "__main__":
    main(sys.argv[1], run)
