"""What the statistics of all kinds of queue say: displays and metrics read nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from apressure.concurrency.blocked import NOT_BLOCKED, Blocked, BlockedSeconds
from apressure.core.limits import UNLIMITED, Limits
from apressure.core.workers import WaitingProducer, WorkerStatistics


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """A snapshot of a queue: what every kind of queue says.

    Attributes:
        name: The queue's name.
        length: Messages that wait.
        in_flight: Messages that were received, and neither acknowledged nor given back.
        waiting_putters: Tasks of this queue object that are putting.
        waiting_receivers: Tasks of this queue object that are getting or receiving.
        blocked: For how long operations of this object were blocked, and by what.
        put_count: Messages that this object has put.
        received_count: Messages that it has received or got, redelivered ones and those read ahead included.
        deleted_count: Messages that it has settled for good: acknowledged, got, moved on, purged; tasks that ended.
    """

    name: str
    length: int
    in_flight: int
    waiting_putters: int
    waiting_receivers: int
    blocked: BlockedSeconds = NOT_BLOCKED
    put_count: int = 0
    received_count: int = 0
    deleted_count: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BoundedStatistics(Statistics):
    """A snapshot of a queue of a kind that has bounds, an end, pauses and dead letters.

    Attributes:
        bound: The most messages that may wait; 0 for no bound.
        closed: Whether the queue is closed.
        paused: Whether it is paused: consumers of apressure get nothing.
        paused_since: Since when, in UTC; None if it is not, or that is not known.
        dead_lettered_count: Messages that this object has moved to the dead letters.
        replaced_count: Of `put_count`, the messages that have taken the place of one that waited: `put(replace=True)`.
        delayed: Messages that wait for their time. They count towards the bound, and not in `length`.
        next_due: Seconds until the first of them is due, 0 if it is overdue; None if there is none.
        expired: Messages that have expired since the queue was created: they became dead letters instead of being
            delivered. Those that no consumer has come upon are not counted yet.
        schedules: How many schedules it has; 0 where this object cannot see them.
        dedup_ids: How many dedup ids it remembers, of which some may not count any more; 0 where this object cannot see
            them.
        limits: How many messages it hands out: its rate, its concurrency, how many of a key, and whether it is held.
        parked: Of `length`, messages in the line of their key: see `set_key`.
        workers: What works on it, where this object can see that.
        waiting_producers: Queue objects, of all clients, whose puts have waited for room for more than a second, the
            one that has waited longest first; where this object can see that. Each tells it every 15 to 20 seconds.
    """

    bound: int
    closed: bool
    paused: bool
    dead_lettered_count: int = 0
    replaced_count: int = 0
    delayed: int = 0
    next_due: float | None = None
    expired: int = 0
    schedules: int = 0
    dedup_ids: int = 0
    limits: Limits = UNLIMITED
    parked: int = 0
    paused_since: datetime | None = None
    workers: tuple[WorkerStatistics, ...] = ()
    waiting_producers: tuple[WaitingProducer, ...] = ()

    @property
    def room(self) -> int | None:
        """How many more messages may be put; None if there is no bound."""
        return max(0, self.bound - self._occupied) if self.bound else None

    @property
    def _occupied(self) -> int:
        """How many messages count towards the bound. Those in flight do not: a consumer has made room."""
        return self.length + self.delayed


def figures(
    name: str, looked: Any, waiting: tuple[int, int], blocked: Blocked, counts: Mapping[str, int]
) -> dict[str, Any]:
    """Return what every kind says in the same words: fields of `BoundedStatistics`, but for `in_flight`.

    Args:
        name: The queue's name.
        looked: What a look at it told: `waiting`, `bound`, `closed`, `paused`, `delayed`, `next_due` (milliseconds),
            `expired`, and perhaps `limits` and `parked`.
        waiting: How many tasks of the object are putting, and how many are getting or receiving.
        blocked: For how long its operations waited.
        counts: What it has done.
    """
    putters, receivers = waiting
    return {
        "name": name, "length": looked.waiting, "bound": looked.bound, "closed": looked.closed,
        "paused": bool(looked.paused), "paused_since": moment_of(looked.paused),
        "delayed": looked.delayed, "next_due": seconds_of(looked.next_due),
        "expired": looked.expired, "limits": getattr(looked, "limits", UNLIMITED),
        "parked": getattr(looked, "parked", 0),
        "waiting_putters": putters, "waiting_receivers": receivers, "blocked": blocked.seconds(), **counts,
    }  # fmt: skip


def seconds_of(milliseconds: int | None) -> float | None:
    """Return a time in seconds."""
    return None if milliseconds is None else milliseconds / 1000


def moment_of(milliseconds: int) -> datetime | None:
    """Return a time that is told in milliseconds since 1970; None for 0 and 1, which say that it is not known."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds > 1 else None


OWN: Final = (
    "waiting_putters", "waiting_receivers", "blocked", "late_renewals", "put_count", "received_count",
    "deleted_count", "dead_lettered_count", "replaced_count",
)  # fmt: skip
"""What statistics say of the queue object, and not of the queue."""
