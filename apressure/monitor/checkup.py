"""What the doctor says of queues of events and of tasks, and of directories, by their statistics.

Each client that uses such a queue repairs it: what dead clients had in hand comes back when its lease ends. So there is
nothing to repair by hand, and what is found are notes.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from apressure.core.limits import UNLIMITED
from apressure.core.schedules import UNAVAILABLE
from apressure.exceptions import ServerError
from apressure.pressure.doctor import recovery
from apressure.queue_addresses import QueueAddress
from apressure.telemetry.states import consumers_of, late_schedules

_OVERDUE: Final = 1.0
"""Seconds by which a delayed item may be late before a note says so."""


async def examine(address: QueueAddress, queue: Any, statistics: Any) -> recovery.Report:
    """Judge a queue that exists by its statistics.

    Raises:
        ServerError: Its data are damaged.
    """
    return recovery.Report(address.name, True, (*_notes(address, statistics), *await untimely(address, queue)))


async def untimely(address: QueueAddress, queue: Any) -> tuple[recovery.Finding, ...]:
    """Return notes on what does not happen at its time: nothing that works on the queue knows of it."""
    return (*await _overdue(queue), *await _late_schedules(address, queue))


async def _overdue(queue: Any) -> Iterable[recovery.Finding]:
    """Return a note if delayed items are due and stay delayed. It looks twice: any client of apressure is faster."""
    for seconds in (0.0, _OVERDUE):
        await asyncio.sleep(seconds)
        try:
            statistics = await queue.statistics()
        except ServerError:  # what was found before says why
            return ()
        if not statistics.delayed or statistics.next_due:
            return ()
    text = (
        f"{statistics.delayed} items are delayed, and the first ones are due: no client of apressure uses the queue. "
        "Other clients of its format bypass delays and expiry."
    )
    return (_note("overdue", text, "Start a consumer of apressure."),)


async def _late_schedules(address: QueueAddress, queue: Any) -> Iterable[recovery.Finding]:
    """Return a note on each schedule that is late by more than a minute: nothing drives it."""
    try:
        schedules = await queue.schedules()
    except UNAVAILABLE:
        return ()
    how = f"Serve the queue, or run `apressure schedules run-forever {shlex.quote(str(address))}`."
    now = time.time()
    return tuple(
        _note("late_schedule", f"The schedule {one.name!r} is late by {now - one.next:.0f} s: nothing drives it.", how)
        for one in late_schedules(now, schedules)
    )


def _notes(address: QueueAddress, statistics: Any) -> Iterator[recovery.Finding]:
    name = shlex.quote(str(address))
    if statistics.paused:
        yield _note(
            "paused",
            "The queue is paused: its consumers get nothing.",
            f"`apressure resume {name}`",
        )
    if statistics.limits != UNLIMITED:
        yield from _limits(name, statistics)
    if statistics.length and consumers_of(statistics) == 0:
        yield _note("unconsumed", f"{statistics.length} items wait, and no consumer is there.", "Start a consumer.")
    if letters := getattr(statistics, "dead_letters", 0):
        advice = f"`apressure dead {name}` says why, and `apressure requeue {name}` moves them back."
        yield _note("dead_letters", f"{letters} items were given up after their last attempt.", advice)
    if statistics.in_flight:
        text = f"{statistics.in_flight} items are in flight"
        expiry = getattr(statistics, "next_expiry", None)
        if expiry is not None:
            text += f"; the next lease ends in {expiry:.0f} s, if it is not renewed"
        yield _note("in_flight", f"{text}.")
    if statistics.delayed:
        due = f"is due in {statistics.next_due:.0f} s" if statistics.next_due else "is due"
        yield _note("delayed", f"{statistics.delayed} items are delayed; the next one {due}.")
    if unfinished := getattr(statistics, "unfinished", 0):
        yield _note("unfinished", f"{unfinished} items are being written, or their writers died.")


def _limits(name: str, statistics: Any) -> Iterator[recovery.Finding]:
    limits, in_flight = statistics.limits, statistics.in_flight
    text = f"Its consumers get {limits}. Other clients of its format are not limited."
    yield _note("limited", text, f"`apressure limit {name} --help`")
    if limits.concurrency and in_flight > limits.concurrency:
        text = f"{in_flight} items are in flight, and at most {limits.concurrency} may be: a client of another library "
        yield _note("bypassed", f"{text}takes items without regard to limits, or the limit was lower a moment ago.")
    if statistics.parked:
        yield _note("parked", f"Of the items that wait, {statistics.parked} wait for others of their key.")


def _note(kind: recovery.FindingKind, text: str, advice: str = "") -> recovery.Finding:
    return recovery.Finding(kind, False, "none", text, advice)
