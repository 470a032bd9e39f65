"""FastStream: batches in lists."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from faststream import FastStream
from faststream.redis import ListSub, RedisBroker

from tests.benchmarks.others.measure import BULK, NAME, PAYLOAD, Put, Stopwatch, bulks, main


@asynccontextmanager
async def producer(url: str) -> AsyncIterator[Put]:
    async with RedisBroker(url, logger=None) as broker:

        async def put(count: int) -> None:
            for size in bulks(count):
                await broker.publish_batch(*[PAYLOAD.encode()] * size, list=NAME)

        yield put


async def consume(url: str, watch: Stopwatch) -> None:
    broker = RedisBroker(url, logger=None)

    # 10 records (the default) and 100 are slower; 10,000 are not faster.
    @broker.subscriber(list=ListSub(NAME, batch=True, max_records=BULK))
    async def work(payloads: list[bytes]) -> None:
        for _ in payloads:
            watch.job()

    await FastStream(broker, logger=None).run()


if __name__ == "__main__":
    main(producer, consume, "faststream", "redis")
