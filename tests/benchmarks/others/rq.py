"""RQ with its SimpleWorker, which starts no process for a job and is several times as fast."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis import Redis
from rq import Queue, SimpleWorker

from tests.benchmarks.others.measure import PAYLOAD, Put, Stopwatch, bulks, main

MODULE = "tests.benchmarks.others.rq"
"""RQ imports its jobs by name."""

watches: list[Stopwatch] = []


def work(payload: str) -> None:
    watches[0].job()


@asynccontextmanager
async def producer(url: str) -> AsyncIterator[Put]:
    queue = Queue(connection=Redis.from_url(url))

    async def put(count: int) -> None:
        for size in bulks(count):
            queue.enqueue_many([Queue.prepare_data(f"{MODULE}.work", (PAYLOAD,), result_ttl=0) for _ in range(size)])

    yield put


async def consume(url: str, watch: Stopwatch) -> None:
    module = importlib.import_module(MODULE)  # the module with the job, not this one, which is __main__
    module.watches.append(watch)
    redis = Redis.from_url(url)
    worker = SimpleWorker([Queue(connection=redis)], connection=redis, log_job_description=False)
    worker.work(max_jobs=watch.jobs, logging_level="WARNING")


if __name__ == "__main__":
    main(producer, consume, "rq", "redis")
