"""`apressure close`: closes a queue."""

from __future__ import annotations

from apressure.cli.options import Common, Name, Timeout
from apressure.cli.show import answer


async def close(common: Common, name: Name, timeout: Timeout = None) -> None:
    """Close a queue: it accepts no more items, and its consumers end after the last item."""
    async with common.queue(name) as queue:
        await queue.close(timeout)
    answer({"name": name, "closed": True}, f"closed {name}", as_json=common.json)
