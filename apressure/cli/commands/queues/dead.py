"""`apressure dead`: shows dead letters, and why each is one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from apressure import AsyncQueue, DeadLetter
from apressure.cli.options import Common, Name
from apressure.cli.show import print_json, printable, visible
from apressure.dead_letters import MOST_BYTES
from apressure.pressure.engine.dead_letters import SUFFIX

_SHOWN: Final = 40
"""Bytes of a message in the table."""

Source = Annotated[
    str | None,
    typer.Option("--from", metavar="DEAD", help="The name of the dead-letter queue.", show_default="NAME:dead"),
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Show the N oldest ones.")]


async def dead(
    common: Common,
    name: Name,
    source: Source = None,
    limit: Limit = 100,
) -> None:
    """Show dead letters and why each is one, the oldest first. Nothing is moved.

    The columns are the id (for `requeue --id`), the time, the attempts, the error, and the start of the item.
    """
    async with common.queue(name) as queue:
        letters = await queue.dead_letters(limit, source)
        if not letters and not await queue.exists():  # perhaps the name is wrong
            await AsyncQueue(name + SUFFIX if source is None else source, client=queue.client).qsize()
    show(letters, as_json=common.json)


def show(letters: Sequence[DeadLetter[bytes]], *, as_json: bool) -> None:
    """Print dead letters: as JSON, as a table for people, or as lines with tabs between the columns."""
    if as_json:
        print_json([as_dict(letter) for letter in letters])
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*("id", "when", "attempts", "error", "item"), box=None, pad_edge=False)
        for letter in letters:
            table.add_row(*map(Text, _cells(letter)))  # a Text is never read as markup
        Console().print(table)
    else:
        sys.stdout.write("".join("\t".join(_cells(letter)) + "\n" for letter in letters))
        sys.stdout.flush()


def as_dict(letter: DeadLetter[bytes]) -> dict[str, Any]:
    """Return a dead letter for `--json`. Bytes that are no text are escaped."""
    error = letter.error
    return {
        "id": letter.id,
        "when": _time(letter),
        "attempts": letter.attempts,
        "error": None if error is None else {"type": error.type, "message": error.message, "attempt": error.attempt},
        "size": len(letter.raw),
        "start": letter.raw[:MOST_BYTES].decode(errors="backslashreplace"),
    }


def _cells(letter: DeadLetter[bytes]) -> tuple[str, ...]:
    start = visible(letter.raw[:_SHOWN]).decode().replace("\t", " ")
    return (
        letter.id,
        _time(letter) or "-",
        "-" if letter.attempts is None else str(letter.attempts),
        printable(letter.reason),
        start + ("…" if len(letter.raw) > _SHOWN else ""),
    )


def _time(letter: DeadLetter[bytes]) -> str | None:
    if letter.when is None:
        return None
    return datetime.fromtimestamp(letter.when, UTC).isoformat(timespec="milliseconds")
