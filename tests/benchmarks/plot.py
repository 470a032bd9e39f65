"""Draw the results of a run.

Usage: python -m tests.benchmarks.plot RESULTS.json --into DIRECTORY
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import RATE, Figure
from tests.benchmarks.svg import DARK, GREY, Axis, dot, line, picture, rectangle, short, text

WIDTH = 880
ROW = 40
COLOURS = {"Valkey": "#5b5bd6", "Redis": "#d6454b"}
BARS = (("#2f6fde", "#7d8590"), ("#9dbdf2", "#c3c9d0"))
"""Ours and the others', of the first server and of the second one."""


def main() -> None:
    """Parse the arguments, read, draw, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.plot", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--into", type=Path, required=True, metavar="DIRECTORY")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    for name, drawing in draw(json.loads(options.results.read_text())).items():
        (options.into / name).write_text(drawing)


def draw(results: dict[str, Any]) -> dict[str, str]:
    """Return the plots of a run by file name, without those that were not measured."""
    figures = [Figure(**figure) for figure in results["figures"]]
    libraries = [figure for figure in figures if figure.versions]
    code = [figure for figure in figures if not figure.versions]
    about = f"{results['machine']['machine']}, Python {results['machine']['python']}"
    plots = {}
    if code:
        plots["by-hand.svg"] = by_hand(code, f"{about}, redis-py {results['machine']['redis-py']}")
    if libraries:
        plots["libraries.svg"] = other_libraries(libraries, about)
    return plots


def by_hand(figures: list[Figure], about: str) -> str:
    """Draw a row for each comparison with code by hand, with a dot for each server and event loop."""
    rows: dict[tuple[str, str, str], list[Figure]] = {}
    for figure in figures:
        rows.setdefault((figure.case, figure.other, figure.unit), []).append(figure)
    servers = servers_of(figures)
    axis = Axis([speed(figure, ratio) for figure in figures for ratio in (figure.ratio, figure.goal)], 330, WIDTH - 170)
    top, bottom = 96, 96 + ROW * len(rows)
    parts = [*legend(figures), *axis.grid(top, bottom), line(axis.x(1), top, bottom, GREY)]
    parts.append(text(WIDTH - 24, top - 8, "ratio (goal)", anchor="end", size=12, fill=GREY))
    for index, ((case, other, unit), row) in enumerate(rows.items()):
        y = top + ROW * (index + 0.5)
        percentile = unit.partition(" ")[2]
        parts.append(text(24, y - 1, f"{case}, {percentile}" if percentile else case, size=14))
        parts.append(text(24, y + 15, f"/ {other}", size=12, fill=GREY))
        parts.append(rectangle(axis.x(speed(row[0], row[0].goal)) - 2, y - 14, 4, 28, DARK))
        for figure in row:
            apart = 7 * (2 * servers.index(figure.server) - 1) if len(servers) > 1 and figure.server else 0
            x = axis.x(speed(figure, figure.ratio))
            parts.append(dot(x, y + apart, colour(figure.server), hollow=figure.loop == "uvloop"))
        ratios = " · ".join(f"{f.ratio:.2f}" if f.ratio < 10 else f"{f.ratio:.0f}" for f in row if f.loop != "uvloop")
        goal = f"{'≥' if unit == RATE else '≤'} {row[0].goal:g}"
        parts.append(text(WIDTH - 24, y + 5, f"{ratios}  ({goal})", anchor="end", size=12))
    return picture(WIDTH, bottom + 36, "How many times as fast as by hand", f"further right is faster; {about}", parts)


def legend(figures: list[Figure]) -> Iterator[str]:
    """Draw the legend of the dots."""
    x = 30
    for server in servers_of(figures):
        yield dot(x, 74, colour(server))
        yield text(x + 12, 78, server)
        x += 130
    if any(figure.loop == "uvloop" for figure in figures):
        yield dot(x, 74, GREY, hollow=True)
        yield text(x + 12, 78, "on uvloop")
        x += 100
    yield rectangle(x, 63, 4, 20, DARK)
    yield text(x + 12, 78, "goal")


def other_libraries(figures: list[Figure], about: str) -> str:
    """Draw bars for apressure and each library: messages or jobs a second."""
    names = ["apressure", *dict.fromkeys(figure.other for figure in figures)]
    servers = servers_of(figures)
    top, bottom = 126, 126 + ROW * len(names)
    height = (ROW - 10) / len(servers)
    parts = []
    for index, server in enumerate(servers):
        x = 24.0 + 170 * index
        parts += [rectangle(x + 16 * side, 68, 14, 12, BARS[index % 2][side]) for side in (0, 1)]
        parts.append(text(x + 38, 79, server))
    for panel, case in enumerate(("enqueue", "consume")):
        left = 130 + 375 * panel
        axis = Axis((rate for figure in figures for rate in (figure.ours, figure.theirs)), left, left + 310)
        parts += [text(left, top - 12, f"{case}, a second", size=14), *axis.grid(top, bottom)]
        for row, name in enumerate(names):
            y = top + ROW * row + 5
            if panel == 0:
                weight = 600 if row == 0 else 400
                parts.append(text(left - 10, y + 20, name, anchor="end", size=14, weight=weight))
            for index, server in enumerate(servers):
                for rate in measured(figures, server, case, name):
                    x, middle = axis.x(rate), y + height * (index + 0.5)
                    fill = BARS[index % 2][row > 0]
                    parts.append(rectangle(left, y + height * index, x - left, height - 1, fill))
                    parts.append(text(x + 6, middle + 4, short(rate), size=11, fill=GREY))
    subtitle = f"one process each, done as they document it best; {about}"
    return picture(WIDTH, bottom + 36, "Messages and jobs of 100 bytes", subtitle, parts)


def measured(figures: list[Figure], server: str, case: str, name: str) -> list[float]:
    """Return the rate, or None if it was not measured."""
    found = [figure for figure in figures if figure.server == server and figure.case == case]
    if name == "apressure":
        return [figure.ours for figure in found[:1]]
    return [figure.theirs for figure in found if figure.other == name]


def servers_of(figures: list[Figure]) -> list[str]:
    """Return the servers of a run, in its order."""
    return list(dict.fromkeys(figure.server for figure in figures if figure.server))


def speed(figure: Figure, ratio: float) -> float:
    """Return a figure's ratio, or its goal, so that more is better."""
    return ratio if figure.unit == RATE else 1 / ratio


def colour(server: str) -> str:
    """Return a server's colour."""
    return COLOURS.get(server.partition(" ")[0], GREY)


if __name__ == "__main__":
    main()
