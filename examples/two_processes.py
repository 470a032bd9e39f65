"""Connect a feeder and a worker in two processes by a bounded queue, on a private server.

The queue holds at most five messages: the feeder waits for the worker, and the worker for the feeder. The end of the
feeder's block closes the queue. The worker's loop ends after the last message.
"""

import asyncio
import multiprocessing

from apressure import AsyncQueue
from apressure.embedded import EmbeddedServer


async def feed(url: str) -> None:
    async with AsyncQueue("numbers", url=url, codec="json") as queue, queue.producer() as producer:
        for number in range(20):
            await producer.put({"number": number})


async def work(url: str) -> None:
    async with (
        AsyncQueue("numbers", url=url, codec="json") as queue,
        queue.consumer(delete=True) as consumer,
    ):
        async for item in consumer:
            await asyncio.sleep(0.01)  # some work
            print(f"worked off {item['number']}, {await queue.qsize()} waiting")


def run(function: object, url: str) -> None:
    asyncio.run(function(url))  # type: ignore[operator]


async def main() -> None:
    with EmbeddedServer() as server:
        async with AsyncQueue("numbers", url=server.url) as queue:
            await queue.create(bound=5)
        spawn = multiprocessing.get_context("spawn")
        processes = [spawn.Process(target=run, args=(function, server.url)) for function in (feed, work)]
        for process in processes:
            process.start()
        for process in processes:
            await asyncio.to_thread(process.join)


if __name__ == "__main__":
    asyncio.run(main())
