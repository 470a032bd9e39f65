"""How the demo and the pipeline show what they do: the only module here that draws. Texts are rich's markup."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich import box
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

_LINES_EVERY: Final = 2.0
"""Seconds between two lines of progress where there is no terminal."""
_FACTS: Final = {
    "rate": "{rows_per_second:,} rows/s for {seconds:.1f} s",
    "queue": "at most {peak_depth:,} of {bound:,} rows deep; the feeder waited {queue_full_seconds:.1f} s for room",
    "server": "{server}",
}


class Screen(Progress):
    """How rows flow: bars that change in place on a terminal, elsewhere a line on standard error every two seconds."""

    def __init__(self, terminal: bool, reader: str) -> None:
        self._reader = reader
        self._details = self._line = ""
        self._next = 0.0
        super().__init__(
            TextColumn("[bold]{task.description}"),
            BarColumn(None, complete_style="cyan", finished_style="cyan"),
            TextColumn("[bold]{task.completed:,}[/] of {task.total:,}"),
            TextColumn("[cyan]{task.fields[rate]}"),
            TextColumn("[{task.fields[style]}]{task.fields[state]}"),
            console=Console(quiet=not terminal),
            auto_refresh=False,
            speed_estimate_period=5,
            disable=not terminal,
            expand=True,
        )

    def begin(self, rows: int, bound: int) -> None:
        """Show that feeder, queue and reader are there. To be called once, before `show`."""
        for name, total in (("feeder", rows), ("queue", bound), (self._reader, rows)):
            self.add_task(name, total=total, rate="", state="", style="green")
        self._say(f"{rows:,} rows over a queue of {bound:,}; {self._reader} starts")

    def show(self, fed: int, puts: str, depth: int, done: int, reads: str, details: str) -> None:
        """Show how many rows the feeder and the reader are done with, what they do, how deep the queue is, and more."""
        self._details = details
        for task, rows, state in zip(self.tasks, (fed, depth, done), (puts, "", reads), strict=True):
            self.update(task.id, completed=rows, state=state, style="yellow" if state.startswith("waits") else "green")
            task.fields["rate"] = f"{task.speed:,.0f} rows/s" if state and (task.speed or 0) >= 1 else ""
        self.refresh()
        if reads != "starts" and (reads == "is done" or time.monotonic() >= self._next):
            _, queue, reader = self.tasks
            share = f"{done:,} of {reader.total:,} rows ({reader.percentage:.0f}%)"
            states = (f"queue {depth:,}/{queue.total:,}", details, f"feeder {puts}", f"{self._reader} {reads}")
            self._say(", ".join(filter(None, (share, reader.fields["rate"], *states))))

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bars, and the details below them."""
        return (*super().get_renderables(), Text(self._details))

    def _say(self, line: str) -> None:
        if self.disable and line != self._line:
            self._next, self._line = time.monotonic() + _LINES_EVERY, line
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


def print_report(
    result: Mapping[str, Any],
    title: str,
    columns: Mapping[str, str],
    proof: Iterable[tuple[bool, str]],
    more_facts: Mapping[str, str] | None = None,
) -> None:
    """Print a table of the carriers (`columns` maps headings to keys), facts of the result, and the proof's lines."""
    console = Console()
    console.print(Rule(title, align="left"))
    padding = (0, 0 if console.width < 100 else 1)
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=padding)
    for heading in columns:
        table.add_column(heading, justify="right" if table.columns else "left", no_wrap=True)
    for row in result["carriers"]:
        table.add_row(*(_cell(row[key]) for key in columns.values()))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name, fact in {**_FACTS, **(more_facts or {})}.items():
        facts.add_row(name, Text(fact.format_map(result)))
    marks = {True: ("✔", "bold green"), False: ("✘", "bold red")}
    console.print(table, facts, Text(), *(Text.assemble(marks[good], f"  {text}") for good, text in proof), sep="\n")


def _cell(value: Any) -> str:
    return "-" if value is None else format(value, {float: ",.1f", int: ","}.get(type(value), ""))
