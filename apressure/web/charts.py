"""Charts of a queue's last minutes: where the lines of an SVG go. No I/O, and no markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from apressure.core.history import Minute

WIDTH: Final = 600
HEIGHT: Final = 120


class Line(NamedTuple):
    """A line of a chart.

    Attributes:
        name: What it is of.
        paths: Its parts, each as the points of a polyline: where nothing is known, there is a gap.
        latest: The last value; None if there is none.
        most: The highest one.
    """

    name: str
    paths: tuple[str, ...]
    latest: int | None
    most: int


class Chart(NamedTuple):
    """A chart.

    Attributes:
        title: What it shows.
        lines: Its lines.
        most: The value at its top.
    """

    title: str
    lines: tuple[Line, ...]
    most: int

    @property
    def text(self) -> str:
        """What it says, for those who do not see it."""
        told = (
            f"{line.name}: {'not known' if line.latest is None else f'{line.latest:,}'} now, at most {line.most:,}"
            for line in self.lines
        )
        return f"{self.title}. {'; '.join(told)}"


_CHARTS: Final = (
    ("Messages", (("waiting", "length"), ("in flight", "in_flight"), ("delayed", "delayed"))),
    ("Messages a minute", (("put", "put"), ("taken", "taken"))),
    ("Age of the next message, in seconds", (("oldest", "oldest"),)),
)


def charts(minutes: Iterable[Minute], now: float, span: int) -> list[Chart]:
    """Return the charts of the last `span` minutes; none without a minute in them."""
    first = int(now) // 60 * 60 - span * 60
    shown = [minute for minute in minutes if minute.time >= first]
    if not shown:
        return []
    return [_chart(title, lines, shown, first, span) for title, lines in _CHARTS]


def _chart(title: str, lines: Sequence[tuple[str, str]], minutes: list[Minute], first: int, span: int) -> Chart:
    values = {name: [(minute.time, getattr(minute, field)) for minute in minutes] for name, field in lines}
    highest = {
        name: max((value for _, value in found if value is not None), default=0) for name, found in values.items()
    }
    most = max(1, *highest.values())
    made = tuple(
        Line(name, _paths(found, first, span, most), found[-1][1], highest[name]) for name, found in values.items()
    )
    return Chart(title, made, most)


def _paths(values: Iterable[tuple[int, int | None]], first: int, span: int, most: int) -> tuple[str, ...]:
    paths: list[list[str]] = []
    before = 0
    for time, value in values:
        if value is None:
            before = 0
            continue
        if time != before + 60:
            paths.append([])
        before = time
        x, y = (time - first) / 60 / span * WIDTH, HEIGHT - value / most * HEIGHT
        paths[-1].append(f"{x:.1f},{y:.1f}")
    # A minute alone is a short line: a point would not be seen.
    return tuple(" ".join(path if len(path) > 1 else [path[0], _right(path[0])]) for path in paths)


def _right(point: str) -> str:
    x, y = point.split(",")
    return f"{float(x) + 2:.1f},{y}"
