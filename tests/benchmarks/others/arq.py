"""arq: jobs in a sorted set, which its worker polls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

from tests.benchmarks.others.measure import PAYLOAD, Put, Stopwatch, concurrently, main


@asynccontextmanager
async def producer(url: str) -> AsyncIterator[Put]:
    pool = await create_pool(RedisSettings.from_dsn(url))

    async def put(count: int) -> None:
        # One at a time is 0.7 times as fast.
        await concurrently(32, count, lambda: pool.enqueue_job("work", PAYLOAD))

    yield put


async def consume(url: str, watch: Stopwatch) -> None:
    async def work(ctx: dict[Any, Any], payload: str) -> None:
        watch.job()

    # The default, a poll every half second, does 200 jobs a second. More than 10 jobs at a time (the default) or
    # a longer read make no difference.
    worker = Worker(
        [func(work, name="work")],
        redis_settings=RedisSettings.from_dsn(url),
        poll_delay=0.01,
        keep_result=0,
    )
    await worker.async_run()


if __name__ == "__main__":
    main(producer, consume, "arq", "redis")
