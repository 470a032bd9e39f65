"""One figure of a run: ours, the other's, their ratio, and whether it is what we want."""

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
        server: What was measured on; empty for what needs no server.
        case: What we did.
        other: What it is compared with.
        loop: What both ran on: `"asyncio"`, `"uvloop"`, or `"node"` for the other one.
        unit: `"/s"`, or seconds.
        ours: Our median.
        theirs: The other's median.
        ratio: The median of the ratios of repetitions, ours to theirs.
        goal: What the ratio is to be at least, or at most if the unit is seconds.
        reached: Whether it is.
        versions: Of what was compared, where that is not in the environment of the run.
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
    """Make a figure of pairs that were measured one after the other, ours first."""
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
