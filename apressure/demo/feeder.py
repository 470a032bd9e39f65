"""The feeder, a process of its own: puts flights into a queue, waits while it is full, and closes it at the end."""

import asyncio
from typing import Any, Literal

from apressure import AsyncQueue
from apressure.demo import flights
from apressure.demo.flow import read_orders
from apressure.spark import feed


async def main(url: str, prefix: str | None, queue: str, rows: int, codec: Literal["json", "text"]) -> None:
    """Put lines of the file (`text`); or flights (`json`), from where a feeder was that has been killed."""
    async with AsyncQueue[Any](queue, url=url, prefix=prefix, codec=codec) as opened:
        if codec == "json":
            await feed(opened, flights.flights(rows))
        else:
            async with opened.producer() as producer:
                await producer.put_many(flights.lines(rows))


if __name__ == "__main__":
    asyncio.run(main(**read_orders()))
