"""Feed typed rows from an asynchronous source into a queue, with backpressure.

Needs the extra `codecs`. `put_many` reads the source no faster than the queue has room for its rows.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator

from apressure import AsyncQueue


@dataclasses.dataclass
class Order:
    number: int
    customer: str
    total: float


async def source() -> AsyncIterator[Order]:
    for number in range(1000):
        if number % 100 == 0:
            await asyncio.sleep(0.001)  # for example, the next page of a web service
        yield Order(number, f"customer {number % 7}", number * 1.5)


async def extract(queue: AsyncQueue[Order]) -> None:
    async with queue.producer() as producer:
        rows = await producer.put_many(source())
        print(f"fed {rows} orders")


async def load(queue: AsyncQueue[Order]) -> None:
    total = 0.0
    async with queue.consumer(delete=True) as consumer:
        async for order in consumer:
            total += order.total
    print(f"loaded orders of {total:,.2f}")


async def main() -> None:
    async with AsyncQueue("orders", url="embedded://", codec=Order) as queue:
        await queue.create(bound=100)
        async with asyncio.TaskGroup() as group:
            group.create_task(extract(queue))
            group.create_task(load(queue))


asyncio.run(main())
