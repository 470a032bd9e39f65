"""docket: streams. Only tests/benchmarks/peers.py measures it, so it knows no bulks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from docket import ConcurrencyLimit, Docket, RateLimit, Worker

from tests.benchmarks.others.measure import (
    CONCURRENCY,
    NAME,
    NEVER_REACHED,
    PAYLOAD,
    Put,
    Stopwatch,
    customer,
    main,
    order,
)

A_RATE: Final = RateLimit(NEVER_REACHED, per=timedelta(seconds=1))
ONE_OF_A_CUSTOMER: Final = ConcurrencyLimit("customer", max_concurrent=1)


def job(terms: str, done: Callable[[], None]) -> Callable[..., Awaitable[None]]:
    """Return the job, which has its limits in its arguments."""

    async def work(payload: str) -> None:
        done()

    async def work_at_a_rate(payload: str, limit: RateLimit = A_RATE) -> None:
        done()

    async def work_by_customer(payload: str, customer: str, limit: ConcurrencyLimit = ONE_OF_A_CUSTOMER) -> None:
        done()

    return {"rate": work_at_a_rate, "keys": work_by_customer}.get(terms, work)


def opened(url: str) -> Docket:
    """Return the queue. It keeps no results, which is faster."""
    return Docket(name=NAME, url=url, execution_ttl=timedelta(0))


@asynccontextmanager
async def producer(url: str, terms: str) -> AsyncIterator[Put]:
    async with opened(url) as queue:
        work = job(terms, lambda: None)

        async def put(count: int) -> None:
            for _ in range(count):
                arguments = {"customer": customer()} if terms == "keys" else {}
                await queue.add(work, key=order(terms))(PAYLOAD, **arguments)

        yield put


async def consume(url: str, watch: Stopwatch, terms: str) -> None:
    async with opened(url) as queue:
        queue.register(job(terms, watch.job))
        # A worker that has as many jobs as it may sleeps, a quarter of a second by default: 128 jobs a second. 1 ms and
        # 5 ms are not faster.
        often = timedelta(milliseconds=2)
        async with Worker(queue, concurrency=CONCURRENCY, minimum_check_interval=often) as worker:
            await worker.run_forever()


if __name__ == "__main__":
    main(producer, consume, "pydocket", "redis")
