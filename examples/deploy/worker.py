"""A worker for a service manager: handle orders until SIGTERM, and let handlers finish for up to 30 seconds then.

QUEUE is the address of the queue, of any kind. Any number of workers share it.
"""

import asyncio
import logging
import os

from apressure import open_queue, serve

SHUTDOWN_SECONDS = 30.0  # the service manager must wait longer before it kills the worker


async def handle(order: str) -> None:
    print(f"{order} is done", flush=True)


async def main() -> None:
    queue = open_queue(os.environ.get("QUEUE", "redis://127.0.0.1:6379/0/orders"), codec="text")
    await serve(handle, queue, concurrency=8, create=True, bound=1000, shutdown_timeout=SHUTDOWN_SECONDS)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main())
