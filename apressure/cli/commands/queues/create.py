"""`apressure create`: creates a queue."""

from __future__ import annotations

from typing import Annotated

import typer

from apressure.cli import show
from apressure.cli.options import Common, Name


async def create(
    common: Common,
    name: Name,
    bound: Annotated[
        int, typer.Option("--bound", metavar="N", min=0, help="How many items the queue may hold; 0 for no limit.")
    ] = 0,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Succeed if the queue exists already.")] = False,
) -> None:
    """Create a queue."""
    async with common.queue(name) as queue:
        created = await queue.create(bound, exist_ok=exist_ok)
        actual = bound if created else await queue.bound()
    limit = show.bound_text(actual)
    text = f"created {name} ({limit})" if created else f"{name} exists already ({limit})"
    show.answer({"name": name, "bound": actual, "created": created}, text, as_json=common.json)
