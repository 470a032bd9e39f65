"""What the doctor says of a queue by its statistics: notes on what keeps it from going on, and on its times.

For an AsyncQueue that stands beside what `recovery` finds in its keys. Each client that uses a queue of another kind
repairs it: what dead clients had in hand comes back when its lease ends. So there is nothing else to find there.
"""

from __future__ import annotations

import asyncio
import dataclasses
import shlex
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from apressure.core.limits import UNLIMITED
from apressure.core.schedules import UNAVAILABLE
from apressure.core.workers import KEY_SCHEMA
from apressure.exceptions import ServerError
from apressure.pressure.doctor import recovery
from apressure.queue_addresses import QueueAddress
from apressure.telemetry.states import consumers_of, duration, late_schedules, producers_text, takes_occasions

_OVERDUE: Final = 1.0
"""Seconds by which a delayed item may be late before a note says so."""
_SLOW: Final = 60.0
"""Seconds after which a note says that a handler runs."""


async def examine(address: QueueAddress, queue: Any, statistics: Any) -> recovery.Report:
    """Judge a queue that exists by its statistics.

    Raises:
        ServerError: Its data are damaged.
    """
    notes = (*_notes(address, statistics), *await _untimely(address, queue))
    return recovery.Report(address.name, True, in_order(notes))


async def with_notes(address: QueueAddress, queue: Any, report: recovery.Report) -> recovery.Report:
    """Return what was found in the keys of an AsyncQueue, and beside it the notes for every kind, in order."""
    try:
        statistics = await queue.statistics()
    except ServerError:  # what was found says why
        return report
    findings = [_at_work(finding, statistics) for finding in report.findings]
    notes = (*_standing(shlex.quote(str(address)), statistics), *await _untimely(address, queue))
    return dataclasses.replace(report, findings=in_order((*findings, *notes)))


def in_order(findings: Iterable[recovery.Finding]) -> tuple[recovery.Finding, ...]:
    """Return faults first, then what keeps the queue from going on, and last who works on it."""
    order = {kind: place for place, kind in enumerate(_STOPPING)}
    last = len(order) + 1
    return tuple(
        sorted(
            findings,
            key=lambda one: (not one.fault, last if one.kind == "leased" else order.get(one.kind, last - 1)),
        )
    )


_STOPPING: Final = ("paused", "unconsumed", "slow_handler", "limited", "full")
"""What keeps a queue from going on, the likeliest cause first."""


def _at_work(finding: recovery.Finding, statistics: Any) -> recovery.Finding:
    """Return a lease without the advice for a dead client, if its client said a moment ago that it works."""
    if finding.kind != "leased" or finding.holder is None:
        return finding
    for worker in statistics.workers:
        if finding.holder.startswith(f"{worker.host}:{worker.pid}:"):
            return dataclasses.replace(finding, advice="")
    return finding


async def _untimely(address: QueueAddress, queue: Any) -> tuple[recovery.Finding, ...]:
    """Return notes on what does not happen at its time: nothing that works on the queue knows of it."""
    return (*await _overdue(queue), *await _late_schedules(address, queue))


def _standing(name: str, statistics: Any) -> Iterator[recovery.Finding]:
    """Yield notes on why messages wait: nobody takes them, handlers hang, or the queue is full."""
    if statistics.length and consumers_of(statistics) == 0:
        advice = f"Start a consumer. `apressure workers ls {name}` lists what works; a process may be stopped: see ps."
        yield _note("unconsumed", f"{statistics.length} items wait, and no consumer is there.", advice)
    for worker in statistics.workers:
        if worker.oldest is not None and worker.oldest >= _SLOW:
            text = f"A handler of the worker {worker.id} ({worker.handler}) has run for {duration(worker.oldest)}."
            yield _note("slow_handler", text, f"`apressure workers stack {worker.id}` shows where it is.")
    waiting = getattr(statistics, "waiting_producers", ())
    for other in (*statistics.workers, *waiting):
        if other.schema != KEY_SCHEMA:
            text = (
                f"{other.id} writes keys of schema {other.schema} (apressure {other.version}); here it is {KEY_SCHEMA}."
            )
            yield _note(
                "key_schema", text, "Upgrade the older one before you use what is new: the changelog says what."
            )
    if waiting:
        advice = "Start more consumers, unless a note before this one says what stops those that are there."
        yield _note("full", f"The queue is full: {producers_text(waiting)}.", advice)


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
        late = [*late_schedules(time.time(), await queue.schedules())]
        if not late or not takes_occasions(await queue.statistics()):
            return ()
    except UNAVAILABLE:
        return ()
    how = f"Serve the queue, or run `apressure schedules run-forever {shlex.quote(str(address))}`."
    now = time.time()
    return tuple(
        _note("late_schedule", f"The schedule {one.name!r} is late by {now - one.next:.0f} s: nothing drives it.", how)
        for one in late
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
    yield from _standing(name, statistics)
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
    yield _note("limited", text, f"`apressure limit {name} --rate off`, `--concurrency off` or `--key off` ends that.")
    if limits.concurrency and in_flight > limits.concurrency:
        text = f"{in_flight} items are in flight, and at most {limits.concurrency} may be: a client of another library "
        yield _note("bypassed", f"{text}takes items without regard to limits, or the limit was lower a moment ago.")
    if statistics.parked:
        yield _note("parked", f"Of the items that wait, {statistics.parked} wait for others of their key.")


def _note(kind: recovery.FindingKind, text: str, advice: str = "") -> recovery.Finding:
    return recovery.Finding(kind, False, "none", text, advice)
