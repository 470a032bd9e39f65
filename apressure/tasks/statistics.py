"""A snapshot of a queue of tasks."""

from __future__ import annotations

import dataclasses

from apressure.core.statistics import BoundedStatistics


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatistics(BoundedStatistics):
    """A snapshot of a `TaskQueue`: what `BoundedStatistics` says, and more. In flight is what nodes have.

    Attributes:
        scheduled: Tasks that wait for their time; `delayed` is the same figure.
        started: Tasks that run. Entries that another program has left behind do not count (1,000 are looked at).
        complete: Tasks that have completed, and whose results are kept.
        dead_letters: Tasks that have failed.
        consumers: Listeners that are registered, those of the released blueque included.
        next_expiry: Seconds until the next lease may end; None if no node of apressure has a task.
        late_renewals: As in `EventQueueStatistics`.
    """

    scheduled: int
    started: int
    complete: int
    dead_letters: int
    consumers: int
    next_expiry: float | None
    late_renewals: int = 0
