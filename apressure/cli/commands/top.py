"""`apressure top`: shows all queues, live."""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated, Any, Final

import typer

from apressure.cli.exits import UsageError
from apressure.cli.options import Common, option
from apressure.cli.top.view import SORTS, Sort, View
from apressure.exceptions import MissingExtraError
from apressure.monitor.monitor import Monitor

_PATIENCE: Final = 60.0
"""Seconds for a look at all queues, with --once."""


def _sort_of(text: str) -> Sort:
    """Read `--sort`."""
    for sort in SORTS:
        if sort == text:
            return sort
    raise typer.BadParameter(f"{text!r} is none of {', '.join(SORTS)}")


async def top(
    common: Common,
    queues: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE",
            help="The queues, or patterns such as 'orders*' or 'files:spool/*'. By default all on the server.",
        ),
    ] = None,
    once: Annotated[bool, option("once", "Print one table, and end.")] = False,
    interval: Annotated[
        float, option("interval", "Time between two looks at a queue.", "SECONDS", min=0.05, max=3600)
    ] = 2.0,
    sort: Annotated[Any, option("sort", f"The order at first: {', '.join(SORTS)}.", "NAME", parser=_sort_of)] = "state",
    read_only: Annotated[bool, option("read-only", "Offer nothing that changes a queue.")] = False,
) -> None:
    """Show queues of every kind as they are now: what waits, how fast, for how long, and what needs somebody.

    The key `?` lists the keys. What changes a queue asks first.
    """
    monitor = Monitor(
        *(queues or ()), url=common.url, prefix=common.prefix, interval=interval,
        timeout=_PATIENCE if once else 5.0, history=not (once or read_only),
    )  # fmt: skip
    view = View(monitor, sort)
    logging.getLogger("apressure").setLevel(logging.CRITICAL)  # what is wrong is in the view
    if once:
        from apressure.cli.top import once as printed

        async with monitor:
            code = await printed.run(view, interval, as_json=common.json)
    else:
        _check_terminal(as_json=common.json)
        app = _app()
        async with monitor:
            code = await app.run(view, read_only=read_only)
    if code:
        raise typer.Exit(code)


def _check_terminal(*, as_json: bool) -> None:
    """Raise if there is no terminal to draw on."""
    if as_json:
        raise UsageError("--json needs --once: a live view is no JSON. Give both options")
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise UsageError("a live view needs a terminal. Use --once, which prints one table")
    if os.environ.get("TERM", "") in ("", "dumb", "unknown"):
        raise UsageError(
            "a live view needs a terminal that can move its cursor, and TERM names none. Use --once, which prints one "
            "table"
        )


def _app() -> Any:
    try:
        from apressure.cli.top import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise MissingExtraError(
            "a live view needs the package textual. Run pip install 'apressure[top]', or use --once", extra="top"
        ) from error
    return app
