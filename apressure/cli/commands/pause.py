"""`apressure pause`: stops the consumers of a queue."""

from __future__ import annotations

from apressure.cli.asking import told
from apressure.cli.options import Address, Common
from apressure.cli.show import answer


async def pause(common: Common, queue: Address) -> None:
    """Pause a queue: its consumers take no further item until `apressure resume`. Items can still be put.

    Programs that do not use apressure, such as an okq or a node of the released blueque, do not know of the pause.
    """
    await set_paused(common, queue, paused=True)


async def set_paused(common: Common, queue: str, *, paused: bool) -> None:
    """Pause or resume a queue, and print what that has changed."""
    address = common.read(queue)
    async with common.open(address) as opened:
        changed = await (opened.pause() if paused else opened.resume())
    if changed:
        text = f"{'paused' if paused else 'resumed'} {address}"
    else:
        text = f"{address} is paused already" if paused else f"{address} is not paused"
    answer(told(address, paused=paused, changed=changed), text, as_json=common.json)
