"""Measure BullMQ's Python package on machines without Node. With Node, bullmq.cjs measures it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bullmq import Queue, Worker

from tests.benchmarks.others.measure import NAME, PAYLOAD, Put, Stopwatch, bulks, main


@asynccontextmanager
async def producer(url: str) -> AsyncIterator[Put]:
    queue = Queue(NAME, {"connection": url, "defaultJobOptions": {"removeOnComplete": True}})

    async def put(count: int) -> None:
        for size in bulks(count):
            await queue.addBulk([{"name": "work", "data": {"payload": PAYLOAD}} for _ in range(size)])

    yield put


async def consume(url: str, watch: Stopwatch) -> None:
    async def work(job: Any, token: str) -> None:
        watch.job()

    await Worker(NAME, work, {"connection": url, "concurrency": 100, "autorun": False}).run()


if __name__ == "__main__":
    main(producer, consume, "bullmq", "redis")
