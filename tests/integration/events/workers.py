"""Processes that put and consume events: `python -m tests.integration.events.workers KIND URL TAG`.

Each line that it writes is what it knows: `put N`, `got ID`, `acked ID`.
"""

from __future__ import annotations

import asyncio
import os
import sys

from apressure import EventQueue, LeaseLostError

LEASE = 1.0


def note(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def put(queue: EventQueue[bytes], tag: str) -> None:
    for number in range(1_000_000):
        await queue.put(b"x", id=f"{tag}:{number}")
        note(f"put {tag}:{number}")


async def consume(queue: EventQueue[bytes], tag: str) -> None:
    async with queue.consumer("manual", lease=LEASE, prefetch=3) as consumer:
        async for delivery in consumer:
            note(f"got {delivery.id} {tag}")
            try:
                await delivery.ack()
            except LeaseLostError:  # the machine stood still for longer than the lease
                continue
            note(f"acked {delivery.id}")


async def main(kind: str, url: str, tag: str) -> None:
    async with EventQueue("jobs", url=url) as queue:
        note("ready")
        await {"put": put, "consume": consume}[kind](queue, tag)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
