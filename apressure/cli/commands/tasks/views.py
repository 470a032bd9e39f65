"""Shows tasks: as JSON and lines for programs, as tables for people."""

from __future__ import annotations

import json as jsons
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from apressure.cli.show import plain, printable
from apressure.tasks import Task, TaskStatistics

if TYPE_CHECKING:
    from rich.console import RenderableType

_TIMES: Final = ("created", "updated", "eta")
_SHOWN: Final = (
    "id", "status", "queue", "parameters", "result", "error", "node", "pid", "created", "updated", "eta", "attempts",
    "progress", "progress_message",
)  # fmt: skip
_COLUMNS: Final = ("id", "status", "attempts", "node", "updated", "progress", "parameters")
_NUMBERS: Final = {
    "name": "Queue", "length": "Pending", "scheduled": "Scheduled", "in_flight": "In flight", "started": "Started",
    "complete": "Complete", "dead_letters": "Failed", "consumers": "Consumers",
}  # fmt: skip
STATISTICS: Final = (*_NUMBERS, "bound", "closed", "paused", "next_expiry")
"""What `stat` shows of a queue."""

_TEXTS: Final = ("parameters", "result")
_LONGEST: Final = 60
"""Characters of parameters and results in a table."""
_STYLES: Final = {
    "scheduled": "blue", "pending": "", "reserved": "yellow", "started": "cyan", "complete": "green", "failed": "red",
}  # fmt: skip


def as_dict(task: Task) -> dict[str, Any]:
    """Return a task for `--json`. Times are ISO 8601, in UTC."""
    shown = {name: _iso(getattr(task, name)) if name in _TIMES else getattr(task, name) for name in _SHOWN}
    return {**shown, "progress": progress_of(task), "progress_message": message_of(task)}


def lines(task: Task) -> list[str]:
    """Return a task for scripts: one line for each value, with its key, a tab and the value."""
    return [f"{name}\t{plain(value if name not in _TEXTS else text(value))}" for name, value in as_dict(task).items()]


def text(value: Any) -> str | None:
    """Return parameters or a result: a string as it is, anything else as JSON."""
    return value if value is None or isinstance(value, str) else jsons.dumps(value, ensure_ascii=False)


def line(task: Task) -> str:
    """Return a task for scripts, on one line: id, status, attempts, node, updated, progress and parameters."""
    return "\t".join(_cells(task))


def table(tasks: Iterable[Task]) -> RenderableType:
    """Return a table of tasks for people."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, header_style="bold", pad_edge=False)
    for column in _COLUMNS:
        made.add_column(column.capitalize(), no_wrap=column == "id")
    for task in tasks:
        cells = [Text(cell) for cell in _cells(task, _LONGEST)]
        cells[1].stylize(_STYLES.get(task.status or "", "magenta"))
        cells[4] = Text(_age(task.updated))
        made.add_row(*cells)
    return made if made.row_count else Text("no tasks", style="dim")


def view(task: Task) -> RenderableType:
    """Return one task for people, with its progress."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    status = task.status or "unknown"
    head = Text.assemble((printable(task.id), "bold"), "  ", (printable(status), _STYLES.get(status, "magenta")))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    for name in _SHOWN[2:]:
        value = progress_of(task) if name == "progress" else getattr(task, name)
        if value is None or name == "progress_message":
            continue
        if name == "progress":
            grid.add_row(name, ProgressBar(total=1.0, completed=value, width=40))
            grid.add_row("", Text(progress_text(task)))
        elif name in _TIMES:
            grid.add_row(name, Text(f"{_iso(value)}  ({_age(value)})"))
        else:
            grid.add_row(name, Text(plain(text(value) if name in _TEXTS else value)))
    return Group(head, grid)


def several(tasks: Iterable[Task]) -> RenderableType:
    """Return tasks for people, one below the other."""
    from rich.console import Group

    return Group(*map(view, tasks))


def progress_of(task: Task) -> float | None:
    """Return how far a task is, from 0 to 1. A complete task is done, whatever it reported last."""
    return 1.0 if task.status == "complete" and task.progress is not None else task.progress


def message_of(task: Task) -> str | None:
    """Return what a task said of its progress; a complete one is past that."""
    return None if task.status == "complete" else task.progress_message


def progress_text(task: Task) -> str:
    """Return how far a task is, in words."""
    if (progress := progress_of(task)) is None:
        return "-"
    return printable(" ".join(filter(None, (f"{progress:.0%}", message_of(task)))))


def statistics_dict(statistics: TaskStatistics) -> dict[str, Any]:
    """Return the numbers of a queue for `--json`."""
    return {name: getattr(statistics, name) for name in STATISTICS}


def queue_line(statistics: TaskStatistics) -> str:
    """Return one line for scripts: the numbers in the order of the table, and the state, separated by tabs."""
    return "\t".join([*(plain(getattr(statistics, name)) for name in _NUMBERS), state(statistics)])


def queues_table(found: Iterable[TaskStatistics]) -> RenderableType:
    """Return a table of queues for people."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, header_style="bold", pad_edge=False)
    for heading in _NUMBERS.values():
        made.add_column(heading, justify="left" if heading == "Queue" else "right")
    made.add_column("State")
    for statistics in found:
        cells = [Text(printable(statistics.name), style="bold")]
        for name, heading in list(_NUMBERS.items())[1:]:
            value = getattr(statistics, name)
            cells.append(Text(f"{value:,}", style=_STYLES.get(heading.lower(), "") if value else "dim"))
        made.add_row(*cells, Text(state(statistics), style="green" if state(statistics) == "open" else "yellow"))
    return made if made.row_count else Text("no queues", style="dim")


def state(statistics: TaskStatistics) -> str:
    """Return whether a queue is open, closed or paused, in words."""
    words = [word for word in ("closed", "paused") if getattr(statistics, word)]
    return ", ".join(words) or "open"


def _cells(task: Task, longest: int | None = None) -> tuple[str, ...]:
    parameters = text(task.parameters) or ""
    if longest is not None and len(parameters) > longest:
        parameters = parameters[:longest] + "…"
    return (
        plain(task.id),
        plain(task.status),
        plain(task.attempts),
        plain(task.node),
        plain(_iso(task.updated)),
        progress_text(task),
        plain(parameters),
    )


def _iso(moment: float | None) -> str | None:
    try:
        return None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
    except (OSError, OverflowError, ValueError):  # another program has written it
        return None


def _age(moment: float | None) -> str:
    if moment is None:
        return "-"
    seconds = round(time.time() - moment)
    ahead, seconds = seconds < 0, abs(seconds)
    if seconds < 60:
        amount = f"{seconds} s"
    elif seconds < 3600:
        amount = f"{seconds // 60} min"
    elif seconds < 86400:
        amount = f"{seconds // 3600} h {seconds % 3600 // 60} min"
    else:
        amount = f"{seconds // 86400} days"
    return f"in {amount}" if ahead else f"{amount} ago"
