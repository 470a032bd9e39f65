"""Services whose handlers fail, and that are there to be killed: `python -m tests.chaos.retry_workers URL`.

As in `workers`, which forks, kills and notes. For queues in directories, URL is the directory above them. Each note
ends with a time:

* `got MESSAGE ATTEMPTS TIME`: the handler began at this time.
* `kept MESSAGE ATTEMPTS TIME`: the queue has it back, and it is due at this time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from apressure import AsyncQueue, Backoff, EventQueue, FileQueue, ServerUnavailableError, TaskQueue, serve
from apressure.core.delivery import LeasedDelivery
from apressure.pressure.delivery import Delivery
from tests.chaos.load import QUICK
from tests.chaos.workers import Log, log_in, main

LEASE: Final = 3.0
LAST: Final = 5
"""The attempt that succeeds."""
BACKOFF: Final = Backoff(0.1, 1.0, jitter=False)
KINDS: Final[dict[str, Any]] = {
    "queue": AsyncQueue, "envelopes": AsyncQueue, "events": EventQueue, "tasks": TaskQueue, "files": FileQueue,
}  # fmt: skip


def open_queue(kind: str, where: str, name: str) -> Any:
    """Return a queue of a kind, on a server or in a directory."""
    if kind == "files":
        return FileQueue(Path(where) / name)
    codec = "cloudevents" if kind == "envelopes" else "raw"
    return KINDS[kind](name, url=where, codec=codec, **QUICK)


def serve_for_ever(kind: str, where: str, name: str, handler: Callable[[Any], Awaitable[object]], **how: Any) -> None:
    """Run a service, again and again: without signals, until its process is killed."""

    async def work() -> None:
        while True:
            # A client that begins while there is no server fails; a supervisor would start it again.
            with contextlib.suppress(ServerUnavailableError):
                async with open_queue(kind, where, name) as queue:
                    await serve(handler, queue, signals=(), **how)
            await asyncio.sleep(0.05)

    asyncio.run(work())


def noted(nack: Callable[..., Awaitable[None]], log: Log) -> Callable[..., Awaitable[None]]:
    """A `nack` that notes when it has returned."""

    async def note(self: Any, error: BaseException | str | None = None, *, delay: float | None = None) -> None:
        due = time.time() + (delay or 0)
        await nack(self, error, delay=delay)
        log(f"kept {self.raw.decode()} {self.attempts} {due}")

    return note


def run(where: str, kind: str, name: str, tag: str, path: str) -> None:
    """Work until killed."""
    log = log_in(path)
    logging.disable()
    for delivery in (Delivery, LeasedDelivery):
        delivery.nack = noted(delivery.nack, log)  # type: ignore[method-assign]
    more = {"shared": True} if kind == "queue" else {}

    async def handle(delivery: Any) -> None:
        log(f"got {delivery.raw.decode()} {delivery.attempts} {time.time()}")
        await asyncio.sleep(0.002)
        if delivery.attempts < LAST:
            raise ValueError("not yet")

    serve_for_ever(kind, where, name, handle, deliveries=True, concurrency=8, retry=BACKOFF, lease=LEASE, **more)


if __name__ == "__main__":
    main(sys.argv[1], run)
