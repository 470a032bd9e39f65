"""How the demo and the pipeline show what they do: the only module here that draws."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from apressure import AsyncQueue
from apressure.demo.flow import beside

_LOOK_EVERY: Final = 0.1
"""Seconds between two looks at the queue."""
_LINE_EVERY: Final = 2.0
"""Seconds between two lines of progress where there is no terminal."""
_FACTS: Final = """{rows_per_second:,} rows/s for {seconds:.1f} s
queue at most {peak_depth:,} of {bound:,} rows deep; the feeder waited {queue_full_seconds:.1f} s for room"""


class Screen(Progress):
    """How rows flow: bars that change in place on a terminal, elsewhere a line on standard error every two seconds.

    Attributes:
        figures: What was seen of the queue; empty at first.
    """

    def __init__(self, terminal: bool, reader: str) -> None:
        self.figures: dict[str, Any] = {}
        self._reader, self._next, self._line = reader, 0.0, ""
        name, rows, state = "[bold]{task.description}", "{task.completed:,} of {task.total:,}", "{task.fields[state]}"
        columns = (TextColumn(name), BarColumn(None), TextColumn(rows), TextColumn(state, "cyan"))
        console = Console(quiet=not terminal)
        super().__init__(*columns, console=console, auto_refresh=False, disable=not terminal, expand=True)

    @contextlib.asynccontextmanager
    async def watching(self, queue: AsyncQueue[Any], rows: int) -> AsyncIterator[None]:
        """Show how `rows` flow through a queue while the block lasts."""
        began, first = time.monotonic(), await queue.statistics()
        figures = self.figures = {"bound": first.bound, "peak_depth": 0, "queue_full_seconds": 0.0, "seconds": 0.0}
        for name, total in (("feeder", rows), ("queue", first.bound), (self._reader, rows)):
            self.add_task(name, total=total, state="")

        async def look() -> None:
            now, before, seconds = await queue.statistics(), figures["seconds"], time.monotonic() - began
            full = now.length >= 0.9 * now.bound  # the reader takes several rows at a time
            figures["peak_depth"] = max(figures["peak_depth"], now.length)
            figures["queue_full_seconds"] = round(figures["queue_full_seconds"] + (seconds - before) * full, 3)
            figures["seconds"] = round(seconds, 3)
            figures["rows_per_second"] = round((now.consumed_messages - first.consumed_messages) / seconds)
            puts = "is done" if now.closed else "waits: the queue is full" if full else "works"
            reads = "works" if now.length or now.closed else "waits: the queue is empty"
            counts = (now.produced_messages, now.length, now.consumed_messages)
            for task, count, state in zip(self.tasks, counts, (puts, "", reads), strict=True):
                self.update(task.id, completed=count, state=state)
            self.refresh()
            share = f"{now.consumed_messages:,} of {rows:,} rows ({100 * now.consumed_messages / rows:.0f}%)"
            self._say(f"{share}, queue {now.length:,}/{now.bound:,}, feeder {puts}, {self._reader} {reads}\n")

        async def keep_looking() -> None:
            while True:
                await look()
                await asyncio.sleep(_LOOK_EVERY)

        with self:
            async with beside(keep_looking()):
                yield
            self._next = 0.0
            await look()

    def _say(self, line: str) -> None:
        if self.disable and line != self._line and time.monotonic() >= self._next:
            self._line, self._next = line, time.monotonic() + _LINE_EVERY
            sys.stderr.write(line)


def print_report(result: Mapping[str, Any], good: str, proof: str) -> None:
    """Print a table of the carriers, facts of the result, and the proof: `good` says whether it holds."""
    table = Table(title="Delays of departures from New York City in 2013, in minutes", box=box.SIMPLE_HEAD)
    for heading in ("Carrier", "Flights", "Cancelled", "Mean delay"):
        table.add_column(heading, justify="right" if table.columns else "left", no_wrap=True)
    for row in result["carriers"]:
        mean = "-" if row["mean_delay"] is None else f"{row['mean_delay']:.1f}"
        table.add_row(row["name"], f"{row['flights']:,}", f"{row['cancelled']:,}", mean)
    text = f"{_FACTS if 'seconds' in result else ''}\n{'✔' if result[good] else '✘'}  {proof}".format_map(result)
    console = Console(highlight=False)
    console.print(table)
    console.print(text, style="" if result[good] else "bold red", markup=False, soft_wrap=True)
