"""`apressure stat`: shows how full a queue is, who holds its roles, what Spark has, and how much has passed through."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from apressure import AsyncQueue
from apressure.cli import show
from apressure.cli.options import Common, Interval, Name, Watch, seconds_between
from apressure.exceptions import PermissionDeniedError, ScriptingRefusedError
from apressure.spark import sealed_batches
from apressure.spark.sealed_batches import GroupBatches

if TYPE_CHECKING:
    from rich.console import RenderableType


async def stat(
    common: Common,
    name: Name,
    watch: Watch = False,
    interval: Interval = None,
) -> None:
    """Show how full a queue is, who holds its roles, what Spark has in flight, and how much has passed through it."""
    seconds = seconds_between(interval, watch)
    async with common.queue(name) as queue:
        if sys.stdout.isatty() and not common.json:
            await _stat_on_a_terminal(queue, seconds if watch else None)
            return
        while True:
            statistics, groups = await queue.statistics(), await _groups(queue)
            if common.json:
                show.print_json(show.with_spark(statistics, groups))
            else:
                shown = [show.queue_line(statistics)] if watch else show.statistics_lines(statistics, groups)
                sys.stdout.write("".join(line + "\n" for line in shown))
                sys.stdout.flush()
            if not watch:
                return
            await asyncio.sleep(seconds)


async def _stat_on_a_terminal(queue: AsyncQueue[bytes], seconds: float | None) -> None:
    """Show statistics once, or again after so many seconds."""
    from rich.console import Console
    from rich.live import Live

    rates = show.Rates()

    async def look() -> RenderableType:
        statistics = await queue.statistics()
        return show.statistics_view(statistics, rates.of(statistics), await _groups(queue))

    if seconds is None:
        Console().print(await look())
        return
    with Live(await look(), auto_refresh=False) as live:
        while True:
            await asyncio.sleep(seconds)
            live.update(await look(), refresh=True)


async def _groups(queue: AsyncQueue[bytes]) -> list[GroupBatches]:
    """The groups that have read a queue with Spark; none where this user may not look."""
    try:
        return await asyncio.to_thread(sealed_batches.all_groups, queue.client.settings, queue.name)
    except (PermissionDeniedError, ScriptingRefusedError):
        return []
