"""Print figures, one on each line."""

from __future__ import annotations

from collections.abc import Iterable

from tests.benchmarks.figures import RATE, Figure


def line(figure: Figure) -> str:
    """Return a figure in words."""
    loop = "" if figure.loop == "asyncio" else figure.loop
    goal = f"(goal {'>=' if figure.unit == RATE else '<='} {figure.goal:g})"
    mark = "" if figure.reached else "  not reached"
    return (
        f"  {f'{figure.case} / {figure.other}':51} {loop:7} {amount(figure.ours, figure.unit)}"
        f" {amount(figure.theirs, figure.unit)}  ratio {figure.ratio:7.2f}  {goal}{mark}"
    )


def amount(value: float, unit: str) -> str:
    """Return a rate or seconds with the unit."""
    if unit == RATE:
        return f"{value:12,.0f}/s"
    return f"{value * 1e6:9,.0f} µs{unit[1:]}" if value < 0.01 else f"{value * 1e3:9,.1f} ms{unit[1:]}"


def versions(figures: Iterable[Figure]) -> str:
    """Return the versions of all libraries and of their runtimes."""
    libraries = {figure.other: figure.versions for figure in figures if figure.versions}
    return "; ".join(", ".join(f"{name} {version}" for name, version in each.items()) for each in libraries.values())
