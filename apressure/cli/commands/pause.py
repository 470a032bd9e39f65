"""`apressure pause`: stops the consumers of a queue."""

from __future__ import annotations

from apressure.cli.options import Common, Name
from apressure.cli.show import answer


async def pause(common: Common, name: Name) -> None:
    """Pause a queue: its consumers take no further item until `apressure resume`. Items can still be put."""
    async with common.queue(name) as queue:
        changed = await queue.pause()
    text = f"paused {name}" if changed else f"{name} is paused already"
    answer({"name": name, "paused": True, "changed": changed}, text, as_json=common.json)
