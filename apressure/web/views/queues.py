"""The overview of all queues, and one queue: its figures, its states, its charts."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from apressure.exceptions import PressureError
from apressure.monitor import checkup
from apressure.monitor.monitor import Seen
from apressure.monitor.telling import CLASSES, as_data, told
from apressure.pressure.doctor import recovery
from apressure.spark.sealed_batches import GroupBatches, visible_groups
from apressure.telemetry.states import State, consumers_of
from apressure.web.rendering import Page
from apressure.web.views.asking import Asked

ROWS: Final = 100
"""Rows of a page."""

_SORTS: Final[dict[str, Callable[[Seen], float]]] = {
    "length": lambda seen: -getattr(seen.sample.statistics, "length", -1),
    "age": lambda seen: -(seen.sample.oldest or 0.0),
    "rate": lambda seen: -(seen.sample.speed.put or 0.0) - (seen.sample.speed.taken or 0.0),
}
"""What the overview can be sorted by, besides `state` and `name`. Equal ones stay in the order of their states."""

_CLASSES: Final = 10
"""Classes of errors that the page of a queue shows."""

_SPANS: Final = {"1": 60, "24": 1440}
"""Minutes of the charts, by their hours."""


async def overview(asked: Asked) -> Page:
    """All queues: those that need somebody first."""
    seen = asked.live.queues()
    wanted, sort = asked.text("filter"), asked.text("sort")
    chosen = [one for one in seen if _matches(one, wanted.casefold())] if wanted else seen
    if sort in _SORTS:
        chosen = sorted(chosen, key=_SORTS[sort])
    elif sort == "name":
        chosen = sorted(chosen, key=lambda one: str(one.address))
    pages = max(1, math.ceil(len(chosen) / ROWS))
    page = min(asked.number("page", 1, most=pages), pages)
    rows = chosen[(page - 1) * ROWS : page * ROWS]
    data = {
        "queues": [row_of(asked, one) for one in rows], "found": len(chosen), "watched": len(seen), "page": page,
        "not_looked_at_yet": max(0, asked.monitor.known - len(seen)),
        "pages": pages, "filter": wanted, "sort": sort or "state", "failures": asked.monitor.failures(),
        "need_somebody": sum(one.state.severity >= 2 for one in seen),
    }  # fmt: skip
    return Page("overview.html", "Queues", data, shown=[one.sampler for one in rows])


async def queue(asked: Asked) -> Page:
    """One queue."""
    seen = asked.seen()
    sample = seen.sample
    hours = asked.text("hours") if asked.text("hours") in _SPANS else "1"
    span = _SPANS[hours]
    since = int(time.time()) // 60 * 60 - 60 * span
    minutes = [minute for minute in await asked.monitor.minutes(seen) if minute.time >= since]
    data = {
        **row_of(asked, seen), "looked": sample.at, "error": sample.error, "drain": _finite(sample.drain),
        "limits_text": str(getattr(sample.statistics, "limits", "")) or None,
        "statistics": None if sample.statistics is None else told(seen.address, sample.statistics),
        "schedules": [schedule_of(one) for one in sample.schedules], "workers": workers_of(seen), "hours": int(hours),
        "minutes": [minute._asdict() for minute in minutes], "spark": await _groups_of(asked, seen),
        "failures": await _failures_of(asked, seen),
    }  # fmt: skip
    more = {"span": span, "minutes": minutes, "kind": seen.address.kind}
    return Page("queue.html", str(seen.address), data, more, [seen.sampler])


async def _groups_of(asked: Asked, seen: Seen) -> list[dict[str, Any]]:
    """Return what Spark has taken from a queue; nothing where it cannot be known now."""
    if seen.address.kind != "queue" or seen.sample.statistics is None:
        return []

    async def ask() -> list[GroupBatches]:
        asking = asyncio.to_thread(visible_groups, seen.queue.client.settings, seen.address.name)
        try:
            return await asyncio.wait_for(asking, asked.monitor.reader.timeout)
        except (PressureError, TimeoutError):  # the page of a queue is shown all the same
            return []

    return [dataclasses.asdict(group) for group in await asked.live.groups.of(seen.sampler, ask)]


async def _failures_of(asked: Asked, seen: Seen) -> dict[str, int]:
    """Return how many of the oldest dead letters have each class of error, the most frequent first."""
    if getattr(seen.sample.statistics, "dead_letters", None) == 0:
        return {}

    async def ask() -> dict[str, int]:
        try:
            found = await seen.queue.find_dead_letters(**asked.options())
        except PressureError:  # without the right to look, for example
            return {}
        errors = Counter("" if letter.error is None else letter.error.type for letter in found.letters)
        return dict(errors.most_common(_CLASSES))

    return await asked.live.failures.of(seen.sampler, ask)


async def doctor(asked: Asked) -> Page:
    """What the doctor says of a queue."""
    seen = asked.seen()
    if seen.address.kind == "queue":
        report = await recovery.examine(seen.queue)
        if report.exists:
            report = await checkup.with_notes(seen.address, seen.queue, report)
        findings = report.findings
    else:
        findings = (await checkup.examine(seen.address, seen.queue, await seen.queue.statistics())).findings
    data = {
        **queue_of(asked, seen), "healthy": not any(finding.fault for finding in findings),
        "findings": [
            {
                "kind": one.kind, "fault": one.fault, "repair": one.repair, "text": one.text, "advice": one.advice,
                "holder": one.holder,
            }
            for one in findings
        ],
    }  # fmt: skip
    return Page("doctor.html", f"Doctor: {seen.address}", data, shown=[seen.sampler], live=False)


async def workers(asked: Asked) -> Page:
    """The workers of all queues."""
    rows = [{**queue_of(asked, one), **worker} for one in asked.live.queues() for worker in workers_of(one)]
    shown, more = _paged(asked, rows)
    return Page("workers.html", "Workers", {"workers": shown, **more})


async def schedules(asked: Asked) -> Page:
    """The schedules of all queues."""
    rows = [
        {**queue_of(asked, one), "schedule": schedule_of(schedule)}
        for one in asked.live.queues()
        for schedule in one.sample.schedules
    ]
    rows.sort(key=lambda row: row["schedule"]["next"] or math.inf)
    shown, more = _paged(asked, rows)
    return Page("schedules.html", "Schedules", {"schedules": shown, **more})


def queue_of(asked: Asked, seen: Seen) -> dict[str, Any]:
    """Return which queue it is: what links to its pages are made of."""
    return {"address": str(seen.address), "server": seen.server, "at_server": asked.server_in_links(seen)}


def row_of(asked: Asked, seen: Seen) -> dict[str, Any]:
    """Return a queue as the overview shows it."""
    statistics, sample = seen.sample.statistics, seen.sample
    return {
        **queue_of(asked, seen), "kind": CLASSES[seen.address.kind],
        "state": seen.state.name, "severity": seen.state.severity.name.lower(),
        "states": [_state_of(state) for state in sample.states],
        **{
            name: getattr(statistics, name, None)
            for name in ("length", "bound", "in_flight", "delayed", "parked", "dead_letters")
        },
        "put_per_second": sample.speed.put, "taken_per_second": sample.speed.taken, "oldest": sample.oldest,
        "consumers": None if statistics is None else consumers_of(statistics),
        "workers": len(getattr(statistics, "workers", ())),
    }  # fmt: skip


def jobs_of(asked: Asked, seen: Seen | None = None) -> list[dict[str, Any]]:
    """Return the jobs of one queue, or of all, the latest first."""
    many = asked.monitor.many_servers
    return [{**job, "at_server": job["server"] if many else ""} for job in asked.jobs.shown(seen)]


def schedule_of(schedule: Any) -> dict[str, Any]:
    """Return a schedule without its item, which is a message."""
    return {
        name: getattr(schedule, name)
        for name in ("name", "when", "timezone", "missed", "next", "last", "count", "paused")
    }


def workers_of(seen: Seen) -> list[dict[str, Any]]:
    """Return what works on a queue."""
    return [as_data(worker) for worker in getattr(seen.sample.statistics, "workers", ())]


def _state_of(state: State) -> dict[str, Any]:
    return {**state._asdict(), "severity": state.severity.name.lower()}


def _matches(seen: Seen, wanted: str) -> bool:
    return wanted in str(seen.address).casefold() or any(wanted in one.text.casefold() for one in seen.sample.states)


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value


def _paged(asked: Asked, rows: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the rows of the page that is asked for, and which page that is."""
    found = list(rows)
    pages = max(1, math.ceil(len(found) / ROWS))
    page = asked.number("page", 1, most=pages)
    return found[(page - 1) * ROWS : page * ROWS], {"found": len(found), "page": page, "pages": pages}
