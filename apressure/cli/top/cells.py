"""What the table says of a queue, as text: one cell for each column. No I/O, and nothing that a terminal would obey."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from apressure.cli.show import printable
from apressure.monitor.monitor import Seen
from apressure.telemetry.states import Severity, consumers_of, duration

COLORS: Final = {Severity.GOOD: "green", Severity.NOTE: "cyan", Severity.WARNING: "yellow", Severity.ERROR: "red"}
"""Of states, by how much they matter."""

_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_STEPS: Final = "▁▂▃▄▅▆▇█"
_UNKNOWN: Final = ("-", "dim")
_BAR: Final = 10

Cell = tuple[str, str]
"""A text, and its style."""


class Column(NamedTuple):
    """A column of the table.

    Attributes:
        title: Its title.
        width: Its width; 0 for the rest of the line.
        rank: Where there is no room for all columns, those with the highest numbers are left out.
        right: The cells are aligned to the right.
        cell: What it says of a queue, with the lengths of the last minutes.
    """

    title: str
    width: int
    rank: int
    right: bool
    cell: Callable[[Seen, Sequence[int]], Cell]


def server_of(seen: Seen) -> str:
    """Return where a queue is, without a password; "" for a directory."""
    return printable(seen.server)


def bar(length: int, bound: int, width: int = _BAR) -> str:
    """Return how full a queue is, as a bar."""
    eighths = min(width * 8, -(-length * width * 8 // bound))
    full, rest = divmod(eighths, 8)
    return ("█" * full + _EIGHTHS[rest] * (full < width)).ljust(width)


def sparkline(lengths: Sequence[int]) -> str:
    """Return how a length has changed: a step for each, the last one is now."""
    most = max(lengths, default=0)
    return "".join(_STEPS[-(-length * (len(_STEPS) - 1) // most) if most else 0] for length in lengths)


def rate(value: float | None) -> str:
    """Return messages a second, for people."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"


def _name(seen: Seen, _: Sequence[int]) -> Cell:
    return printable(str(seen.address)), "bold"


def _server(seen: Seen, _: Sequence[int]) -> Cell:
    return server_of(seen), "dim"


def _fill(seen: Seen, _: Sequence[int]) -> Cell:
    statistics = seen.sample.statistics
    bound = getattr(statistics, "bound", 0)
    if not bound:
        return "" if statistics is None else "no bound", "dim"
    there = statistics.length + getattr(statistics, "delayed", 0)
    return bar(there, bound), "red" if there >= bound else "yellow" if there >= 0.8 * bound else "green"


def _count(field: str, shown: str = "") -> Callable[[Seen, Sequence[int]], Cell]:
    def cell(seen: Seen, _: Sequence[int]) -> Cell:
        count = getattr(seen.sample.statistics, field, None)
        return _UNKNOWN if count is None else (f"{count:,}", shown if count else "dim")

    return cell


def _put(seen: Seen, _: Sequence[int]) -> Cell:
    return rate(seen.sample.speed.put), "" if seen.sample.speed.put else "dim"


def _taken(seen: Seen, _: Sequence[int]) -> Cell:
    return rate(seen.sample.speed.taken), "" if seen.sample.speed.taken else "dim"


def _oldest(seen: Seen, _: Sequence[int]) -> Cell:
    oldest = seen.sample.oldest
    return (duration(oldest), "") if oldest else _UNKNOWN


def _consumers(seen: Seen, _: Sequence[int]) -> Cell:
    statistics: Any = seen.sample.statistics
    count = None if statistics is None else consumers_of(statistics)
    workers = len(getattr(statistics, "workers", ()))
    known = "-" if count is None else f"{count:,}"
    return f"{known}/{workers:,}" if workers else known, "" if count or workers else "dim"


def _trend(_: Seen, lengths: Sequence[int]) -> Cell:
    return sparkline(lengths), "cyan"


def _state(seen: Seen, _: Sequence[int]) -> Cell:
    text = "; ".join(state.text for state in seen.sample.states)
    return printable(" ".join(text.split())), COLORS[seen.state.severity]


COLUMNS: Final = (
    Column("Queue", 24, 0, False, _name),
    Column("Server", 22, 4, False, _server),
    Column("Fill", _BAR, 5, False, _fill),
    Column("Waiting", 9, 0, True, _count("length")),
    Column("In flight", 9, 3, True, _count("in_flight")),
    Column("Delayed", 7, 9, True, _count("delayed")),
    Column("Put/s", 7, 6, True, _put),
    Column("Taken/s", 7, 6, True, _taken),
    Column("Oldest", 11, 2, True, _oldest),
    Column("Cons/workers", 12, 7, True, _consumers),
    Column("Trend", 15, 8, False, _trend),
    Column("State", 0, 0, False, _state),
)

_GAP: Final = 2
_LEAST: Final = 24
"""Cells that the last column has at least."""


def fitting(width: int, servers: int, longest: int) -> list[tuple[Column, int]]:
    """Return the columns that fit, each with its width.

    Args:
        width: Of the terminal.
        servers: How many servers there are: with one, its name is not in the table.
        longest: The width of the longest name.
    """
    chosen = [column for column in COLUMNS if column.title != "Server" or servers > 1]

    def rest() -> int:
        return width - sum(column.width + _GAP for column in chosen)

    while rest() < _LEAST and (least := max(chosen, key=lambda column: column.rank)).rank:
        chosen.remove(least)
    left = max(0, rest())
    wider = min(max(0, longest - chosen[0].width), max(0, left - _LEAST))
    sizes = {"Queue": chosen[0].width + wider, "State": left - wider}
    return [(column, sizes.get(column.title, column.width)) for column in chosen]
