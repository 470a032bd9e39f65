"""SAQ: a list of job keys, and a key for each job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from saq import Queue, Worker

from tests.benchmarks.others.measure import PAYLOAD, Put, Stopwatch, concurrently, main


@asynccontextmanager
async def producer(url: str) -> AsyncIterator[Put]:
    queue = Queue.from_url(url)

    async def put(count: int) -> None:
        # The queue allows 20 at a time by default. One at a time is 0.7 times as fast.
        await concurrently(20, count, lambda: queue.enqueue("work", payload=PAYLOAD, ttl=-1))

    yield put


async def consume(url: str, watch: Stopwatch) -> None:
    async def work(ctx: dict[str, Any], *, payload: str) -> None:
        watch.job()

    # 10 (the default) and 50 jobs at a time are slower.
    await Worker(Queue.from_url(url), [("work", work)], concurrency=20).start()


if __name__ == "__main__":
    main(producer, consume, "saq", "redis")
