"""What only several looks at a queue tell: its minutes, its speed, how old its next message is, when it is empty."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from typing import Any, Final, NamedTuple

from apressure.core.history import KEPT, Minute

_WINDOW: Final = 60.0
"""Seconds: a prediction uses the looks of this time."""

_SPEED: Final = 10.0
"""Seconds: speeds are of this time."""

_GAP: Final = 600.0
"""Seconds: what has happened between two looks that are further apart is not known by the minute."""

_LATE: Final = 30.0
"""Seconds: what has happened in a minute is not known where the first look of all came so late in it."""

_MOST: Final = 1000
"""As many looks are kept until the messages that were put meanwhile are gone. Then every second one is forgotten."""


class Trend:
    """Predicts when a queue will be empty, from its lengths in the last minute."""

    def __init__(self) -> None:
        self._lengths: deque[tuple[float, int]] = deque()

    def drain(self, now: float, length: int) -> float | None:
        """Return in how many seconds a queue of this length will be empty; infinity if it does not shrink.

        None before the second look.
        """
        lengths = self._lengths
        lengths.append((now, length))
        while now - lengths[0][0] > _WINDOW and len(lengths) > 2:
            lengths.popleft()
        if length == 0:
            return 0.0
        then, before = lengths[0]
        if now <= then:
            return None
        rate = (before - length) / (now - then)
        return length / rate if rate > 0 else math.inf


class Speed(NamedTuple):
    """How fast messages come and go, in messages a second. None where that is not known.

    Attributes:
        put: Messages that were put.
        taken: Messages that were got, or settled for good.
    """

    put: float | None = None
    taken: float | None = None


UNKNOWN: Final = Speed()

Totals = tuple[int, int]
"""How many messages have been put and taken, each from any beginning on."""


class Work(NamedTuple):
    """What workers have done.

    Attributes:
        handled: Messages whose handlers have returned.
        failed: Attempts that have failed.
        busy: Seconds that handlers have taken.
    """

    handled: int = 0
    failed: int = 0
    busy: float = 0.0

    def plus(self, more: Work) -> Work:
        """Return the sum."""
        return Work(self.handled + more.handled, self.failed + more.failed, self.busy + more.busy)

    def since(self, earlier: Work) -> Work:
        """Return what was done after an earlier look; nothing where it counts from 0 again."""
        return Work(
            max(0, self.handled - earlier.handled), max(0, self.failed - earlier.failed),
            max(0.0, self.busy - earlier.busy),
        )  # fmt: skip


class Tally:
    """Adds up what the registered workers of a queue do. What one had done before it was first seen does not count."""

    def __init__(self) -> None:
        self._told: dict[str, Work] = {}
        self._done = Work()
        self._known = False

    def look(self, statistics: Any) -> Work | None:
        """Return what they have done since the first look; None where there was no worker so far."""
        told: dict[str, Work] = {}
        for worker in getattr(statistics, "workers", ()):  # a service has the same id at each of its queues
            here = Work(worker.handled, worker.failed, worker.busy)
            told[worker.id] = told.get(worker.id, Work()).plus(here)
        for name, now in told.items():
            self._done = self._done.plus(now.since(self._told.get(name, now)))
        self._told = told
        self._known = self._known or bool(told)
        return self._done if self._known else None


class Flow:
    """Tells how fast messages come and go, by the looks of the last seconds.

    An AsyncQueue counts them on the server. Of other kinds, what their registered workers have handled is known, and
    how many messages have become more or fewer meanwhile.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int, int]] = deque()
        self._tally = Tally()

    def look(self, now: float, statistics: Any) -> tuple[Speed, Totals | None]:
        """Return the speed, as of this look, and what it is made of; None where nobody counts."""
        totals = self._totals(statistics)
        return (UNKNOWN, None) if totals is None else (self._speed(now, totals), totals)

    def _speed(self, now: float, totals: Totals) -> Speed:
        looks = self._looks
        if looks and (totals[0] < looks[-1][1] or totals[1] < looks[-1][2]):  # another queue of this name
            looks.clear()
        looks.append((now, *totals))
        while len(looks) > 2 and now - looks[1][0] >= _SPEED:
            looks.popleft()
        then, put, taken = looks[0]
        if now <= then:
            return UNKNOWN
        return Speed((totals[0] - put) / (now - then), (totals[1] - taken) / (now - then))

    def _totals(self, statistics: Any) -> Totals | None:
        if (produced := getattr(statistics, "produced_messages", None)) is not None:
            return produced, statistics.consumed_messages
        work = self._tally.look(statistics)
        if work is None:
            return None
        there = statistics.length + statistics.in_flight + getattr(statistics, "delayed", 0)
        before = self._looks[-1][1] if self._looks else 0
        return max(before, work.handled + there), work.handled


class Minutes:
    """Makes records of minutes from looks.

    Attributes:
        kept: Those of the last hour in which there was something, the oldest first; of the last day after `keep_all`.
    """

    def __init__(self) -> None:
        self.kept: deque[Minute] = deque(maxlen=60)
        self._time = 0
        self._tally = Tally()
        self._before: _Look | None = None
        self._latest: _Look | None = None

    def keep_all(self) -> None:
        """Keep those of a day: nobody else does."""
        self.kept = deque(self.kept, KEPT)

    def look(self, at: float, statistics: Any, oldest: float | None, totals: Totals | None) -> Minute | None:
        """Note a look; return the minute that has ended since the last one, if one has."""
        minute = int(at) // 60 * 60
        look = _Look(at, statistics, oldest, totals, self._tally.look(statistics))
        ended = self._minute(self._latest) if self._latest is not None and minute > self._time else None
        if minute != self._time:
            self._time, self._before = minute, self._latest or look
        self._latest = look
        if ended is not None and not ended.idle:
            self.kept.append(ended)
        return ended

    def _minute(self, latest: _Look) -> Minute:
        """Return the minute of which this was the latest look."""
        put, taken, failed, duration = self._happened(latest)
        statistics, oldest = latest.statistics, latest.oldest
        return Minute(
            self._time, statistics.length, statistics.in_flight, getattr(statistics, "delayed", 0), put, taken,
            None if oldest is None else round(oldest), failed, duration,
        )  # fmt: skip

    def _happened(self, latest: _Look) -> tuple[int | None, int | None, int | None, int | None]:
        """Return how many messages were put and taken, how many attempts failed, and how long they took.

        Where looks are rare, it is the part that is one minute's.
        """
        before, put, taken, failed, duration = self._before, None, None, None, None
        if before is None or latest.at - before.at > _GAP or before.at - self._time > _LATE:
            return put, taken, failed, duration
        part = 1.0 if latest.at - before.at < 90 else 60 / (latest.at - before.at)
        if before.totals is not None and latest.totals is not None:
            changes = [now - then for now, then in zip(latest.totals, before.totals, strict=True)]
            if min(changes) >= 0:  # otherwise it is another queue of this name
                put, taken = (round(change * part) for change in changes)
        if latest.work is not None:
            work = latest.work.since(before.work or Work())
            failed, attempts = round(work.failed * part), work.handled + work.failed
            duration = round(1000 * work.busy / attempts) if attempts else None
        return put, taken, failed, duration


class _Look(NamedTuple):
    at: float
    statistics: Any
    oldest: float | None
    totals: Totals | None
    work: Work | None


class Arrivals:
    """Tells the age of a queue's next message from how many had been put at earlier looks.

    If `produced` messages were put and `length` wait, then the next one is number `produced - length`. It was there at
    the first look that counted more than that. So its age is right to one interval, and never too high. Messages that
    were put before the first look count from that.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()

    def age(self, now: float, produced: int, length: int) -> float:
        """Return the age of the next message in seconds; 0 if none waits."""
        looks = self._looks
        if looks and produced < looks[-1][1]:  # another queue of this name
            looks.clear()
        if not looks or produced > looks[-1][1]:
            looks.append((now, produced))
        while len(looks) > 1 and looks[0][1] <= produced - length:
            looks.popleft()
        if len(looks) > _MOST:
            self._looks = looks = deque(list(looks)[::2] if len(looks) % 2 else [*list(looks)[::2], looks[-1]])
        return max(0.0, now - looks[0][0]) if length else 0.0


class Head:
    """Tells for how long the same message has been the next one. It keeps a hash of the message, not the message.

    Messages of the same content, one after the other, look like one.
    """

    def __init__(self) -> None:
        self._hash = b""
        self._since = 0.0

    def age(self, now: float, item: Any) -> float:
        """Return for how many seconds this has been the next message."""
        content = item if isinstance(item, bytes) else repr(item).encode(errors="backslashreplace")
        found = hashlib.blake2b(content, digest_size=16).digest()
        if found != self._hash:
            self._hash, self._since = found, now
        return now - self._since

    def gone(self) -> None:
        """No message waits."""
        self._hash = b""
