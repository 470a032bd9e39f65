"""`apressure promote`: makes delayed items due now."""

from __future__ import annotations

from typing import Annotated

from apressure.cli.asking import must_exist, told
from apressure.cli.exits import UsageError
from apressure.cli.options import Address, Common, option
from apressure.cli.show import answer


async def promote(
    common: Common,
    queue: Address,
    ids: Annotated[list[str] | None, option("id", "Only the delayed item with this id.", "ID", shown="all")] = None,
    most: Annotated[int | None, option("max", "Only the N that are due first.", "N", shown="all", min=1)] = None,
) -> None:
    """Make delayed items due now, scheduled retries included: they go to the end of the queue.

    `apressure peek --place delayed` shows them.
    """
    if ids and most is not None:
        raise UsageError("give either --id or --max, not both")
    address = common.read(queue)
    async with common.open(address) as opened:
        promoted = await opened.promote(most, ids=ids or None)
        if not promoted:
            await must_exist(opened)
    answer(told(address, promoted=promoted), f"promoted {promoted} in {address}", as_json=common.json)
