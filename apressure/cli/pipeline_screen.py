"""What the pipeline looks like: live on a terminal, line by line elsewhere, and the tables at its end."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text


@dataclasses.dataclass(frozen=True)
class Picture:
    """The pipeline at one moment.

    Attributes:
        total: How many rows there are.
        bound: How many the queue takes.
        fed: How many the feeder has put since ever.
        done: How many Spark has worked off since ever.
        fed_rate: Rows a second into the queue.
        done_rate: Rows a second out of Spark.
        depth: Rows in the queue.
        batch: The number of Spark's latest batch, or None.
        batch_seconds: How long it took.
        watermark: The time that the flights have reached, or None.
        feeder: What the feeder does, in words.
        spark: What Spark does, in words.
    """

    total: int
    bound: int
    fed: int = 0
    done: int = 0
    fed_rate: float = 0.0
    done_rate: float = 0.0
    depth: int = 0
    batch: int | None = None
    batch_seconds: float = 0.0
    watermark: str | None = None
    feeder: str = "starts"
    spark: str = "starts"

    @property
    def lag(self) -> int:
        """Rows that were put and are not worked off."""
        return max(0, self.fed - self.done)


class Full:
    """For how long, and how deep, the queue was full.

    Attributes:
        seconds: For how many seconds it was full.
        peak: The most rows that were seen in it.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._looked = time.monotonic()
        self.seconds = 0.0
        self.peak = 0

    def of(self, depth: int) -> bool:
        """Return whether it is full, now that it is so deep."""
        now = time.monotonic()
        full = depth >= self._bound
        self.seconds += (now - self._looked) if full else 0.0
        self._looked = now
        self.peak = max(self.peak, depth)
        return full


def line(picture: Picture) -> str:
    """Return the picture as one line."""
    batch = "" if picture.batch is None else f", batch {picture.batch} in {picture.batch_seconds:.1f} s"
    return (
        f"{picture.done:,} of {picture.total:,} rows ({100 * picture.done // picture.total}%), "
        f"{picture.done_rate:,.0f} rows/s, queue {picture.depth:,}/{picture.bound:,}, lag {picture.lag:,}{batch}, "
        f"feeder {picture.feeder}, Spark {picture.spark}"
    )


def view(picture: Picture) -> RenderableType:
    """Return the picture for a terminal."""
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, min_width=38)
    full = picture.depth >= picture.bound
    grid.add_row("feeder", _bar(picture.total, picture.fed), _rows(picture.fed, picture.total, picture.fed_rate))
    colour = "red" if full else "yellow" if picture.depth > picture.bound / 2 else "green"
    grid.add_row("queue", _bar(picture.bound, picture.depth, colour), _rows(picture.depth, picture.bound, 0))
    grid.add_row("Spark", _bar(picture.total, picture.done), _rows(picture.done, picture.total, picture.done_rate))
    facts = Text.assemble(("lag ", "bold"), f"{picture.lag:,} rows")
    if picture.batch is not None:
        facts.append_text(Text.assemble(("   batch ", "bold"), f"{picture.batch} in {picture.batch_seconds:.1f} s"))
    if picture.watermark:
        facts.append_text(Text.assemble(("   watermark ", "bold"), picture.watermark[:16].replace("T", " ")))
    does = Text.assemble(
        ("feeder ", "bold"),
        (picture.feeder, "yellow" if full else "green"),
        ("   Spark ", "bold"),
        (picture.spark, "green"),
    )
    return Group(grid, facts, does)


def report(result: dict[str, Any], names: dict[str, str]) -> RenderableType:
    """Return the result for people: the delays by carrier, the figures, the files, and the proof."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("Carrier", no_wrap=True)
    for heading in ("Flights", "Cancelled", "Mean delay"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in sorted(result["carriers"], key=lambda row: -(row["mean_delay"] or 0.0)):
        table.add_row(
            names.get(row["carrier"], row["carrier"]),
            f"{row['flights']:,}",
            f"{row['flights'] - row['departed']:,}",
            "-" if row["mean_delay"] is None else f"{row['mean_delay']:.1f} min",
        )
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    runs = "" if result["runs"] == 1 else f", the last of {result['runs']} runs"
    grid.add_row("rate", f"{result['rows_per_second']:,} rows/s for {result['seconds']:.1f} s{runs}")
    grid.add_row("batches", f"{result['batches']:,}")
    grid.add_row(
        "queue",
        f"at most {result['peak_depth']:,} of {result['bound']:,} rows deep; "
        f"full, with the feeder waiting for Spark, for {result['queue_full_seconds']:.1f} s",
    )
    grid.add_row("server", result["server"])
    grid.add_row("files", result["files"])
    grid.add_row("chart", result["chart"])
    mark = Text("✔" if result["exact"] else "✘", style="bold green" if result["exact"] else "bold red")
    said = f"{result['rows_in']:,} rows in, {result['rows_out']:,} rows out, in {result['windows']:,} windows, "
    doubled = "none of them twice" if not result["doubled"] else f"{result['doubled']:,} of them twice"
    return Group(table, grid, Text(), Text.assemble(mark, "  ", said, doubled))


def _bar(total: int, completed: int, colour: str = "cyan") -> ProgressBar:
    return ProgressBar(total=total, completed=min(completed, total), complete_style=colour, finished_style=colour)


def _rows(count: int, total: int, rate: float) -> Text:
    return Text.assemble((f"{count:,}", "bold"), f" of {total:,}", (f"  {rate:,.0f}/s" if rate >= 1 else "", "cyan"))
