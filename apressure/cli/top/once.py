"""`apressure top --once`: one look at all queues, as a table or as JSON."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from apressure.cli import figures
from apressure.cli.exits import Exit, code_of, message_of
from apressure.cli.options import complain
from apressure.cli.show import print_json, printable
from apressure.cli.top.cells import COLUMNS, Column
from apressure.cli.top.view import View
from apressure.exceptions import QueueDoesNotExistError
from apressure.monitor.monitor import Seen

_LEFT_OUT: Final = ("Fill", "Trend")
"""Columns that say nothing at the first look, or nothing that others do not say."""

_FOLDED: Final = ("Queue", "Server", "State")
_ENDLESS: Final = 100_000
"""Cells of a line into a pipe, at most."""


async def run(view: View, seconds: float, *, as_json: bool) -> int:
    """Look twice, print what was seen, and return the exit code. Speeds are those between the two looks.

    Args:
        view: What is shown.
        seconds: The pause between the looks.
        as_json: Print JSON, and no table.
    """
    await view.monitor.look()
    await asyncio.sleep(seconds)
    await view.monitor.reader.sample()
    view.update()
    if as_json:
        print_json([as_dict(seen) for seen in view.rows])
    else:
        _print(view)
    codes = [*map(_complained, view.monitor.errors()), *[await _code(seen) for seen in view.rows]]
    return next((int(code) for code in codes if code), int(Exit.OK))


def as_dict(seen: Seen) -> dict[str, Any]:
    """Return what is known of a queue, for `--json`: what `ls --json` says of it, and what only several looks tell."""
    sample = seen.sample
    if sample.statistics is None:
        told: dict[str, Any] = {"name": seen.queue.name, "address": str(seen.address)}
        told |= {"kind": type(seen.queue).__name__, "error": sample.error or "does not exist"}
    else:
        told = figures.as_dict((seen.address, sample.statistics))
    states = [
        {"name": state.name, "severity": state.severity.name.lower(), "text": state.text, "since": state.since}
        for state in sample.states
    ]
    return {
        **told, "states": states, "oldest": sample.oldest, "put_rate": sample.speed.put,
        "taken_rate": sample.speed.taken,
    }  # fmt: skip


def _print(view: View) -> None:
    """Print a table. Into a pipe, its lines are as long as they have to be."""
    columns = [one for one in COLUMNS if one.title not in _LEFT_OUT and (one.title != "Server" or _several(view))]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        folds = column.title in _FOLDED
        table.add_column(
            column.title, justify="right" if column.right else "left", overflow="fold", no_wrap=not folds,
            min_width=12 if folds else None,
        )  # fmt: skip
    for seen in view.rows:
        table.add_row(*(_text(column, seen) for column in columns))
    console = Console(width=None if sys.stdout.isatty() else _ENDLESS)
    if view.rows or not view.monitor.errors():
        console.print(table if view.rows else Text("no queues", "dim"))


def _several(view: View) -> bool:
    return len(view.servers) > 1


def _text(column: Column, seen: Seen) -> Text:
    text, style = column.cell(seen, ())
    return Text(text, style)


def _complained(error: Exception) -> Exit:
    complain(f"apressure: {message_of(error)}")
    return code_of(error)


async def _code(seen: Seen) -> Exit:
    """Return the exit code for what was seen of a queue. An error is asked for again, since only its text is kept."""
    if not seen.sample.error:
        return Exit.DOES_NOT_EXIST if seen.state.name == "missing" else Exit.OK
    try:
        await seen.queue.statistics()
    except QueueDoesNotExistError:
        return Exit.OK  # it has been deleted meanwhile
    except Exception as error:  # noqa: BLE001 (as for a look)
        complain(f"apressure: {printable(str(seen.address))}: {message_of(error)}")
        return code_of(error)
    return Exit.OK
