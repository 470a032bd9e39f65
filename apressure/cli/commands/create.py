"""`apressure create`: creates a queue."""

from __future__ import annotations

from typing import Annotated

from apressure.cli.asking import told
from apressure.cli.options import Address, Common, option
from apressure.cli.show import answer, bound_text


async def create(
    common: Common,
    queue: Address,
    bound: Annotated[int, option("bound", "How many items the queue may hold; 0 for no limit.", "N", min=0)] = 0,
    exist_ok: Annotated[bool, option("exist-ok", "Succeed if the queue exists already.")] = False,
) -> None:
    """Create a queue. Queues of events and of tasks, and directories, need that only for a bound."""
    address = common.read(queue)
    async with common.open(address) as opened:
        created = await opened.create(bound, exist_ok=exist_ok)
        actual = bound if created else await opened.bound()
    limit = bound_text(actual)
    text = f"created {address} ({limit})" if created else f"{address} exists already ({limit})"
    answer(told(address, bound=actual, created=created), text, as_json=common.json)
