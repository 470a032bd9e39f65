"""What the handlers of services do: how many messages, and how long each call takes."""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

from apressure.protocols import Tally, Work
from apressure.telemetry.families import DURATION, HANDLED, Reading
from apressure.telemetry.sampler import label


class Durations:
    """Counts durations in buckets.

    Args:
        limits: The upper limits of the buckets, in seconds.
    """

    def __init__(self, limits: tuple[float, ...]) -> None:
        self._limits = limits
        self._counts = [0] * (len(limits) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[bisect_left(self._limits, seconds)] += 1
        self._sum += seconds

    def reading(self, labels: tuple[str, ...]) -> Reading:
        """Return the counts."""
        counts = tuple(self._counts)
        return Reading(DURATION, labels, sum(counts), counts, self._sum)


class Handler:
    """A handler of a queue, over all services of this process that call it.

    Args:
        labels: The queue's name and kind, and the handler's name.
        limits: The upper limits of the buckets of durations.

    Attributes:
        labels: As given.
    """

    def __init__(self, labels: tuple[str, str, str], limits: tuple[float, ...]) -> None:
        self.labels = labels
        self._works: list[Work] = []
        self._past = Tally()
        self._durations = Durations(limits)

    def begin(self, work: Work) -> Callable[[float], None]:
        """A service begins. Returns what to call with the seconds of each call of the handler."""
        self._works.append(work)
        return self._durations.observe

    def end(self, work: Work) -> None:
        """A service has ended: nothing of it is in hand any more."""
        self._works.remove(work)
        self._past = _sum(self._past, work.tally()._replace(in_hand=0))

    def readings(self) -> Iterator[Reading]:
        """Yield all values."""
        tally = functools.reduce(_sum, (work.tally() for work in tuple(self._works)), self._past)
        for field, family in HANDLED.items():
            yield Reading(family, self.labels, getattr(tally, field))
        yield self._durations.reading(self.labels)


def _sum(one: Tally, other: Tally) -> Tally:
    return Tally(*map(sum, zip(one, other, strict=True)))


def name_of(handler: Any) -> str:
    """Return a handler's name, as the value of a label."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    name = handler if isinstance(handler, str) else getattr(handler, "__qualname__", type(handler).__qualname__)
    return label(name)
