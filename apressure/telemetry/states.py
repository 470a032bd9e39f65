"""Says in words how a queue is: what holds it up, since when, and how much that matters."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import IntEnum
from typing import Any, Final, NamedTuple

from apressure.core.limits import UNLIMITED
from apressure.core.workers import WaitingProducer
from apressure.telemetry.often import Often

_LATE: Final = 60.0
"""Seconds by which a schedule may be late before anybody needs to know."""


class Severity(IntEnum):
    """How much a state matters."""

    GOOD = 0
    NOTE = 1
    WARNING = 2
    ERROR = 3


class State(NamedTuple):
    """One thing to know of a queue.

    Attributes:
        name: A word for programs: `full`, `paused`, `unconsumed`, …
        severity: How much it matters.
        text: For people.
        since: Since when, in seconds since 1970, as far as is known; None where that has no meaning.
    """

    name: str
    severity: Severity
    text: str
    since: float | None = None


class States:
    """Says how one queue is, and remembers since when."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._full = Often()

    def of(self, now: float, statistics: Any, schedules: Any = ()) -> tuple[State, ...]:
        """Return the states of a queue, those that matter most first; there is at least one.

        Args:
            now: The time of the look, in seconds since 1970.
            statistics: What it saw; None if the queue does not exist.
            schedules: The queue's schedules.
        """
        often = self._full.look(now, getattr(statistics, "room", None) == 0)
        found = sorted(_states(now, statistics, schedules, often), key=lambda state: -state.severity)
        self._since = {state.name: self._since.get(state.name, now) for state in found}
        return tuple(self._dated(now, state) for state in found) or (State("open", Severity.GOOD, "open"),)

    def _dated(self, now: float, state: State) -> State:
        if state.name not in _LASTING or state.since is not None:
            return state
        since = self._since[state.name]
        seconds = now - since
        return state._replace(since=since, text=f"{state.text} for {duration(seconds)}" if seconds >= 1 else state.text)


def failed(error: str) -> tuple[State, ...]:
    """Return the state of a queue that cannot be looked at."""
    return (State("unreadable", Severity.ERROR, error),)


_LASTING: Final = frozenset(("full", "unconsumed"))
"""States of which the text says how long they have lasted, unless it says more."""


def _states(now: float, statistics: Any, schedules: Any, often_full: bool) -> Iterator[State]:
    if statistics is None:
        yield State("missing", Severity.WARNING, "does not exist")
        return
    delayed = getattr(statistics, "delayed", 0)
    limits = getattr(statistics, "limits", UNLIMITED)
    paused, closed = getattr(statistics, "paused", False), getattr(statistics, "closed", False)
    if paused:
        since: datetime | None = getattr(statistics, "paused_since", None)
        text = paused_text(statistics, now)
        yield State("paused", Severity.WARNING, text, None if since is None else since.timestamp())
    if limits.held_for:
        yield State("held", Severity.WARNING, f"held until {clock(now + limits.held_for, now)}")
    if getattr(statistics, "room", None) == 0:
        yield _full(statistics.waiting_producers)
    elif often_full:
        yield State("full", Severity.WARNING, "full most of the time")
    of_dead_letters = getattr(statistics, "name", "").endswith((":dead", ".dead"))  # of an AsyncQueue, or a directory
    if statistics.length and not paused and not of_dead_letters and consumers_of(statistics) == 0:
        yield State("unconsumed", Severity.WARNING, "no consumer")
    if letters := statistics.length if of_dead_letters else getattr(statistics, "dead_letters", 0):
        yield State("dead_letters", Severity.WARNING, f"{letters:,} dead letter{'s' * (letters != 1)}")
    schedule = next(late_schedules(now, schedules), None) if takes_occasions(statistics) else None
    if schedule is not None:
        late = duration(now - schedule.next)
        yield State("late_schedule", Severity.WARNING, f"the schedule {schedule.name!r} is late by {late}")
    if closed:
        left = statistics.length + statistics.in_flight + delayed
        yield State("closed", Severity.NOTE, f"closed, {left:,} left" if left else "closed")
    if limits.rate is not None or limits.concurrency is not None or limits.key is not None:
        yield State("limited", Severity.NOTE, f"limited to {limits.most}")


def _full(producers: Sequence[WaitingProducer]) -> State:
    """Return what is said of a full queue, where these producers wait for room, the one that waits longest first."""
    if not producers:
        return State("full", Severity.WARNING, "full")
    return State("full", Severity.WARNING, f"full: {producers_text(producers)}", producers[0].since.timestamp())


def paused_text(statistics: Any, now: float) -> str:
    """Say since when a paused queue is paused, where that is known: `paused since 12:03`."""
    since: datetime | None = getattr(statistics, "paused_since", None)
    return "paused" if since is None else f"paused since {clock(since.timestamp(), now)}"


def producers_text(producers: Sequence[WaitingProducer]) -> str:
    """Say how many producers wait, and for how long: `3 producers wait, the first for 41 s`."""
    waited = duration(producers[0].waited)
    if len(producers) == 1:
        return f"1 producer waits, for {waited}"
    return f"{len(producers):,} producers wait, the first for {waited}"


def takes_occasions(statistics: Any) -> bool:
    """Return whether a queue takes what is scheduled: a closed one does not, and a full one not yet."""
    return not getattr(statistics, "closed", False) and getattr(statistics, "room", None) != 0


def late_schedules(now: float, schedules: Iterable[Any]) -> Iterator[Any]:
    """Yield the schedules that are late by more than a minute: nothing drives them."""
    for schedule in schedules:
        if schedule.next is not None and not schedule.paused and schedule.next < now - _LATE:
            yield schedule


def consumers_of(statistics: Any) -> int | None:
    """Return how many consumers there are; None for a directory, which does not say."""
    if hasattr(statistics, "members"):
        return len(statistics.members) or int(statistics.consumer.state != "free")
    return getattr(statistics, "consumers", None)


def clock(moment: float, now: float) -> str:
    """Return a time of day in local time, with the date if it is another day: `12:03`, `2030-01-31 12:03`."""
    then, today = time.localtime(moment), time.localtime(now)
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%Y-%m-%d %H:%M", then)


def duration(seconds: float) -> str:
    """Return a time span for people: `41 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    whole = max(0, round(seconds))
    for most, unit, name, smaller, rest in (
        (3600, 60, "min", 1, "s"), (86400, 3600, "h", 60, "min"), (float("inf"), 86400, "d", 3600, "h"),
    ):  # fmt: skip
        if whole < 60:
            break
        if whole < most:
            return f"{whole // unit} {name} {whole % unit // smaller} {rest}"
    return f"{whole} s"


def size_text(size: int) -> str:
    """Return a size in bytes for people: `999 bytes`, `1.5 kB`."""
    amount = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            break
        amount /= 1000
    return f"{size:,} bytes" if unit == "bytes" else f"{amount:,.1f} {unit}"
