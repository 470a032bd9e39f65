"""`apressure resume`: lets the consumers of a paused queue go on."""

from __future__ import annotations

from apressure.cli.commands.pause import set_paused
from apressure.cli.options import Address, Common


async def resume(common: Common, queue: Address) -> None:
    """Resume a paused queue: its consumers go on."""
    await set_paused(common, queue, paused=False)
