"""One figure of a run: ours, theirs, the ratio, and whether it reached its goal."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

RATE = "/s"
"""The unit of which more is better. All others are seconds, of which less is better: `"s"`, or `"s p99"`."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """A comparison; the results of a run have these fields.

    Attributes:
        server: The server; empty if none is needed.
        case: The operation.
        other: The other side.
        loop: The event loop: `"asyncio"`, `"uvloop"`, or `"node"` for the other one.
        unit: `"/s"`, or seconds.
        ours: Our median.
        theirs: The other's median.
        ratio: The median of the ratios of repetitions, ours to theirs.
        goal: The least ratio that we want; the greatest if the unit is seconds.
        reached: Whether the ratio reached the goal.
        versions: The versions of the other side, if it has an environment of its own.
    """

    server: str
    case: str
    other: str
    loop: str
    unit: str
    ours: float
    theirs: float
    ratio: float
    goal: float
    reached: bool
    versions: dict[str, str] = dataclasses.field(default_factory=dict)


def figure(
    server: str,
    case: str,
    other: str,
    loop: str,
    unit: str,
    goal: float,
    pairs: Sequence[tuple[float, float]],
    versions: dict[str, str] | None = None,
) -> Figure:
    """Make a figure from pairs of measurements, ours first."""
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    return Figure(
        server,
        case,
        other,
        loop,
        unit,
        ours=statistics.median(ours for ours, _ in pairs),
        theirs=statistics.median(theirs for _, theirs in pairs),
        ratio=ratio,
        goal=goal,
        reached=ratio >= goal if unit == RATE else ratio <= goal,
        versions=versions or {},
    )
