"""Write the results of a run as the tables of the README.

Usage: python -m tests.benchmarks.table RESULTS.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import RATE, Figure


def main() -> None:
    """Parse the arguments, read, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.table", description=__doc__)
    parser.add_argument("results", type=Path)
    print(tables(json.loads(parser.parse_args().results.read_text())))


def tables(results: dict[str, Any]) -> str:
    """Both tables: beside code by hand, and beside other libraries."""
    figures = [Figure(**figure) for figure in results["figures"]]
    libraries = [figure for figure in figures if figure.versions]
    code = [figure for figure in figures if not figure.versions]
    return f"{table('ours / by hand', code)}\n\n{table('ours / theirs', libraries)}"


def table(title: str, figures: list[Figure]) -> str:
    """A row for each comparison, a column for each server: the ratio on asyncio, then on uvloop where there is one."""
    servers = list(dict.fromkeys(figure.server for figure in figures if figure.server))
    rows: dict[str, dict[str, list[Figure]]] = {}
    for figure in figures:
        rows.setdefault(name_of(figure), {}).setdefault(figure.server, []).append(figure)
    lines = [f"| {title} | goal | {' | '.join(servers)} |", f"| --- | --- |{' --- |' * len(servers)}"]
    for name, row in rows.items():
        some = next(iter(row.values()))[0]
        goal = f"{'≥' if some.unit == RATE else '≤'} {some.goal:g}"
        cells = [" · ".join(short(one) for one in row.get(server, row.get("", []))) for server in servers]
        lines.append(f"| {name} | {goal} | {' | '.join(cells)} |")
    return "\n".join(lines)


def name_of(figure: Figure) -> str:
    """What is compared, with the percentile where it is one."""
    return f"{figure.case} / {figure.other}{', ' + figure.unit[2:] if figure.unit.startswith('s ') else ''}"


def short(figure: Figure) -> str:
    """A ratio in three figures, in bold where it is not what we want."""
    number = f"{figure.ratio:.0f}" if figure.ratio >= 100 else f"{figure.ratio:.3g}"
    return number if figure.reached else f"**{number}**"


if __name__ == "__main__":
    main()
