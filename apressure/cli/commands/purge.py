"""`apressure purge`: deletes the items that wait in a queue."""

from __future__ import annotations

from apressure.cli.asking import must_exist, told
from apressure.cli.options import Address, Common
from apressure.cli.show import answer


async def purge(common: Common, queue: Address) -> None:
    """Delete all items that wait, delayed ones included. The queue stays, and so do items in flight and dead letters.

    `apressure tasks purge` deletes tasks that have ended, with their results.
    """
    address = common.read(queue)
    async with common.open(address) as opened:
        purged = await opened.purge()
        if not purged:
            await must_exist(opened)
    answer(told(address, purged=purged), f"purged {purged} from {address}", as_json=common.json)
