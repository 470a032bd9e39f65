"""Members that wait for replicas, and are there to be killed: `python -m tests.chaos.durable_workers URL`.

As in `workers`, which forks, kills and notes. The kind of a worker is one of `WAYS`. An acknowledgement that too few
servers have confirmed is not noted: a failover may undo it, and the message comes again, marked.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Final

from apressure import AsyncQueue, Durability, DurabilityError, LeaseLostError, ServerUnavailableError
from tests.chaos.load import QUICK
from tests.chaos.workers import LEASE, Log, log_in, main

WAYS: Final = {"all": Durability("all", timeout=0.2), "one": Durability(1, timeout=0.2)}
"""How many replicas a member waits for."""


async def shared(queue: AsyncQueue[bytes], log: Log) -> None:
    while True:
        try:
            async with queue.consumer(shared=True, lease=LEASE, ack="manual") as block:
                async for delivery in block:
                    log(f"got {delivery.item.decode()} {delivery.attempts}")
                    await asyncio.sleep(0.001)
                    await delivery.ack()
                    log(f"acked {delivery.item.decode()}")
        except (LeaseLostError, DurabilityError):
            continue


def run(url: str, kind: str, name: str, tag: str, path: str) -> None:
    """Work until killed."""
    log = log_in(path)

    async def work() -> None:
        while True:
            # A client that begins while no server has taken over fails; a supervisor would start it again.
            with contextlib.suppress(ServerUnavailableError):
                async with AsyncQueue(name, url=url, client_id=tag, durability=WAYS[kind], **QUICK) as queue:
                    await shared(queue, log)
            await asyncio.sleep(0.05)

    asyncio.run(work())


if __name__ == "__main__":
    main(sys.argv[1], run)
