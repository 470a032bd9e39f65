"""taskiq with taskiq-redis and its stream broker, which acknowledges. The list broker is as fast."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from tests.benchmarks.others.measure import PAYLOAD, Put, Stopwatch, concurrently, main


@asynccontextmanager
async def producer(url: str) -> AsyncIterator[Put]:
    broker = RedisStreamBroker(url, consumer_id="0")
    await broker.startup()

    @broker.task(task_name="work")
    async def work(payload: str) -> None: ...

    async def put(count: int) -> None:
        # One at a time and 100 at a time are not faster.
        await concurrently(10, count, lambda: work.kiq(PAYLOAD))

    yield put


async def consume(url: str, watch: Stopwatch) -> None:
    broker = RedisStreamBroker(url, consumer_id="0")

    @broker.task(task_name="work")
    async def work(payload: str) -> None:
        watch.job()

    # The defaults: 100 tasks at a time, reads of 100 messages. Less, or more prefetching, is not faster.
    await run_receiver_task(broker, run_startup=True)


if __name__ == "__main__":
    main(producer, consume, "taskiq", "taskiq-redis", "redis")
