"""Use a queue in a script or a notebook, without asyncio: each call waits for its result."""

from apressure import AsyncQueue
from apressure.sync import Queue

with Queue(AsyncQueue("orders", url="embedded://", codec="text")) as queue:
    queue.create(bound=100)
    with queue.producer() as producer:  # closes the queue at the end of the block
        producer.put("order 0")
        producer.put_many(f"order {number}" for number in range(1, 5))
    with queue.consumer() as items:  # acknowledges each item when the loop asks for the next one
        for item in items:
            print(item)
    queue.delete()
