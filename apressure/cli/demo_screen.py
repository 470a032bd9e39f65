"""What the demo looks like: live on a terminal, line by line elsewhere, and the tables at its end."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Generic, Literal, Protocol, Self, TypeVar

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

WorkerState = Literal["starting", "working", "waiting", "done"]

_LINES_EVERY: Final = 2.0
"""Seconds between two lines of progress where there is no terminal."""


@dataclasses.dataclass(frozen=True)
class Picture:
    """The demo at one moment.

    Attributes:
        total: How many rows there are.
        sent: How many the feeder has put.
        received: How many the consumer has taken.
        rate: How many rows a second arrive.
        seconds: How long it has been running.
        bound: How many rows the queue takes.
        depth: How many are in it.
        in_flight: How many the consumer has received and not acknowledged.
        feeder: What the feeder does.
        consumer: What the consumer does.
    """

    total: int
    bound: int
    sent: int = 0
    received: int = 0
    rate: float = 0.0
    seconds: float = 0.0
    depth: int = 0
    in_flight: int = 0
    feeder: WorkerState = "starting"
    consumer: WorkerState = "starting"


P = TypeVar("P")
"""What is shown: the demo's picture, or the pipeline's."""
P_contra = TypeVar("P_contra", contravariant=True)


class Screen(Protocol[P_contra]):
    """Where pictures are shown."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def show(self, picture: P_contra) -> None:
        """Show what it looks like at this moment."""


class LiveScreen(Generic[P]):
    """A picture that changes in place.

    Args:
        console: Where.
        view: What a picture looks like.
    """

    def __init__(self, console: Console, view: Callable[[P], RenderableType]) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._view = view

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, picture: P) -> None:
        """Show what it looks like at this moment."""
        self._live.update(self._view(picture), refresh=True)


class LineScreen(Generic[P]):
    """A line on standard error, now and then.

    Args:
        line: What a picture looks like.
    """

    def __init__(self, line: Callable[[P], str]) -> None:
        self._next = 0.0
        self._line = line

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def show(self, picture: P) -> None:
        """Show what it looks like at this moment, if it is time to."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _LINES_EVERY
        sys.stderr.write(self._line(picture) + "\n")
        sys.stderr.flush()


class Rate:
    """Rows a second over the last two seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def of(self, rows: int) -> float:
        """Return the rate, now that so many rows have come."""
        now = time.monotonic()
        self._points.append((now, rows))
        while len(self._points) > 2 and now - self._points[1][0] > 2:
            self._points.popleft()
        begin, first = self._points[0]
        return (rows - first) / (now - begin) if now - begin > 0.2 else 0.0


class Waiting:
    """Whether a worker mostly waits: over the last second, since from one moment to the next it flickers."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque()

    def of(self, waited: float) -> bool:
        """Return it, now that the worker has waited for so many seconds in all."""
        now = time.monotonic()
        self._points.append((now, waited))
        while len(self._points) > 2 and now - self._points[1][0] > 1:
            self._points.popleft()
        begin, first = self._points[0]
        return now > begin and (waited - first) / (now - begin) > 0.5


def who_waits(picture: Picture) -> tuple[str, str]:
    """Return what feeder and consumer do, in words."""
    words = {"starting": "starts", "working": "works", "done": "is done"}
    feeder = words.get(picture.feeder, "waits: the queue is full")
    consumer = words.get(picture.consumer, "waits: the queue is empty")
    return f"feeder {feeder}", f"consumer {consumer}"


def line(picture: Picture) -> str:
    """Return the picture as one line."""
    percent = 100 * picture.received // picture.total
    feeder, consumer = who_waits(picture)
    return (
        f"{picture.received:,} of {picture.total:,} rows ({percent}%), {picture.rate:,.0f} rows/s, "
        f"queue {picture.depth:,}/{picture.bound:,}, {feeder}, {consumer}"
    )


def view(picture: Picture) -> RenderableType:
    """Return the picture for a terminal."""
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, min_width=36)
    grid.add_row(
        "rows",
        ProgressBar(total=picture.total, completed=picture.received),
        Text.assemble(
            (f"{picture.received:,}", "bold"),
            f" of {picture.total:,}",
            (f"  {picture.rate:,.0f}/s" if picture.rate else "", "cyan"),
        ),
    )
    full = picture.depth >= picture.bound
    colour = "red" if full else "yellow" if picture.depth > picture.bound / 2 else "green"
    depth = Text.assemble((f"{picture.depth:,}", "bold"), f" of {picture.bound:,}")
    if picture.in_flight:
        depth.append(f"  {picture.in_flight:,} in flight", style="dim")
    grid.add_row(
        "queue",
        ProgressBar(
            total=picture.bound,
            completed=min(picture.depth, picture.bound),
            complete_style=colour,
            finished_style=colour,
        ),
        depth,
    )
    people = Table.grid(padding=(0, 2))
    people.add_column(style="bold", no_wrap=True)
    people.add_column(no_wrap=True)
    for text, state, count in (
        (who_waits(picture)[0], picture.feeder, f"{picture.sent:,} rows put"),
        (who_waits(picture)[1], picture.consumer, f"{picture.received:,} rows received"),
    ):
        who, _, does = text.partition(" ")
        style = {"waiting": "yellow", "working": "green", "done": "green"}.get(state, "dim")
        people.add_row(who, Text.assemble((does, style), (f"  ({count})", "dim")))
    story = Text.assemble(
        ("feeder", "bold"), " ─▶ queue of ", (f"{picture.bound:,}", "bold"), " ─▶ ", ("consumer", "bold"), style="dim"
    )
    return Group(story, grid, people)


def report(result: dict[str, Any], console: Console) -> RenderableType:
    """Return the result for people: the table of delays, the rates, and the proof."""
    return Group(
        Rule("Delays of flights from New York City in 2013, in minutes", align="left"),
        _delays(result["carriers"], narrow=console.width < 100),
        Text(),
        _figures(result),
        Text(),
        _proof(result),
    )


def _delays(carriers: list[dict[str, Any]], *, narrow: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 0 if narrow else 1))
    table.add_column("Carrier\n", no_wrap=True)
    departure, arrival = ("Dep.", "Arr.") if narrow else ("Departure", "Arrival")
    for heading in (
        "Flights\n",
        "Cancelled\n",
        f"{departure}\nmean",
        "\nmedian",
        f"{arrival}\nmean",
        "\nmedian",
        "Over\n15 min",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in carriers:
        late = row["late_percent"]
        table.add_row(
            Text(row["name"]),
            f"{row['flights']:,}",
            f"{row['cancelled']:,}",
            _minutes(row["departure_delay_mean"]),
            _minutes(row["departure_delay_median"]),
            _minutes(row["arrival_delay_mean"]),
            _minutes(row["arrival_delay_median"]),
            Text("-" if late is None else f"{late:.1f}%", style="red" if late is not None and late > 30 else ""),
        )
    return table


def _figures(result: dict[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column()
    grid.add_row("rate", f"{result['rows_per_second']:,.0f} rows/s for {result['seconds']:.1f} s")
    grid.add_row("queue", f"at most {result['peak_depth']:,} of {result['bound']:,} rows deep")
    grid.add_row(
        "feeder", f"waited {result['feeder_waited_seconds']:.1f} s, {result['feeder_waits']:,} times, for room"
    )
    grid.add_row(
        "consumer", f"waited {result['consumer_waited_seconds']:.1f} s, {result['consumer_waits']:,} times, for rows"
    )
    grid.add_row("server", result["server"])
    return grid


def _proof(result: dict[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column()
    sent, received = result["rows_sent"], result["rows_received"]
    _check(grid, sent == received, f"{sent:,} rows sent, {received:,} rows received")
    in_order = result["in_order"]
    _check(grid, in_order, "every sequence number in its place" if in_order else str(result["first_error"]))
    same = result["sha256_sent"] == result["sha256_received"]
    _check(grid, same, "the same SHA-256 over all rows on both sides" if same else "not the same SHA-256 over all rows")
    grid.add_row("", Text(result["sha256_sent"], style="dim"))
    if not same:
        grid.add_row("", Text(result["sha256_received"], style="dim"))
    return grid


def _check(grid: Table, good: bool, text: str) -> None:
    grid.add_row(Text("✔" if good else "✘", style="bold green" if good else "bold red"), Text(text))


def _minutes(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
