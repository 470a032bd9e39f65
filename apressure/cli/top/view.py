"""What `apressure top` shows now: the queues in the chosen order, those that the filter leaves, totals and trends."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, get_args

from apressure.cli.show import printable
from apressure.cli.top.cells import rate, server_of
from apressure.monitor.monitor import Monitor, Seen
from apressure.queue_addresses import QueueAddress
from apressure.telemetry.states import Severity

Sort = Literal["state", "age", "rate", "name", "length"]
SORTS: Final[tuple[Sort, ...]] = get_args(Sort)

_STEP: Final = 20.0
"""Seconds of a step of a trend."""

_STEPS: Final = 15


def _length(seen: Seen) -> int:
    return getattr(seen.sample.statistics, "length", 0)


_ORDERS: Final[dict[Sort, Callable[[Seen], Any]]] = {
    "state": lambda seen: 0,  # noqa: ARG005 (the monitor has them in this order)
    "age": lambda seen: -(seen.sample.oldest or 0.0),
    "rate": lambda seen: -((seen.sample.speed.put or 0.0) + (seen.sample.speed.taken or 0.0)),
    "name": lambda seen: str(seen.address),
    "length": lambda seen: -_length(seen),
}


class Trend:
    """The lengths of a queue in the last minutes: the last one of each step."""

    __slots__ = ("_lengths", "_step")

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=_STEPS)
        self._step = -1

    def add(self, at: float, length: int) -> None:
        """Note the length at a time."""
        step = int(at // _STEP)
        if self._lengths and step == self._step:
            self._lengths[-1] = length
            return
        if self._lengths:  # it had the last length in the steps that nobody has looked at
            self._lengths.extend([self._lengths[-1]] * min(_STEPS, step - self._step - 1))
        self._lengths.append(length)
        self._step = step

    @property
    def lengths(self) -> Sequence[int]:
        """Return them, the last one is now."""
        return self._lengths


class View:
    """What is shown.

    Args:
        monitor: What looks at the queues.
        sort: The order.

    Attributes:
        monitor, sort: As given.
        filter: Queues whose address or state has this text are shown; "" for all.
        rows: The queues that are shown, in order.
        servers: The servers of all queues, without passwords.
    """

    def __init__(self, monitor: Monitor, sort: Sort = "state") -> None:
        self.monitor = monitor
        self.sort: Sort = sort
        self.filter = ""
        self.rows: list[Seen] = []
        self.servers: list[str] = []
        self._all: list[Seen] = []
        self._seen: dict[QueueAddress, Seen] = {}
        self._trends: dict[QueueAddress, Trend] = {}

    def update(self) -> None:
        """Read what was seen."""
        self._all = self.monitor.seen()
        self._seen = {one.address: one for one in self._all}
        trends = {one.address: self._trends.get(one.address) or Trend() for one in self._all}
        for one in self._all:
            if one.sample.statistics is not None:
                trends[one.address].add(one.sample.at, _length(one))
        self._trends = trends
        clients = {id(getattr(one.queue, "client", None)): one for one in self._all}  # most queues share one
        self.servers = sorted({*map(server_of, clients.values()), *self.monitor.finder.servers} - {""})
        self.arrange()

    def arrange(self) -> None:
        """Put the queues in order, and leave out those that the filter does not want."""
        wanted = self.filter.casefold()
        rows = [one for one in self._all if wanted in _words(one)] if wanted else self._all
        self.rows = sorted(rows, key=_ORDERS[self.sort])

    def seen(self, address: QueueAddress) -> Seen | None:
        """Return what is known of a queue now; None if it is gone."""
        seen = self._seen.get(address)
        return None if seen is None else seen._replace(sample=seen.sampler.latest or seen.sample)

    @property
    def left(self) -> int:
        """How many queues have not been looked at yet."""
        return self.monitor.known - len(self._all)

    def nothing(self) -> str:
        """Return why there is no queue to show."""
        return "no queues" if self.monitor.searched else "looking for queues…"

    def trend(self, address: QueueAddress) -> Sequence[int]:
        """Return the lengths of a queue in the last minutes."""
        trend = self._trends.get(address)
        return () if trend is None else trend.lengths

    def totals(self) -> str:
        """Return the sums over all queues, on a line."""
        known = [one.sample for one in self._all if getattr(one.sample.statistics, "length", None) is not None]
        urgent = sum(one.state.severity >= Severity.WARNING for one in self._all)
        put, taken = (math.fsum(getattr(one.speed, what) or 0.0 for one in known) for what in ("put", "taken"))
        words = [f"{len(self._all):,} queue{'s' * (len(self._all) != 1)}"]
        if urgent:
            words.append(f"{urgent:,} need{'s' * (urgent == 1)} somebody")
        words += [
            f"{sum(getattr(one.statistics, field, 0) for one in known):,} {word}"
            for field, word in (("length", "waiting"), ("in_flight", "in flight"), ("delayed", "delayed"))
        ]
        return "  ".join([*words, f"put {rate(put)}/s", f"taken {rate(taken)}/s"])

    def heading(self) -> str:
        """Return where the queues are, and how they are shown, on a line."""
        words = [" ".join(self.servers) or "directories", f"by {self.sort}"]
        if self.filter:
            words.append(f"filter {self.filter!r}")
        if self.left:
            words.append(f"{self.left:,} queues have not been looked at yet")
        elif (period := self.monitor.reader.period) > 2 * self.monitor.reader.interval:
            words.append(f"each is looked at every {period:.0f} s, those on the screen more often")
        return printable("  ".join([*words, time.strftime("%H:%M:%S")]))

    def failures(self) -> str:
        """Return what cannot be looked at, on a line; "" if nothing is wrong."""
        failures = self.monitor.failures()
        if not failures:  # each queue's own error is in its line
            broken = [one for one in self._all if one.sample.error]
            failures = [broken[0].sample.error] if broken and len(broken) == len(self._all) else []
        return printable(" ".join("; ".join(failures).split()))


def _words(seen: Seen) -> str:
    return " ".join([str(seen.address), *(state.text for state in seen.sample.states)]).casefold()
