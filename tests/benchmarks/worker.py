"""Run one end of a queue as a process. It prints the time of its first put, or of its last get."""

from __future__ import annotations

import asyncio
import sys
import time

from apressure import AsyncQueue
from tests.benchmarks.cases import MESSAGE, length
from tests.reference import ReferenceQueue, connect


async def put_many(queue: AsyncQueue[bytes], count: int) -> None:
    async with queue.producer() as producer:
        await producer.put_many(MESSAGE for _ in range(count))


async def put(queue: AsyncQueue[bytes], count: int) -> None:
    async with queue.producer() as producer:
        for _ in range(count):
            await producer.put(MESSAGE)


async def consumer(queue: AsyncQueue[bytes], count: int) -> None:
    async with queue.consumer() as items:
        received = await length(items)
    assert received == count, received


async def ours(url: str, name: str, count: int, what: str) -> float:
    async with AsyncQueue(name, url=url) as queue:
        begin = time.time()
        await {"put_many": put_many, "put": put, "consumer": consumer}[what](queue, count)
        return time.time() if what == "consumer" else begin


def reference(url: str, name: str, count: int, what: str) -> float:
    queue = ReferenceQueue(connect(url), name)
    begin = time.time()
    for _ in range(count):
        if what == "reference_put":
            queue.put(MESSAGE)
        else:
            queue.get()
    return begin if what == "reference_put" else time.time()


if __name__ == "__main__":
    url, name, count, what = sys.argv[1:]
    if what.startswith("reference"):
        print(reference(url, name, int(count), what))
    else:
        print(asyncio.run(ours(url, name, int(count), what)))
