"""For docs/do/service.md."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import AsyncMock

from apressure import AsyncQueue
from tests.documentation.stand_ins import filled, handle, public


class Orders:
    """A codec of the reader's orders."""

    def encode(self, item: SimpleNamespace) -> bytes:
        return bytes(item.customer)

    def decode(self, data: bytes) -> SimpleNamespace:
        return SimpleNamespace(customer=data)


async def prepare(url: str, code: str) -> dict[str, object]:
    queue: AsyncQueue[bytes] | AsyncQueue[SimpleNamespace] = await filled("orders", url)
    if "order.customer" in code:
        queue = AsyncQueue("orders", url=url, codec=Orders())
    several = {}
    if "urgent" in code:
        several = {name: await filled(name, url) for name in ("urgent", "normal", "bulk")}
    return {
        **public(),
        **several,
        "asyncio": asyncio,
        "ThreadPoolExecutor": ThreadPoolExecutor,
        "Order": object,
        "InvalidOrder": ValueError,
        "archive": AsyncMock(),
        "database": SimpleNamespace(insert_many=AsyncMock()),
        "handle": handle,
        "queue": queue,
    }
