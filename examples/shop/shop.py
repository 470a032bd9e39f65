"""The shop: it takes orders, and puts them into a bounded queue."""

import os
from dataclasses import dataclass

from apressure import AsyncQueue, DeadlineError, QueueFullError

URL = os.environ.get("APRESSURE_URL", "redis://127.0.0.1:6379/0")


@dataclass
class Order:
    number: int
    cents: int


def invoices(url: str = URL) -> AsyncQueue[Order]:
    """Return the queue between the shop and its workers."""
    return AsyncQueue("invoices", url=url, codec=Order, max_attempts=3)


async def accept(queue: AsyncQueue[Order], order: Order, patience: float = 0.5) -> int:
    """Take an order. Returns the status of the HTTP response: 202, or 503 if there are too many orders."""
    try:
        await queue.put(order, timeout=patience, deadline=patience + 2)
    except (QueueFullError, DeadlineError):
        return 503
    return 202
