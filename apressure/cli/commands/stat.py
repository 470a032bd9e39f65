"""`apressure stat`: shows how full a queue is, who consumes, what Spark has, and how much has passed through."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from apressure.cli import figures
from apressure.cli.asking import look
from apressure.cli.figures import Found
from apressure.cli.options import Address, Common, Interval, Watch, seconds_between
from apressure.cli.show import print_json, show_view
from apressure.queue_addresses import QueueAddress
from apressure.spark import sealed_batches
from apressure.spark.sealed_batches import GroupBatches

if TYPE_CHECKING:
    from rich.console import RenderableType


async def stat(common: Common, queue: Address, watch: Watch = False, interval: Interval = None) -> None:
    """Show how full a queue is, who consumes, what Spark has in flight, and how much has passed through it.

    Into a pipe: one line for each value, or with --watch one line each time.
    """
    seconds = seconds_between(interval, watch)
    address = common.read(queue)
    async with common.open(address) as opened:
        if sys.stdout.isatty() and not common.json:
            await _stat_on_a_terminal(address, opened, seconds if watch else None)
            return
        while True:
            found, groups = (address, await look(opened)), await _groups(address, opened)
            if common.json:
                print_json(figures.as_dict(found, groups))
            else:
                shown = [figures.watched_line(found)] if watch else figures.lines(found, groups)
                sys.stdout.write("".join(line + "\n" for line in shown))
                sys.stdout.flush()
            if not watch:
                return
            await asyncio.sleep(seconds)


async def _stat_on_a_terminal(address: QueueAddress, opened: Any, seconds: float | None) -> None:
    """Show statistics once, or again after so many seconds."""
    rates = figures.Rates()

    async def view() -> RenderableType:
        found: Found = (address, await look(opened))
        return figures.statistics_view(found, rates.of(found[1]), await _groups(address, opened))

    await show_view(view, seconds)


async def _groups(address: QueueAddress, opened: Any) -> list[GroupBatches]:
    """The groups that have read a queue with Spark, which reads AsyncQueues; none where this user may not look."""
    if address.kind != "queue":
        return []
    return await asyncio.to_thread(sealed_batches.visible_groups, opened.client.settings, opened.name)
