"""`apressure resume`: lets the consumers of a paused queue go on."""

from __future__ import annotations

from apressure.cli.commands.queues.pause import set_paused
from apressure.cli.options import Common, Name


async def resume(common: Common, name: Name) -> None:
    """Resume a paused queue: its consumers go on."""
    await set_paused(common, common.queue(name), name, paused=False)
