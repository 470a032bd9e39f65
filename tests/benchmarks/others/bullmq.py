"""Measure BullMQ's Python package on machines without Node. With Node, bullmq.cjs measures it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bullmq import Queue, Worker

from tests.benchmarks.others.measure import (
    CONCURRENCY,
    NAME,
    NEVER_REACHED,
    PAYLOAD,
    Put,
    Stopwatch,
    bulks,
    main,
    order,
)


@asynccontextmanager
async def producer(url: str, terms: str = "") -> AsyncIterator[Put]:
    queue = Queue(NAME, {"connection": url, "defaultJobOptions": {"removeOnComplete": True}})

    async def put(count: int) -> None:
        for size in bulks(count):
            await queue.addBulk([{"name": "work", "data": {"payload": PAYLOAD}} for _ in range(size)])

    async def put_one_by_one(count: int) -> None:
        for _ in range(count):
            known = order(terms)
            await queue.add("work", {"payload": PAYLOAD}, {"deduplication": {"id": known}} if known else {})

    yield put_one_by_one if terms else put


async def consume(url: str, watch: Stopwatch, terms: str = "") -> None:
    async def work(job: Any, token: str) -> None:
        watch.job()

    options: dict[str, Any] = {"connection": url, "concurrency": CONCURRENCY if terms else 100, "autorun": False}
    if terms == "rate":
        options["limiter"] = {"max": NEVER_REACHED, "duration": 1000}
    await Worker(NAME, work, options).run()


if __name__ == "__main__":
    main(producer, consume, "bullmq", "redis")
