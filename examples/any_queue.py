"""Run one program on every kind of queue: the address decides which.

python any_queue.py [embedded:///orders|embedded:///events:orders|embedded:///tasks:orders|files:spool/orders|...]
"""

from __future__ import annotations

import asyncio
import sys

from apressure import open_queue
from apressure.protocols import Destination, Source


async def feed(orders: Destination[str]) -> None:
    """Put some orders, waiting for room, and close the queue."""
    for number in range(10):
        await orders.put(f"order {number}")
    await orders.close()


async def work(orders: Source[str]) -> None:
    """Handle orders until the queue is closed and drained."""
    async with orders.consumer("manual") as consumer:
        async for delivery in consumer:
            print(delivery.item)
            await delivery.ack()


async def main(address: str) -> None:
    """Feed and work at the same time."""
    async with open_queue(address, codec="text") as queue:
        await queue.create(bound=3)
        async with asyncio.TaskGroup() as group:
            group.create_task(feed(queue))
            group.create_task(work(queue))
        await queue.delete()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "embedded:///orders"))
