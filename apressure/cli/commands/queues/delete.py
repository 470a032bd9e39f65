"""`apressure delete`: deletes a queue."""

from __future__ import annotations

from apressure.cli.options import Common, Name, Timeout
from apressure.cli.show import answer


async def delete(common: Common, name: Name, timeout: Timeout = None) -> None:
    """Delete a queue with all its items. Clients that wait for the queue get an error."""
    async with common.queue(name) as queue:
        await queue.delete(timeout)
    answer({"name": name, "deleted": True}, f"deleted {name}", as_json=common.json)
