"""Write the results of a run as the tables of docs/internals/benchmarks/README.md.

Usage: python -m tests.benchmarks.table RESULTS.json
"""

from __future__ import annotations

import argparse
import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import RATE, Figure


def main() -> None:
    """Parse the arguments, read, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.table", description=__doc__)
    parser.add_argument("results", type=Path)
    print(tables(json.loads(parser.parse_args().results.read_text())))


def tables(results: dict[str, Any]) -> str:
    """Return both tables (code by hand, other libraries), or the single table that the results name."""
    figures = [Figure(**figure) for figure in results["figures"]]
    if "title" in results:
        return table(results["title"], figures)
    libraries = [figure for figure in figures if figure.versions]
    code = [figure for figure in figures if not figure.versions]
    theirs = table("ours / theirs: enqueue · consume", libraries, operator.attrgetter("other"))
    return f"{table('ours / by hand', code)}\n\n{theirs}"


def table(title: str, figures: list[Figure], name: Callable[[Figure], str] | None = None) -> str:
    """Return a table with a row for each comparison and a column for each server: ratios on asyncio, then uvloop.

    With `name`, a row has all figures for which that returns the same.
    """
    servers = list(dict.fromkeys(figure.server for figure in figures if figure.server))
    rows: dict[str, dict[str, list[Figure]]] = {}
    for figure in figures:
        rows.setdefault((name or name_of)(figure), {}).setdefault(figure.server, []).append(figure)
    lines = [f"| {title} | goal | {' | '.join(servers)} |", f"| --- | --- |{' --- |' * len(servers)}"]
    for what, row in rows.items():
        some = next(iter(row.values()))
        goals = " · ".join(dict.fromkeys(f"{one.goal:g}" for one in some))
        goal = f"{'≥' if some[0].unit == RATE else '≤'} {goals}"
        cells = [" · ".join(short(one) for one in row.get(server, row.get("", []))) for server in servers]
        lines.append(f"| {what} | {goal} | {' | '.join(cells)} |")
    return "\n".join(lines)


def name_of(figure: Figure) -> str:
    """Return the name of a comparison, with its percentile if it has one."""
    return f"{figure.case} / {figure.other}{', ' + figure.unit[2:] if figure.unit.startswith('s ') else ''}"


def short(figure: Figure) -> str:
    """Return a ratio with three digits, in bold if it missed its goal."""
    number = f"{figure.ratio:.0f}" if figure.ratio >= 100 else f"{figure.ratio:.3g}"
    return number if figure.reached else f"**{number}**"


if __name__ == "__main__":
    main()
