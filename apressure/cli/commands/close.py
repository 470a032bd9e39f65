"""`apressure close`: closes a queue."""

from __future__ import annotations

from apressure.cli.asking import told
from apressure.cli.options import Address, Common, Timeout
from apressure.cli.show import answer


async def close(common: Common, queue: Address, timeout: Timeout = None) -> None:
    """Close a queue: it accepts no more items, and its consumers end after the last item."""
    address = common.read(queue)
    async with common.open(address) as opened:
        await opened.close(timeout)
    answer(told(address, closed=True), f"closed {address}", as_json=common.json)
