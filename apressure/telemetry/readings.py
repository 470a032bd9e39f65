"""Turns samples into values of metrics."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final

from apressure.telemetry.families import (
    BLOCKED,
    BOUND,
    CONCURRENCY,
    CONSUMERS,
    COUNTS,
    DRAIN,
    EXISTS,
    HELD,
    HELD_SINCE,
    HOLDER,
    LOCAL,
    OF_A_KEY,
    OLDEST,
    PRODUCER_WAIT,
    PRODUCERS,
    RATE,
    SAMPLED,
    SCHEDULE_LAST,
    SCHEDULE_NEXT,
    SCHEDULE_PUTS,
    TOTALS,
    UP,
    WAITING_PRODUCERS,
    WANTED,
    WORKERS,
    Reading,
)
from apressure.telemetry.sampler import Sample, label
from apressure.telemetry.states import consumers_of

_MOST_HOLDERS: Final = 100
"""As many clients of a queue are shown by name."""
_MOST_SCHEDULES: Final = 100
"""As many of its schedules are shown."""


def readings_of(key: tuple[str, str], samples: Iterable[Sample | None], oldest: float, own: bool) -> Iterator[Reading]:
    """Yield the values of one queue.

    Args:
        key: Its labels.
        samples: What each object of this queue saw last.
        oldest: Samples from before this time, in seconds since 1970, are out of date.
        own: Yield what the queue objects of this process do, too.
    """
    looked = [sample for sample in samples if sample is not None]
    if not looked:
        return  # it was added just now
    good = [sample for sample in looked if not sample.error and sample.at >= oldest]
    yield Reading(UP, key, float(len(good) == len(looked)))
    if not good:
        return
    latest = max(good, key=lambda sample: sample.at)
    yield Reading(SAMPLED, key, latest.at)
    yield Reading(EXISTS, key, float(latest.statistics is not None))
    if latest.need is not None:
        yield Reading(WANTED, key, float(latest.need.wanted_workers))
    if latest.statistics is not None:
        yield from _of_queue(key, latest)
    if own:
        yield from _own(key, [sample.statistics for sample in good if sample.statistics is not None])


def _of_queue(key: tuple[str, str], sample: Sample) -> Iterator[Reading]:
    statistics = sample.statistics
    for field, family in (COUNTS | TOTALS).items():
        if (value := getattr(statistics, field, None)) is not None:
            yield Reading(family, key, float(value))
    if bound := getattr(statistics, "bound", 0):
        yield Reading(BOUND, key, float(bound))
    if (limits := getattr(statistics, "limits", None)) is not None:
        yield Reading(HELD, key, limits.held_for)
        if limits.rate is not None:
            yield Reading(RATE, key, limits.rate.count / limits.rate.per)
        if limits.concurrency is not None:
            yield Reading(CONCURRENCY, key, float(limits.concurrency))
        if limits.key is not None and limits.key.at_most is not None:
            yield Reading(OF_A_KEY, key, float(limits.key.at_most))
    for value, family in ((sample.oldest, OLDEST), (sample.drain, DRAIN)):
        if value is not None:
            yield Reading(family, key, value)
    yield from _clients(key, statistics)
    for schedule in sample.schedules[:_MOST_SCHEDULES]:
        labels = (*key, label(schedule.name))
        yield Reading(SCHEDULE_PUTS, labels, float(schedule.count))
        if schedule.last is not None:
            yield Reading(SCHEDULE_LAST, labels, schedule.last)
        if schedule.next is not None and not schedule.paused and not getattr(statistics, "closed", False):
            yield Reading(SCHEDULE_NEXT, labels, schedule.next)


def _clients(key: tuple[str, str], statistics: Any) -> Iterator[Reading]:
    """Yield how many clients a queue has, and who has its roles."""
    if hasattr(statistics, "workers"):
        yield Reading(WORKERS, key, float(len(statistics.workers)))
        producers = statistics.waiting_producers
        yield Reading(WAITING_PRODUCERS, key, float(len(producers)))
        yield Reading(PRODUCER_WAIT, key, producers[0].waited if producers else 0.0)
    if (consumers := consumers_of(statistics)) is not None:
        yield Reading(CONSUMERS, key, float(consumers))
    if not hasattr(statistics, "members"):
        return
    producer, consumer, members = statistics.producer, statistics.consumer, statistics.members
    yield Reading(PRODUCERS, key, float(producer.state != "free"))
    holders = [("producer", producer.state, producer)]
    holders += [("consumer", "shared", member) for member in members] or [("consumer", consumer.state, consumer)]
    shown = set()
    for role, state, client in itertools.islice(holders, _MOST_HOLDERS):
        holder = label(client.holder or "")
        if state == "free" or (role, holder) in shown:
            continue
        shown.add((role, holder))
        yield Reading(HOLDER, (*key, role, state, holder), 1.0)
        if client.since is not None:
            yield Reading(HELD_SINCE, (*key, role, holder), client.since.timestamp())


def _own(key: tuple[str, str], found: list[Any]) -> Iterator[Reading]:
    """Yield the sums over all objects of a queue in this process."""
    for field, family in LOCAL.items():
        values = [value for one in found if (value := getattr(one, field, None)) is not None]
        if values:
            yield Reading(family, key, float(sum(values)))
    blocked = [value for one in found if (value := getattr(one, "blocked", None)) is not None]
    for cause in dataclasses.fields(blocked[0]) if blocked else ():
        yield Reading(BLOCKED, (*key, cause.name), sum(getattr(one, cause.name) for one in blocked))
