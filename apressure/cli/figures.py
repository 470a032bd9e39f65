"""Shows the statistics of a queue of any kind: as JSON and lines for programs, as tables for people.

It reads the snapshot that `statistics()` returns, and what Spark has in flight. Rich is slow to import, so only the
functions that make tables import it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from apressure.cli.show import plain, printable
from apressure.core.limits import UNLIMITED
from apressure.monitor.telling import as_data, iso, told
from apressure.pressure.statistics import QueueStatistics, RoleStatistics
from apressure.queue_addresses import QueueAddress
from apressure.telemetry.states import consumers_of, duration, size_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from apressure.core.workers import WaitingProducer, WorkerStatistics
    from apressure.spark.sealed_batches import GroupBatches

Found = tuple[QueueAddress, Any]
"""A queue, and its statistics."""

_WATCHED: Final = (
    "length", "in_flight", "delayed", "scheduled", "started", "complete", "consumers", "dead_letters", "unfinished",
    "oldest",
)  # fmt: skip
"""What `stat --watch` shows on a line, where the kind of queue has it. Delayed messages only if there are any."""


def as_dict(found: Found, groups: Iterable[GroupBatches] = ()) -> dict[str, Any]:
    """Return statistics for `--json`, with the groups that have read the queue with Spark, if there are any."""
    spark = [
        {
            "group": group.group,
            "since": None if group.since is None else iso(datetime.fromtimestamp(group.since, UTC)),
            "batches": group.batches,
            "messages": group.messages,
            "bytes": group.bytes,
            "seconds": group.seconds,
            "read": group.read,
        }
        for group in groups
    ]
    return {**told(*found), **({"spark": spark} if spark else {})}


def queue_line(found: Found) -> str:
    """Return one line for scripts: address, length, bound and state, separated by tabs."""
    address, statistics = found
    state = _state_text(statistics) + (f", {statistics.delayed} delayed" if statistics.delayed else "")
    return f"{printable(str(address))}\t{statistics.length}\t{statistics.bound}\t{state}"


def lines(found: Found, groups: Iterable[GroupBatches] = ()) -> list[str]:
    """Return statistics for scripts: one line for each value, with its key, a tab and the value."""
    shown = []
    for key, value in as_dict(found, groups).items():
        if key == "spark":
            shown += [
                f"spark_{part}\t{printable(group['group'])}\t{plain(inner)}"
                for group in value
                for part, inner in group.items()
                if part != "group"
            ]
        elif key == "limits":
            shown.append(f"{key}\t{found[1].limits}")
        elif isinstance(value, dict):
            shown += [f"{key}_{part}\t{plain(inner)}" for part, inner in value.items()]
        elif isinstance(value, list):
            shown.append(f"{key}\t{len(value)}")
        else:
            shown.append(f"{key}\t{plain(value)}")
    return shown


def watched_line(found: Found) -> str:
    """Return one line for `stat --watch`: a few numbers with their names, and the state if the queue is not open."""
    _, statistics = found
    shown = (key for key in _WATCHED if hasattr(statistics, key) and (key != "delayed" or statistics.delayed))
    parts = [f"{key} {plain(as_data(getattr(statistics, key)))}" for key in shown]
    state = _state_text(statistics)
    return "  ".join(parts if state == "open" else [*parts, state])


class Rates:
    """Messages a second between two looks."""

    def __init__(self) -> None:
        self._last: tuple[float, int, int] | None = None

    def of(self, statistics: Any) -> tuple[float, float] | None:
        """Return how many messages a second were put and got since the last call; None at the first call."""
        if not isinstance(statistics, QueueStatistics):  # only pressure counts on the server
            return None
        now = (time.monotonic(), statistics.produced_messages, statistics.consumed_messages)
        last, self._last = self._last, now
        if last is None or now[0] == last[0]:
            return None
        seconds = now[0] - last[0]
        return (now[1] - last[1]) / seconds, (now[2] - last[2]) / seconds


def queues_table(queues: Iterable[Found]) -> RenderableType:
    """Return a table of queues for people."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("Queue")
    table.add_column("Items", justify="right")
    table.add_column("Bound", justify="right")
    table.add_column("In flight", justify="right")
    table.add_column("Delayed", justify="right")
    table.add_column("State")
    table.add_column("Producer")
    table.add_column("Consumer")
    for address, statistics in queues:
        bound = statistics.bound
        state = _state_text(statistics)
        table.add_row(
            Text(printable(str(address)), style="bold"),
            Text(f"{statistics.length:,}", style="red" if bound and statistics.length >= bound else ""),
            Text(f"{bound:,}" if bound else "none", style="" if bound else "dim"),
            Text(f"{statistics.in_flight:,}", style="" if statistics.in_flight else "dim"),
            Text(f"{statistics.delayed:,}", style="" if statistics.delayed else "dim"),
            Text(state, style="green" if state == "open" else "yellow"),
            *_roles_short(statistics),
        )
    return table if table.row_count else Text("no queues", style="dim")


def statistics_view(
    found: Found, rates: tuple[float, float] | None = None, groups: Iterable[GroupBatches] = ()
) -> RenderableType:
    """Return a queue's statistics for people."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    address, statistics = found
    state, bound = _state_text(statistics), statistics.bound
    head = Text.assemble(
        (printable(str(address)), "bold"), "  ", (state, "green" if state == "open" else "yellow")
    )  # fmt: skip
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    items = Text(f"{statistics.length:,}")
    if bound:
        items.append(f" of {bound:,}")
        if statistics.length >= bound:
            items.append("  full", style="red")
    else:
        items.append("  no bound", style="dim")
    if statistics.in_flight:
        items.append(f"  and {statistics.in_flight:,} in flight")
    if statistics.delayed:
        items.append(
            f"  and {statistics.delayed:,} delayed, the next one due in {duration(statistics.next_due or 0.0)}"
        )
    grid.add_row("items", items)
    if statistics.limits != UNLIMITED:
        grid.add_row("limits", str(statistics.limits))
    if bound:
        grid.add_row("", ProgressBar(total=bound, completed=min(statistics.length, bound), width=40))
    if isinstance(statistics, QueueStatistics):
        _add_flow(grid, statistics, rates)
    else:
        for key, value in as_dict(found).items():
            if key not in _IN_THE_HEAD and value is not None:
                grid.add_row(key.replace("_", " "), Text(plain(value)))
    _add_some(grid, "waiting producers", map(_producer_text, statistics.waiting_producers))
    _add_some(grid, "workers", map(_worker_text, statistics.workers))
    for number, group in enumerate(groups):
        grid.add_row("" if number else "spark", _group_text(group))
    return Group(head, grid)


_MOST_SHOWN: Final = 20
"""As many workers, and producers that wait, are shown by themselves; `apressure workers ls` lists all workers."""

_IN_THE_HEAD: Final = (
    "name", "address", "kind", "length", "bound", "closed", "paused", "in_flight", "delayed", "next_due", "limits",
    "workers", "waiting_producers",
)  # fmt: skip


def _add_flow(grid: Table, statistics: QueueStatistics, rates: tuple[float, float] | None) -> None:
    """Add how much has passed through a queue, and who has its roles."""
    from rich.text import Text

    for label, messages, size, rate in (
        ("produced", statistics.produced_messages, statistics.produced_bytes, rates and rates[0]),
        ("consumed", statistics.consumed_messages, statistics.consumed_bytes, rates and rates[1]),
    ):
        text = Text(f"{messages:,} items, {size_text(size)}")
        if rate is not None:
            text.append(f"  {rate:,.0f}/s", style="cyan")
        grid.add_row(label, text)
    grid.add_row("producer", _role_long(statistics.producer))
    if statistics.members:
        for number, member in enumerate(statistics.members):
            share = RoleStatistics("leased", member.holder, member.since, member.expires)
            grid.add_row("shared by" if number == 0 else "", _role_long(share))
    else:
        grid.add_row("consumer", _role_long(statistics.consumer))


def _add_some(grid: Table, label: str, rows: Iterable[Text]) -> None:
    from rich.text import Text

    texts = list(rows)
    for number, text in enumerate(texts[:_MOST_SHOWN]):
        grid.add_row("" if number else label, text)
    if (more := len(texts) - _MOST_SHOWN) > 0:
        grid.add_row("", Text(f"and {more:,} more", style="dim"))


def _producer_text(producer: WaitingProducer) -> Text:
    from rich.text import Text

    puts = f"{producer.puts:,} put{'s' * (producer.puts != 1)}"
    return Text(f"{printable(producer.id)}: {puts}, the first for {duration(producer.waited)}", style="yellow")


def _worker_text(worker: WorkerStatistics) -> Text:
    from rich.text import Text

    text = Text(f"{printable(worker.id)}: {worker.kind} {printable(worker.handler)}".rstrip())
    text.append(f", {worker.in_hand:,} in hand, {worker.handled:,} handled, {worker.failed:,} failed")
    return text.append("  draining" if worker.draining else "", style="yellow")


def _group_text(group: GroupBatches) -> Text:
    from rich.text import Text

    text = Text(f"{printable(group.group)}: {group.messages:,} items")
    if group.bytes is not None:
        text.append(f", {size_text(group.bytes)}")
    text.append(f" in flight in {group.batches:,} batch{'es' * (group.batches != 1)}")
    if group.seconds is not None:
        text.append(f" for {duration(group.seconds)}", style="dim")
    return text.append(f", {group.read:,} read", style="dim")


def _state_text(statistics: Any) -> str:
    words = [word for word in ("closed", "paused") if getattr(statistics, word)]
    if statistics.limits != UNLIMITED:
        words.append("held" if statistics.limits.held_for else "limited")
    return ", ".join(words) or "open"


def _roles_short(statistics: Any) -> tuple[Text, Text]:
    """Return who produces, and who consumes. Events and tasks have no roles, and count their consumers."""
    from rich.text import Text

    if isinstance(statistics, QueueStatistics):
        return _role_short(statistics.producer), _role_short(statistics.consumer, len(statistics.members))
    count = consumers_of(statistics)
    return Text("-", style="dim"), Text("-" if count is None else f"{count:,}", style="cyan" if count else "dim")


def _role_short(role: RoleStatistics, members: int = 0) -> Text:
    from rich.text import Text

    return Text(f"shared by {members}" if members else role.state, style="dim" if role.state == "free" else "cyan")


def _role_long(role: RoleStatistics) -> Text:
    text = _role_short(role)
    if role.holder is not None:
        # The server shows the last holder even after it gave the role back.
        text.append(f"{' by' if role.state != 'free' else ', last'} ", style="dim")
        text.append(printable(role.holder))
    now = datetime.now(UTC)
    if role.since is not None and role.state != "free":
        text.append(f" for {duration((now - role.since).total_seconds())}", style="dim")
    if role.expires is not None:
        text.append(f", lease ends in {duration((role.expires - now).total_seconds())}", style="dim")
    return text
