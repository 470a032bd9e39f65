"""`apressure resume`: lets the consumers of a paused queue go on."""

from __future__ import annotations

from apressure.cli.options import Common, Name
from apressure.cli.show import answer


async def resume(common: Common, name: Name) -> None:
    """Resume a paused queue: its consumers go on."""
    async with common.queue(name) as queue:
        changed = await queue.resume()
    text = f"resumed {name}" if changed else f"{name} is not paused"
    answer({"name": name, "paused": False, "changed": changed}, text, as_json=common.json)
