"""`apressure pause`: stops the consumers of a queue."""

from __future__ import annotations

from apressure import AsyncQueue, EventQueue, FileQueue
from apressure.cli.options import Common, Name
from apressure.cli.show import answer


async def pause(common: Common, name: Name) -> None:
    """Pause a queue: its consumers take no further item until `apressure resume`. Items can still be put."""
    await set_paused(common, common.queue(name), name, paused=True)


async def set_paused(
    common: Common, queue: AsyncQueue[bytes] | EventQueue[bytes] | FileQueue[bytes], name: str, *, paused: bool
) -> None:
    """Pause or resume a queue of any kind, and print what that has changed."""
    async with queue:
        changed = await (queue.pause() if paused else queue.resume())
    if changed:
        text = f"{'paused' if paused else 'resumed'} {name}"
    else:
        text = f"{name} is paused already" if paused else f"{name} is not paused"
    answer({"name": name, "paused": paused, "changed": changed}, text, as_json=common.json)
