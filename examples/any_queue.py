"""Run one program on every kind of queue: one line decides which.

python any_queue.py [server|files|events|tasks]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from apressure import AsyncQueue, EventQueue, FileQueue, TaskQueue
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


async def main(kind: str) -> None:
    """Feed and work at the same time."""
    with tempfile.TemporaryDirectory() as directory:
        queue: AsyncQueue[str] | EventQueue[str] | FileQueue[str] | TaskQueue[str]
        if kind == "files":
            queue = FileQueue(Path(directory) / "orders", codec="text")  # this line,
        elif kind == "events":
            queue = EventQueue("orders", url="embedded://", codec="text")  # this one,
        elif kind == "tasks":
            queue = TaskQueue("orders", url="embedded://", codec="text")  # this one,
        else:
            queue = AsyncQueue("orders", url="embedded://", codec="text")  # or this one
        async with queue:
            await queue.create(bound=3)
            async with asyncio.TaskGroup() as group:
                group.create_task(feed(queue))
                group.create_task(work(queue))
            await queue.delete()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "server"))
