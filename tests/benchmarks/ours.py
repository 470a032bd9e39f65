"""Measure apressure as the other libraries: `put_many`, and `async for item in consumer`."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from apressure import AsyncQueue
from tests.benchmarks.others.measure import NAME, PAYLOAD, Put, Stopwatch, main


@asynccontextmanager
async def producer(url: str) -> AsyncIterator[Put]:
    async with AsyncQueue(NAME, url=url) as queue:
        await queue.create(bound=1_000_000)

        async def put(count: int) -> None:
            await queue.put_many(itertools.repeat(PAYLOAD.encode(), count))

        yield put


async def consume(url: str, watch: Stopwatch) -> None:
    async with AsyncQueue(NAME, url=url) as queue, queue.consumer() as items:
        async for _ in items:
            watch.job()


if __name__ == "__main__":
    main(producer, consume, "apressure", "redis")
