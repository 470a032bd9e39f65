"""`apressure stat`: shows how full a queue is, who holds its roles, and how much has passed through it."""

from __future__ import annotations

import asyncio
import sys

from apressure import AsyncQueue
from apressure.cli import show
from apressure.cli.options import Common, Interval, Name, Watch, seconds_between


async def stat(
    common: Common,
    name: Name,
    watch: Watch = False,
    interval: Interval = None,
) -> None:
    """Show how full a queue is, who holds its roles, and how much has passed through it."""
    seconds = seconds_between(interval, watch)
    async with common.queue(name) as queue:
        if sys.stdout.isatty() and not common.json:
            await _stat_on_a_terminal(queue, seconds if watch else None)
            return
        while True:
            statistics = await queue.statistics()
            if common.json:
                show.print_json(show.as_dict(statistics))
            else:
                shown = [show.queue_line(statistics)] if watch else show.statistics_lines(statistics)
                sys.stdout.write("".join(line + "\n" for line in shown))
                sys.stdout.flush()
            if not watch:
                return
            await asyncio.sleep(seconds)


async def _stat_on_a_terminal(queue: AsyncQueue[bytes], seconds: float | None) -> None:
    """Show statistics once, or again after so many seconds."""
    from rich.console import Console
    from rich.live import Live

    statistics = await queue.statistics()
    if seconds is None:
        Console().print(show.statistics_view(statistics))
        return
    rates = show.Rates()
    with Live(show.statistics_view(statistics, rates.of(statistics)), auto_refresh=False) as live:
        while True:
            await asyncio.sleep(seconds)
            statistics = await queue.statistics()
            live.update(show.statistics_view(statistics, rates.of(statistics)), refresh=True)
