"""Prints what commands have to say, and makes text safe to print."""

from __future__ import annotations

import asyncio
import json as jsons
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from apressure.logs import escaped

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN: Final = 40
"""Bytes of an item in a table."""


printable: Final = escaped
"""Makes control characters visible: names of queues and holders may contain them."""


def visible(data: bytes) -> bytes:
    """Return text without anything that a terminal would obey: control characters are made visible, except tabs."""
    text = data.decode(errors="backslashreplace")
    return "\t".join(map(printable, text.split("\t"))).encode()


def start_of(data: bytes, cut: bool = False) -> str:
    """Return the start of an item for a table; `cut`: there is more behind `data`."""
    start = visible(data[:SHOWN]).decode().replace("\t", " ")
    return start + ("…" if cut or len(data) > SHOWN else "")


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


def plain(value: object) -> str:
    """Return a value as text for scripts: a dash for None, yes or no, and no control characters."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[str]], whole: Sequence[str] = ()) -> None:
    """Print rows of texts: a table for people, or lines with tabs between the columns.

    On a narrow terminal, other columns than those in `whole` become narrower.
    """
    if not sys.stdout.isatty():
        sys.stdout.write("".join("\t".join(row) + "\n" for row in rows))
        sys.stdout.flush()
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", min_width=25 if column in whole else None)
    for row in rows:
        table.add_row(*map(Text, row))  # a Text is never read as markup
    Console().print(table)


async def show_view(view: Callable[[], Awaitable[RenderableType]], seconds: float | None) -> None:
    """Show a view on a terminal once, or again after so many seconds, until the command is interrupted."""
    from rich.console import Console
    from rich.live import Live

    if seconds is None:
        Console().print(await view())
        return
    with Live(await view(), auto_refresh=False) as live:
        while True:
            await asyncio.sleep(seconds)
            live.update(await view(), refresh=True)
