"""Measure our queues as peers.py measures job queues: `python -m tests.benchmarks.served KIND enqueue|consume …`.

The rest of the command line is that of tests/benchmarks/others/measure.py.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from apressure import DuplicateMessageError, serve
from tests.benchmarks.cpu import opened
from tests.benchmarks.others.measure import (
    CONCURRENCY,
    NAME,
    NEVER_REACHED,
    Put,
    Stopwatch,
    customer,
    main,
    order,
)


@asynccontextmanager
async def producer(kind: str, url: str, terms: str) -> AsyncIterator[Put]:
    async with opened(kind, url, NAME) as (queue, item):
        await queue.create()
        if terms == "rate":
            await queue.set_rate(NEVER_REACHED, burst=NEVER_REACHED)
        elif terms == "keys":
            await queue.set_key()

        async def put(count: int) -> None:
            for _ in range(count):
                options: dict[str, Any] = {"key": customer()} if terms == "keys" else {"dedup_id": order(terms)}
                with suppress(DuplicateMessageError):
                    await queue.put(item, **options)

        yield put


async def consume(kind: str, url: str, watch: Stopwatch, terms: str) -> None:
    async def handle(item: Any) -> None:
        watch.job()

    async with opened(kind, url, NAME) as (queue, _):
        await serve(handle, queue, concurrency=CONCURRENCY, signals=())


if __name__ == "__main__":
    kind = sys.argv.pop(1)
    main(functools.partial(producer, kind), functools.partial(consume, kind), "apressure", "redis")
