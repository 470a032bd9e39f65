"""The metrics: what each one means, its unit and its labels. `docs/reference/metrics.md` repeats this table."""

from __future__ import annotations

import dataclasses
import enum
from typing import Final

BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0,
)  # fmt: skip
"""Seconds: the upper limits of the buckets of durations."""


class Kind(enum.Enum):
    """Whether a metric goes up and down."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


_QUEUE: Final = ("queue", "kind")
_HANDLER: Final = (*_QUEUE, "handler")


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """A metric.

    Attributes:
        name: Its name for Prometheus, without `apressure_` and `_total`.
        help: What it means.
        kind: Whether it goes up and down.
        unit: Its unit for OpenTelemetry, in UCUM.
        labels: The names of its labels.
    """

    name: str
    help: str
    kind: Kind = Kind.GAUGE
    unit: str = "{message}"
    labels: tuple[str, ...] = _QUEUE

    @property
    def dotted(self) -> str:
        """Its name for OpenTelemetry, without the unit, which OpenTelemetry keeps apart."""
        name = self.name.removesuffix("_seconds") if self.unit == "s" else self.name
        name = name.removesuffix("_bytes") if self.unit == "By" else name
        return "apressure." + name.replace("_", ".", 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """A value of a metric.

    Attributes:
        family: The metric.
        labels: The values of its labels, in its order.
        value: The value; the count of observations for a histogram.
        buckets: For a histogram, how many values each bucket has by itself; the last one has no upper limit.
        sum: For a histogram, the sum of the values.
    """

    family: Family
    labels: tuple[str, ...]
    value: float
    buckets: tuple[int, ...] = ()
    sum: float = 0.0


UP: Final = Family("up", "Whether the latest look at the queue succeeded, lately enough.", unit="1")
SAMPLED: Final = Family(
    "queue_sampled_timestamp_seconds", "When the latest look at the queue began, since 1970.", unit="s"
)
EXISTS: Final = Family("queue_exists", "Whether the queue exists.", unit="1")

COUNTS: Final = {
    "length": Family("queue_messages", "Messages that wait."),
    "in_flight": Family("queue_in_flight_messages", "Messages that were received and are not settled yet."),
    "delayed": Family("queue_delayed_messages", "Messages that wait for their time."),
    "next_due": Family("queue_next_due_seconds", "When the first of these is due. Absent without one.", unit="s"),
    "expired": Family("queue_expired_messages", "Messages that have expired since the queue was created."),
    "schedules": Family("queue_schedules", "Schedules of the queue.", unit="{schedule}"),
    "dedup_ids": Family("queue_dedup_ids", "Dedup ids that the queue remembers.", unit="{id}"),
    "parked": Family("queue_parked_messages", "Of the messages that wait, those in the line of their key."),
    "dead_letters": Family("queue_dead_letter_messages", "Dead letters, of kinds that keep them beside the queue."),
    "scheduled": Family("queue_scheduled_messages", "Tasks that wait for their time."),
    "started": Family("queue_started_messages", "Tasks that run."),
    "complete": Family("queue_complete_messages", "Tasks that have completed, and whose results are kept."),
    "unfinished": Family("queue_unfinished_messages", "Messages that are being written, or whose writer died."),
    "closed": Family("queue_closed", "Whether the queue is closed.", unit="1"),
    "paused": Family("queue_paused", "Whether the queue is paused.", unit="1"),
}
"""Fields of statistics that are shown as they are."""

RATE: Final = Family("queue_rate_limit", "Messages a second that it may hand out. Absent without a rate.", unit="1")
CONCURRENCY: Final = Family("queue_concurrency_limit", "Messages that may be in flight. Absent without a limit.")
OF_A_KEY: Final = Family("queue_key_limit", "Messages of a key that may be handled at a time. Absent without a limit.")
HELD: Final = Family("queue_held_seconds", "For how long it hands out nothing; 0 if it is not held.", unit="s")
BOUND: Final = Family("queue_bound_messages", "The most messages that may wait. Absent without a bound.")
PRODUCERS: Final = Family("queue_producers", "1 if a client has the producer role.", unit="{client}")
CONSUMERS: Final = Family(
    "queue_consumers", "Clients that have or share the consumer role, or are registered.", unit="{client}"
)
WANTED: Final = Family(
    "queue_wanted_workers", "Worker processes that the queue needs. Only of an exporter.", unit="{worker}"
)
WORKERS: Final = Family(
    "queue_workers", "Services, Runners, consumers and Spark queries that work on it.", unit="{worker}"
)
WAITING_PRODUCERS: Final = Family(
    "queue_waiting_producers", "Queue objects whose puts have waited for room for over a second.", unit="{client}"
)
PRODUCER_WAIT: Final = Family(
    "queue_producer_wait_seconds", "For how long the first of their puts has waited; 0 if none waits.", unit="s"
)
HOLDER: Final = Family(
    "queue_role_holder", "1 for each client that has or shares a role.", unit="1",
    labels=(*_QUEUE, "role", "state", "holder"),
)  # fmt: skip
HELD_SINCE: Final = Family(
    "queue_role_since_timestamp_seconds", "Since when a client has or shares a role, since 1970.", unit="s",
    labels=(*_QUEUE, "role", "holder"),
)  # fmt: skip

_SCHEDULE: Final = (*_QUEUE, "schedule")
SCHEDULE_NEXT: Final = Family(
    "schedule_next_timestamp_seconds",
    "When the next occasion is, since 1970. Absent while it is paused, or its queue closed.", unit="s",
    labels=_SCHEDULE,
)  # fmt: skip
SCHEDULE_LAST: Final = Family(
    "schedule_last_timestamp_seconds", "When its item was put last, since 1970. Absent before that.", unit="s",
    labels=_SCHEDULE,
)  # fmt: skip
SCHEDULE_PUTS: Final = Family(
    "schedule_put_messages", "How often its item has been put.", Kind.COUNTER, labels=_SCHEDULE
)

TOTALS: Final = {
    "produced_messages": Family("queue_produced_messages", "Messages put so far, by all clients.", Kind.COUNTER),
    "produced_bytes": Family("queue_produced_bytes", "Their size.", Kind.COUNTER, "By"),
    "consumed_messages": Family("queue_consumed_messages", "Messages got or acknowledged so far.", Kind.COUNTER),
    "consumed_bytes": Family("queue_consumed_bytes", "Their size.", Kind.COUNTER, "By"),
}
"""Counters that the server keeps for all clients."""

OLDEST: Final = Family(
    "queue_oldest_message_age_seconds", "For how long, at least, the next message has been in the queue.", unit="s"
)
DRAIN: Final = Family(
    "queue_drain_seconds",
    "When the queue will be empty if it goes on as in the last minute; +Inf if it does not shrink.",
    unit="s",
)

LOCAL: Final = {
    "waiting_putters": Family("local_waiting_putters", "Tasks of this process that are putting.", unit="{task}"),
    "waiting_receivers": Family("local_waiting_getters", "Tasks of this process that are getting.", unit="{task}"),
    "late_renewals": Family(
        "local_late_renewals", "Renewals of leases that came over a third of the lease late.", Kind.COUNTER, "{renewal}"
    ),
    "put_count": Family("local_put_messages", "Messages that this process has put.", Kind.COUNTER),
    "received_count": Family(
        "local_received_messages", "Messages that this process has received, those read ahead included.", Kind.COUNTER
    ),
    "deleted_count": Family(
        "local_deleted_messages",
        "Messages that it has acknowledged, got, moved on or purged; ended tasks.",
        Kind.COUNTER,
    ),
    "dead_lettered_count": Family(
        "local_dead_lettered_messages", "Messages that this process has moved to the dead letters.", Kind.COUNTER
    ),
    "replaced_count": Family(
        "local_replaced_messages", "Of those put, messages that took the place of one that waited.", Kind.COUNTER
    ),
}
"""Fields of statistics about the queue objects of this process."""

BLOCKED: Final = Family(
    "local_blocked_seconds",
    "Seconds in which operations of this process waited: a full, empty, limited or paused queue, or a taken role.",
    Kind.COUNTER, "s", (*_QUEUE, "reason"),
)  # fmt: skip

HANDLED: Final = {
    "handled": Family(
        "handler_handled_messages", "Messages whose handler returned.", Kind.COUNTER, labels=_HANDLER
    ),
    "failed": Family("handler_failed_messages", "Attempts that failed.", Kind.COUNTER, labels=_HANDLER),
    "retried": Family(
        "handler_retried_messages", "Messages given back to be tried again.", Kind.COUNTER, labels=_HANDLER
    ),
    "dead_lettered": Family(
        "handler_dead_lettered_messages", "Messages given up after their last attempt.", Kind.COUNTER, labels=_HANDLER
    ),
    "redelivered": Family(
        "handler_redelivered_messages", "Messages received that had been delivered before.", Kind.COUNTER,
        labels=_HANDLER,
    ),
    "in_hand": Family("handler_in_hand_messages", "Messages received and not settled.", labels=_HANDLER),
}  # fmt: skip
"""Fields of a `Tally`."""

DURATION: Final = Family(
    "handler_duration_seconds", "How long calls of the handler took.", Kind.HISTOGRAM, "s", _HANDLER
)
FAMILIES: Final = tuple(
    {
        family.name: family
        for family in (
            UP, SAMPLED, EXISTS, *COUNTS.values(), HELD, RATE, CONCURRENCY, OF_A_KEY, BOUND, PRODUCERS, CONSUMERS,
            WANTED, WORKERS, WAITING_PRODUCERS, PRODUCER_WAIT, HOLDER, HELD_SINCE, SCHEDULE_NEXT, SCHEDULE_LAST,
            SCHEDULE_PUTS, *TOTALS.values(), OLDEST, DRAIN, *LOCAL.values(), BLOCKED, *HANDLED.values(), DURATION,
        )
    }.values()
)  # fmt: skip
"""All metrics."""
