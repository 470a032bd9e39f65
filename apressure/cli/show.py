"""Prints a queue's statistics: as JSON and lines for programs, as tables for people. And makes text safe to print.

It reads the snapshot that `statistics()` returns, and what Spark has in flight. Rich is slow to import, so only the
functions that make tables import it.
"""

from __future__ import annotations

import dataclasses
import json as jsons
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from apressure.core.statistics import OWN
from apressure.pressure.statistics import QueueStatistics, RoleStatistics

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from apressure.spark.sealed_batches import GroupBatches


def printable(text: str) -> str:
    """Return `text` with control characters made visible: names of queues and holders may contain them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def visible(data: bytes) -> bytes:
    """Return text without anything that a terminal would obey: control characters are made visible, except tabs."""
    text = data.decode(errors="backslashreplace")
    return "\t".join(map(printable, text.split("\t"))).encode()


def answer(data: object, text: str, *, as_json: bool) -> None:
    """Print the result of a command, as JSON or as text."""
    if as_json:
        print_json(data)
    else:
        sys.stdout.write(printable(text) + "\n")
        sys.stdout.flush()


def print_json(data: object) -> None:
    """Print JSON on one line."""
    sys.stdout.write(jsons.dumps(data) + "\n")
    sys.stdout.flush()


def bound_text(bound: int) -> str:
    """Return a bound in words."""
    return f"bound {bound:,}" if bound else "no bound"


def as_dict(statistics: QueueStatistics) -> dict[str, Any]:
    """Return statistics for `--json`. Times are ISO 8601, in UTC."""
    return {
        "name": statistics.name,
        "length": statistics.length,
        "bound": statistics.bound,
        "closed": statistics.closed,
        "paused": statistics.paused,
        "in_flight": statistics.in_flight,
        "producer": _role_dict(statistics.producer),
        "consumer": _role_dict(statistics.consumer),
        "members": [
            {"holder": member.holder, "since": _iso(member.since), "expires": _iso(member.expires)}
            for member in statistics.members
        ],
        "produced_messages": statistics.produced_messages,
        "produced_bytes": statistics.produced_bytes,
        "consumed_messages": statistics.consumed_messages,
        "consumed_bytes": statistics.consumed_bytes,
    }


def with_spark(statistics: QueueStatistics, groups: Iterable[GroupBatches]) -> dict[str, Any]:
    """Return statistics for `--json`, with the groups that have read the queue with Spark, if there are any."""
    spark = [
        {
            "group": group.group,
            "since": None if group.since is None else _iso(datetime.fromtimestamp(group.since, UTC)),
            "batches": group.batches,
            "messages": group.messages,
            "bytes": group.bytes,
            "seconds": group.seconds,
            "read": group.read,
        }
        for group in groups
    ]
    return {**as_dict(statistics), **({"spark": spark} if spark else {})}


def of_the_queue(statistics: Any) -> dict[str, Any]:
    """Return statistics of events or tasks for `--json`, without what they say of the command's own object."""
    return {key: value for key, value in dataclasses.asdict(statistics).items() if key not in OWN}


def kind_of(statistics: Any) -> str:
    """Return the kind of a queue, by its statistics: `AsyncQueue`, `EventQueue` or `TaskQueue`."""
    kind = type(statistics).__name__.removesuffix("Statistics")
    return {"Queue": "AsyncQueue", "Task": "TaskQueue"}.get(kind, kind)


def queue_line(statistics: Any) -> str:
    """Return one line for scripts: name, length, bound and state, separated by tabs."""
    return f"{printable(statistics.name)}\t{statistics.length}\t{statistics.bound}\t{_state_text(statistics)}"


def statistics_lines(statistics: QueueStatistics, groups: Iterable[GroupBatches]) -> list[str]:
    """Return statistics for scripts: one line for each value, with its key, a tab and the value."""
    lines = []
    for key, value in with_spark(statistics, groups).items():
        if key == "spark":
            lines += [
                f"spark_{part}\t{printable(group['group'])}\t{plain(inner)}"
                for group in value
                for part, inner in group.items()
                if part != "group"
            ]
        elif isinstance(value, dict):
            lines += [f"{key}_{part}\t{plain(inner)}" for part, inner in value.items()]
        elif isinstance(value, list):
            lines.append(f"{key}\t{len(value)}")
        else:
            lines.append(f"{key}\t{plain(value)}")
    return lines


def print_statistics(shown: dict[str, Any], watched: Iterable[str] | None, *, as_json: bool) -> None:
    """Print statistics as JSON, or a line for each value; `watched` names the values of a single line instead."""
    if as_json:
        print_json(shown)
    elif watched is not None:
        parts = [f"{key} {plain(shown[key])}" for key in watched]
        sys.stdout.write("  ".join([*parts, "paused"] if shown["paused"] else parts) + "\n")
    else:
        sys.stdout.write("".join(f"{key}\t{plain(value)}\n" for key, value in shown.items()))
    sys.stdout.flush()


def plain(value: object) -> str:
    """Return a value as text for scripts: a dash for None, yes or no, and no control characters."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


class Rates:
    """Messages a second between two looks."""

    def __init__(self) -> None:
        self._last: tuple[float, int, int] | None = None

    def of(self, statistics: QueueStatistics) -> tuple[float, float] | None:
        """Return how many messages a second were put and got since the last call; None at the first call."""
        now = (time.monotonic(), statistics.produced_messages, statistics.consumed_messages)
        last, self._last = self._last, now
        if last is None or now[0] == last[0]:
            return None
        seconds = now[0] - last[0]
        return (now[1] - last[1]) / seconds, (now[2] - last[2]) / seconds


def queues_table(found: Iterable[Any], kinds: bool = False) -> RenderableType:
    """Return a table of queues for people; with `kinds`, of several."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("Queue")
    table.add_column("Items", justify="right")
    table.add_column("Bound", justify="right")
    table.add_column("In flight", justify="right")
    table.add_column("State")
    table.add_column("Producer")
    table.add_column("Consumer")
    if kinds:
        table.add_column("Kind")
    for statistics in found:
        full = statistics.bound and statistics.length >= statistics.bound
        table.add_row(
            Text(printable(statistics.name), style="bold"),
            Text(f"{statistics.length:,}", style="red" if full else ""),
            Text(f"{statistics.bound:,}" if statistics.bound else "none", style="" if statistics.bound else "dim"),
            Text(f"{statistics.in_flight:,}", style="" if statistics.in_flight else "dim"),
            Text(_state_text(statistics), style="yellow" if statistics.closed or statistics.paused else "green"),
            *_roles_short(statistics),
            *([kind_of(statistics)] if kinds else []),
        )
    return table if table.row_count else Text("no queues", style="dim")


def statistics_view(
    statistics: QueueStatistics, rates: tuple[float, float] | None = None, groups: Iterable[GroupBatches] = ()
) -> RenderableType:
    """Return a queue's statistics for people."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Text.assemble(
        (printable(statistics.name), "bold"),
        "  ",
        (_state_text(statistics), "yellow" if statistics.closed or statistics.paused else "green"),
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
    if statistics.members:
        for number, member in enumerate(statistics.members):
            share = RoleStatistics("leased", member.holder, member.since, member.expires)
            grid.add_row("shared by" if number == 0 else "", _role_long(share))
    else:
        grid.add_row("consumer", _role_long(statistics.consumer))
    for number, group in enumerate(groups):
        grid.add_row("" if number else "spark", _group_text(group))
    return Group(head, grid)


def _group_text(group: GroupBatches) -> Text:
    from rich.text import Text

    text = Text(f"{printable(group.group)}: {group.messages:,} items")
    if group.bytes is not None:
        text.append(f", {_size(group.bytes)}")
    text.append(f" in flight in {group.batches:,} batch{'es' * (group.batches != 1)}")
    if group.seconds is not None:
        text.append(f" for {_duration(group.seconds)}", style="dim")
    return text.append(f", {group.read:,} read", style="dim")


def _state_text(statistics: Any) -> str:
    if statistics.paused:
        return "closed, paused" if statistics.closed else "paused"
    return "closed" if statistics.closed else "open"


def _role_dict(role: RoleStatistics) -> dict[str, Any]:
    return {
        "state": role.state,
        "holder": role.holder,
        "since": _iso(role.since),
        "expires": _iso(role.expires),
    }


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="milliseconds")


def _roles_short(statistics: Any) -> tuple[Text, Text]:
    """Return who produces, and who consumes. Events and tasks have no roles, and count their consumers."""
    from rich.text import Text

    if isinstance(statistics, QueueStatistics):
        return _role_short(statistics.producer), _role_short(statistics.consumer, len(statistics.members))
    count = getattr(statistics, "consumers", 0)
    return Text("-", style="dim"), Text(f"{count:,}", style="cyan" if count else "dim")


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
