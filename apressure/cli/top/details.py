"""What the pages of `apressure top` show of one queue: its details, its dead letters, its workers; and the help."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from apressure import DeadLetter
from apressure.cli import figures
from apressure.cli.commands import dead
from apressure.cli.show import printable
from apressure.cli.top.cells import COLORS, rate, server_of, sparkline
from apressure.core.workers import WorkerStatistics
from apressure.monitor.finding import Finder
from apressure.monitor.monitor import Seen
from apressure.telemetry.states import clock, duration

_SAMPLE: Final = 5
"""Dead letters on the page of a queue."""

_MOST: Final = 100
"""Dead letters on a page of their own."""

_COMMANDS: Final = (
    ("pause", "stop its consumers"), ("resume", "let them go on"), ("hold {} 60", "hand out nothing for a minute"),
    ("limit {} --rate 100/60", "hand out at most 100 in 60 s"), ("requeue", "move dead letters back"),
    ("purge", "delete what waits"), ("close", "accept no more items"),
)  # fmt: skip
_LOOKING: Final = (
    ("peek", "the next item"), ("dead", "dead letters, and why"), ("doctor", "what is wrong with it"),
)  # fmt: skip

_KEYS: Final = (
    ("↑ ↓ PgUp PgDn Home End", "choose a queue"), ("Enter", "its details"), ("w", "its workers"),
    ("d", "its dead letters"), ("s a t l n", "sort by state, age, messages a second, length, name"),
    ("/", "filter by address or state; Esc ends that"), ("Esc", "back"), ("q", "quit"),
)  # fmt: skip
_CHANGES: Final = (
    ("p", "pause the queue, or resume it"), ("r", "requeue its dead letters"),
    ("x", "on the page of workers: drain a worker"), ("k", "there, too: show where its longest handler is"),
)  # fmt: skip


async def queue_page(seen: Seen, lengths: Sequence[int], finder: Finder, *, read_only: bool) -> RenderableType:
    """Return the details of a queue."""
    sample, parts = seen.sample, list[RenderableType]()
    if sample.statistics is None:
        parts.append(Text(printable(str(seen.address)), "bold"))
    else:
        parts.append(figures.statistics_view((seen.address, sample.statistics)))
    grid = _grid()
    for state in sample.states:
        grid.add_row("state", Text(printable(state.text), COLORS[state.severity]))
    if server := server_of(seen):
        grid.add_row("server", Text(server))
    speed = f"put {rate(sample.speed.put)}/s, taken {rate(sample.speed.taken)}/s"
    grid.add_row("speed", Text(speed))
    if sample.oldest:
        grid.add_row("oldest", Text(f"has waited for {duration(sample.oldest)}"))
    if sample.drain is not None and 0 < sample.drain < float("inf"):
        grid.add_row("empty in", Text(duration(sample.drain)))
    grid.add_row("trend", Text(f"{sparkline(lengths)}  the last minutes, at most {max(lengths, default=0):,}"))
    parts.append(grid)
    if workers := getattr(sample.statistics, "workers", ()):
        parts += [_title("Workers"), workers_table(workers)]
    if sample.schedules:
        parts += [_title("Schedules"), _schedules(sample.schedules)]
    letters = [] if sample.statistics is None else await _letters(seen, finder, _SAMPLE)
    if letters:
        parts += [_title(f"Dead letters, the {len(letters)} oldest"), _rows(dead.COLUMNS, map(dead.cells, letters))]
    return Group(*parts, _title("Commands"), _commands(seen, read_only=read_only))


async def letters_page(seen: Seen, finder: Finder) -> RenderableType:
    """Return the dead letters of a queue."""
    letters = await _letters(seen, finder, _MOST)
    if not letters:
        return Text(printable(f"{dead.origin_of(seen.address)} has no dead letters"))
    more = Text(f"These are the {_MOST} oldest.", "dim") if len(letters) == _MOST else Text()
    return Group(_rows(dead.COLUMNS, map(dead.cells, letters)), more)


def workers_table(workers: Iterable[WorkerStatistics]) -> Table:
    """Return a table of workers."""
    titles = (
        "worker", "kind", "handler", "host", "pid", "for", "in hand", "oldest", "handled", "failed", "state"
    )  # fmt: skip
    return _rows(titles, map(worker_cells, workers))


def worker_cells(worker: WorkerStatistics) -> tuple[str, ...]:
    """Return what a table says of a worker."""
    most = f"/{worker.concurrency:,}" if worker.concurrency else ""
    return (
        printable(worker.id), worker.kind, printable(worker.handler) or "-", printable(worker.host), str(worker.pid),
        duration((datetime.now(UTC) - worker.since).total_seconds()), f"{worker.in_hand:,}{most}",
        "-" if worker.oldest is None else duration(worker.oldest), f"{worker.handled:,}", f"{worker.failed:,}",
        "drains" if worker.draining else "works",
    )  # fmt: skip


def worker_text(worker: WorkerStatistics) -> str:
    """Return what the page of workers says of one: its cells, and its stack if it tells that."""
    return "\n    ".join(["  ".join(worker_cells(worker)), *map(printable, worker.stack or ())])


def help_page(*, read_only: bool) -> RenderableType:
    """Return the keys."""
    grid = _grid()
    for keys, meaning in (*_KEYS, *(() if read_only else _CHANGES)):
        grid.add_row(keys, Text(meaning))
    columns = (
        ("Fill", "waiting and delayed items, as a part of the bound"),
        ("Put/s, Taken/s", "of the last 10 s; - where the server does not count them"),
        ("Oldest", "how long the next item has waited, as far as was seen"),
        ("Cons/workers", "consumers, and registered workers"),
        ("Trend", "the number of waiting items in the last 5 minutes"),
    )
    meanings = _grid()
    for title, meaning in columns:
        meanings.add_row(title, Text(meaning))
    return Group(grid, _title("Columns"), meanings)


async def _letters(seen: Seen, finder: Finder, most: int) -> list[DeadLetter[bytes]]:
    async with finder.open(dead.origin_of(seen.address)) as queue:
        letters: list[DeadLetter[bytes]] = await queue.dead_letters(most)
        return letters


def _schedules(schedules: Iterable[Any]) -> Table:
    now = time.time()
    rows = (
        (
            printable(one.name), printable(f"{one.when}"), printable(one.timezone),
            "paused" if one.paused else "-" if one.next is None else clock(one.next, now),
            "-" if one.last is None else clock(one.last, now), f"{one.count:,}",
        )
        for one in schedules
    )  # fmt: skip
    return _rows(("name", "when", "timezone", "next", "last", "count"), rows)


def _commands(seen: Seen, *, read_only: bool) -> Table:
    """Return what to type, to look closer, and to change something."""
    address = shlex.quote(printable(str(seen.address)))
    grid = _grid()
    for command, meaning in (*_LOOKING, *(() if read_only else _COMMANDS)):
        typed = command.format(address) if "{}" in command else f"{command} {address}"
        grid.add_row(Text(f"apressure {typed}", "cyan"), Text(meaning))
    if seen.address.url is not None:
        grid.add_row(Text("… --url URL", "cyan"), Text("if APRESSURE_URL names another server"))
    return grid


def _rows(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in titles:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _title(text: str) -> Text:
    return Text(f"\n{text}", "bold")


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    return grid
