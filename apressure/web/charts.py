"""Charts of a queue's last minutes: where the lines of an SVG go. No I/O, and no markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from apressure.core.history import Minute

WIDTH: Final = 600
HEIGHT: Final = 120

_POINTS: Final = 360
"""Points of a line, at most: more cannot be told apart, and a day of minutes has four times as many."""


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
    ("Failed attempts a minute", (("failed", "failed"),)),
    ("Time for an attempt, in milliseconds", (("mean", "duration"),)),
)


def charts(minutes: Iterable[Minute], now: float, span: int) -> list[Chart]:
    """Return the charts of the last `span` minutes of which something is known.

    Of a long time, a point is the highest value of some minutes.
    """
    together = max(1, span // _POINTS) * 60
    scale = _Scale(int(now) // together * together - span * 60, span * 60, together)
    shown = [minute for minute in minutes if minute.time >= scale.first]
    return [
        _chart(title, lines, shown, scale)
        for title, lines in _CHARTS
        if any(getattr(minute, field) is not None for minute in shown for _, field in lines)
    ]


class _Scale(NamedTuple):
    """The times of a chart: when it begins, how long it is, and for how long a point counts, in seconds."""

    first: int
    length: int
    point: int


def _chart(title: str, lines: Sequence[tuple[str, str]], minutes: Sequence[Minute], scale: _Scale) -> Chart:
    values = {name: _highest([(one.time, getattr(one, field)) for one in minutes], scale) for name, field in lines}
    highest = {name: max(found.values(), default=0) for name, found in values.items()}
    most = max(1, *highest.values())
    made = tuple(
        Line(name, _paths(values[name], scale, most), getattr(minutes[-1], field), highest[name])
        for name, field in lines
    )
    return Chart(title, made, most)


def _highest(values: Iterable[tuple[int, int | None]], scale: _Scale) -> dict[int, int]:
    """Return the highest value of each point, by when it begins."""
    found: dict[int, int] = {}
    for time, value in values:
        if value is not None:
            begins = time - (time - scale.first) % scale.point
            found[begins] = max(value, found.get(begins, 0))
    return found


def _paths(values: Mapping[int, int], scale: _Scale, most: int) -> tuple[str, ...]:
    paths: list[list[str]] = []
    before = 0
    for time, value in values.items():
        if time != before + scale.point:
            paths.append([])
        before = time
        x, y = (time - scale.first) / scale.length * WIDTH, HEIGHT - value / most * HEIGHT
        paths[-1].append(f"{x:.1f},{y:.1f}")
    # A point alone is a short line: a dot would not be seen.
    return tuple(" ".join(path if len(path) > 1 else [path[0], _right(path[0])]) for path in paths)


def _right(point: str) -> str:
    x, y = point.split(",")
    return f"{float(x) + 2:.1f},{y}"
