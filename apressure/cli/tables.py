"""A queue's statistics for people.

The rule of this module: it reads the snapshot that `statistics()` returns and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from apressure.cli.show import printable, state_text
from apressure.queue.statistics import QueueStatistics, RoleStatistics


def queues_table(found: Iterable[QueueStatistics]) -> RenderableType:
    """Return a table of queues for people."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("Queue")
    table.add_column("Items", justify="right")
    table.add_column("Bound", justify="right")
    table.add_column("In flight", justify="right")
    table.add_column("State")
    table.add_column("Producer")
    table.add_column("Consumer")
    for statistics in found:
        full = statistics.bound and statistics.length >= statistics.bound
        table.add_row(
            Text(printable(statistics.name), style="bold"),
            Text(f"{statistics.length:,}", style="red" if full else ""),
            Text(f"{statistics.bound:,}" if statistics.bound else "none", style="" if statistics.bound else "dim"),
            Text(f"{statistics.in_flight:,}", style="" if statistics.in_flight else "dim"),
            Text(state_text(statistics), style="yellow" if statistics.closed else "green"),
            _role_short(statistics.producer),
            _role_short(statistics.consumer),
        )
    return table if table.row_count else Text("no queues", style="dim")


class Rates:
    """Messages a second between two looks."""

    def __init__(self) -> None:
        self._last: tuple[float, int, int] | None = None

    def of(self, statistics: QueueStatistics) -> tuple[float, float] | None:
        """Return how many were put and got a second since the last call; None at the first."""
        now = (time.monotonic(), statistics.produced_messages, statistics.consumed_messages)
        last, self._last = self._last, now
        if last is None or now[0] == last[0]:
            return None
        seconds = now[0] - last[0]
        return (now[1] - last[1]) / seconds, (now[2] - last[2]) / seconds


def statistics_view(statistics: QueueStatistics, rates: tuple[float, float] | None = None) -> RenderableType:
    """Return a queue's statistics for people."""
    head = Text.assemble(
        (printable(statistics.name), "bold"),
        "  ",
        (state_text(statistics), "yellow" if statistics.closed else "green"),
    )
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    items = Text(f"{statistics.length:,}")
    if statistics.bound:
        items.append(f" of {statistics.bound:,}")
        if statistics.length >= statistics.bound:
            items.append("  full", style="red")
    else:
        items.append("  no bound", style="dim")
    if statistics.in_flight:
        items.append(f"  and {statistics.in_flight:,} in flight")
    grid.add_row("items", items)
    if statistics.bound:
        grid.add_row(
            "", ProgressBar(total=statistics.bound, completed=min(statistics.length, statistics.bound), width=40)
        )
    for label, messages, size, rate in (
        ("produced", statistics.produced_messages, statistics.produced_bytes, rates and rates[0]),
        ("consumed", statistics.consumed_messages, statistics.consumed_bytes, rates and rates[1]),
    ):
        text = Text(f"{messages:,} items, {_size(size)}")
        if rate is not None:
            text.append(f"  {rate:,.0f}/s", style="cyan")
        grid.add_row(label, text)
    grid.add_row("producer", _role_long(statistics.producer))
    grid.add_row("consumer", _role_long(statistics.consumer))
    return Group(head, grid)


def _role_short(role: RoleStatistics) -> Text:
    return Text(role.state, style="dim" if role.state == "free" else "cyan")


def _role_long(role: RoleStatistics) -> Text:
    text = _role_short(role)
    if role.holder is not None:
        # The server shows the last holder also after it has given the role back.
        text.append(f"{' by' if role.state != 'free' else ', last'} ", style="dim")
        text.append(printable(role.holder))
    now = datetime.now(UTC)
    if role.since is not None and role.state != "free":
        text.append(f" for {_duration((now - role.since).total_seconds())}", style="dim")
    if role.expires is not None:
        text.append(f", lease ends in {_duration((role.expires - now).total_seconds())}", style="dim")
    return text


def _duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _size(size: int) -> str:
    amount = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            break
        amount /= 1000
    return f"{size:,} bytes" if unit == "bytes" else f"{amount:,.1f} {unit}"
