"""Watch a queue: serve its metrics, and scrape them as Prometheus does.

A service of your own needs one argument, and Prometheus the address http://127.0.0.1:9100/metrics:

    asyncio.run(serve(handle, AsyncQueue("orders", url="redis://…"), metrics_port=9100))
"""

import asyncio
import urllib.request

from apressure import AsyncQueue, serve
from apressure.telemetry import Metrics

SHOWN = ("apressure_queue_messages", "apressure_queue_bound", "apressure_handler_handled", "apressure_local_blocked")


async def handle(item: str) -> None:
    await asyncio.sleep(len(item) / 400)  # some work


def scrape(port: int | None) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return [line for line in answer.read().decode().splitlines() if line.startswith(SHOWN)]


async def main() -> None:
    async with AsyncQueue("orders", url="embedded://", codec="text") as queue:
        await queue.create(bound=10)

        async def produce() -> None:
            async with queue.producer() as producer:  # waits at the bound: the handlers are slower
                await producer.put_many(f"order {number}" for number in range(50))

        async with Metrics(interval=0.1, port=0) as metrics, asyncio.TaskGroup() as group:
            group.create_task(produce())
            serving = group.create_task(serve(handle, queue, observer=metrics))
            lines: list[str] = []
            while not serving.done():
                await asyncio.sleep(0.2)
                lines = await asyncio.to_thread(scrape, metrics.port) if not serving.done() else lines
            print(*lines, sep="\n")
        print(serving.result())
        await queue.delete()


asyncio.run(main())
