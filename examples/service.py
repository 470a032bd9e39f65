"""Run handlers on a queue: eight at a time, with retries, and a graceful shutdown at SIGTERM or Ctrl-C.

A program of your own, with a server that runs already, needs one line:

    asyncio.run(serve(handle, AsyncQueue("orders", url="redis://…"), concurrency=8))
"""

import asyncio
import logging

from apressure import AsyncQueue, Backoff, Delivery, serve


async def handle(delivery: Delivery[str]) -> None:
    await asyncio.sleep(0.01)  # some work
    if delivery.item == "order 3" and not delivery.redelivered:
        raise RuntimeError("the warehouse does not answer")
    print(f"{delivery.item} is done, at attempt {delivery.attempts}")


async def main() -> None:
    async with AsyncQueue("orders", url="embedded://", codec="text") as queue:
        await queue.create(bound=100)
        async with queue.producer() as producer:  # usually elsewhere; its end ends the service
            await producer.put_many(f"order {number}" for number in range(10))
        print(await serve(handle, queue, concurrency=8, deliveries=True, retry=Backoff(0.1)))
        await queue.delete()


logging.getLogger("apressure").disabled = True  # it would show each failure with its traceback
asyncio.run(main())
