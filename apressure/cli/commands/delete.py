"""`apressure delete`: deletes a queue."""

from __future__ import annotations

from apressure.cli.asking import told
from apressure.cli.options import Address, Common, Timeout
from apressure.cli.show import answer


async def delete(common: Common, queue: Address, timeout: Timeout = None) -> None:
    """Delete a queue with all its items, and the results of its tasks. Clients that wait for the queue get an error."""
    address = common.read(queue)
    async with common.open(address) as opened:
        await opened.delete(timeout)
    answer(told(address, deleted=True), f"deleted {address}", as_json=common.json)
