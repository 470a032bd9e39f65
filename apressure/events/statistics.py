"""A snapshot of a queue of events."""

from __future__ import annotations

import dataclasses

from apressure.concurrency.blocked import NOT_BLOCKED, BlockedSeconds


@dataclasses.dataclass(frozen=True, slots=True)
class EventQueueStatistics:
    """A snapshot of an `EventQueue`.

    Attributes:
        name: The queue's name.
        length: Events that wait.
        bound: The most events that may wait; 0 for no bound.
        closed: Whether the queue is closed.
        paused: Whether it is paused: clients of apressure get nothing. An okq does not know of that.
        in_flight: Events that were received, and neither acknowledged nor given back.
        consumers: Consumers that are registered, and have given a sign of life in the last 30 seconds.
        dead_letters: Events that were delivered too often.
        next_expiry: Seconds until the next lease may end, at most 10; None if nothing is in flight.
        waiting_putters: Tasks of this object that are putting.
        waiting_receivers: Tasks of this object that are receiving.
        blocked: For how long operations of this object were blocked, and by what.
        late_renewals: How many renewals of leases on this queue came more than a third of the lease too late, in this
            client: the machine, a handler that holds the GIL or the network delayed them.
        put_count: Events that this object has put.
        received_count: Events that it has received or got, redelivered ones and those read ahead included.
        deleted_count: Events that it has acknowledged, got, moved on or purged.
        dead_lettered_count: Events that it has moved to the dead letters.
    """

    name: str
    length: int
    bound: int
    closed: bool
    paused: bool
    in_flight: int
    consumers: int
    dead_letters: int
    next_expiry: float | None
    waiting_putters: int
    waiting_receivers: int
    blocked: BlockedSeconds = NOT_BLOCKED
    late_renewals: int = 0
    put_count: int = 0
    received_count: int = 0
    deleted_count: int = 0
    dead_lettered_count: int = 0
