"""Handle each message at least once: a message whose handler fails goes back, first in line, marked as redelivered."""

import asyncio

from apressure import AsyncQueue


async def main() -> None:
    async with AsyncQueue("letters", url="embedded://", codec="text") as queue:
        await queue.create()
        async with queue.producer() as producer:
            await producer.put_many(["a", "b", "c"])

        try:
            async with queue.consumer() as consumer:
                async for letter in consumer:
                    print("first try", letter)
                    if letter == "b":
                        raise RuntimeError("the handler of b fails")
        except RuntimeError as error:
            print(error)

        # Acknowledge by hand, in any order, or give a delivery back.
        async with queue.consumer(ack="manual", delete=True) as consumer:
            async for delivery in consumer:
                again = " again" if delivery.redelivered else ""
                print(f"got {delivery.item}{again}, delivered {delivery.attempts} times")
                await delivery.ack()


asyncio.run(main())
