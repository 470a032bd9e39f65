"""streaQ: streams, by coredis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streaq import Worker

from tests.benchmarks.others.measure import PAYLOAD, Put, Stopwatch, bulks, main


@asynccontextmanager
async def producer(url: str) -> AsyncIterator[Put]:
    worker = Worker(url)

    @worker.task(name="work", ttl=0, silent=True)
    async def work(payload: str) -> None: ...

    async def put(count: int) -> None:
        for size in bulks(count):
            await worker.enqueue_many([work.enqueue(PAYLOAD) for _ in range(size)])

    async with worker:
        yield put


async def consume(url: str, watch: Stopwatch) -> None:
    # Its own benchmark uses 32 at a time. 16 (the default), 100, and more prefetching are not faster.
    worker = Worker(url, concurrency=32)

    @worker.task(name="work", ttl=0, silent=True)
    async def work(payload: str) -> None:
        watch.job()

    await worker.run_async()


if __name__ == "__main__":
    main(producer, consume, "streaq", "coredis")
