"""A snapshot of a queue of tasks."""

from __future__ import annotations

import dataclasses

from apressure.concurrency.blocked import NOT_BLOCKED, BlockedSeconds


@dataclasses.dataclass(frozen=True, slots=True)
class TaskStatistics:
    """A snapshot of a `TaskQueue`.

    Attributes:
        name: The queue's name.
        length: Tasks that wait.
        bound: The most tasks that may wait; 0 for no bound.
        closed: Whether the queue is closed.
        paused: Whether nodes of apressure reserve nothing at present.
        scheduled: Tasks that wait for their time.
        in_flight: Tasks that listeners have reserved or started.
        started: Tasks that run. Entries that another program has left behind do not count (1,000 are looked at).
        complete: Tasks that have completed, and whose results are kept.
        dead_letters: Tasks that have failed.
        listeners: Listeners that are registered, those of the released blueque included.
        next_expiry: Seconds until the next lease may end; None if no node of apressure has a task.
        waiting_putters: Tasks of this program that are putting.
        waiting_receivers: Tasks of this program that are receiving.
        blocked: For how long operations of this object were blocked, and by what.
        late_renewals: How many renewals of leases on this queue came more than a third of the lease too late, in this
            client: the machine, a handler that holds the GIL or the network delayed them.
        put_count: Tasks that this object has put or scheduled.
        received_count: Tasks that it has reserved, redelivered ones and those read ahead included.
        deleted_count: Tasks that it has completed, failed or purged before they ran.
        dead_lettered_count: Tasks that it has failed, or found to be tried too often.
    """

    name: str
    length: int
    bound: int
    closed: bool
    paused: bool
    scheduled: int
    in_flight: int
    started: int
    complete: int
    dead_letters: int
    listeners: int
    next_expiry: float | None
    waiting_putters: int
    waiting_receivers: int
    blocked: BlockedSeconds = NOT_BLOCKED
    late_renewals: int = 0
    put_count: int = 0
    received_count: int = 0
    deleted_count: int = 0
    dead_lettered_count: int = 0
