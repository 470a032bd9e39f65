"""A snapshot of a queue of events."""

from __future__ import annotations

import dataclasses

from apressure.core.statistics import BoundedStatistics


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EventQueueStatistics(BoundedStatistics):
    """A snapshot of an `EventQueue`: what `BoundedStatistics` says, and more. An okq does not know of pauses.

    Attributes:
        consumers: Consumers that are registered, and have given a sign of life in the last 30 seconds.
        dead_letters: Events that were delivered too often.
        next_expiry: Seconds until the next lease may end, at most 10; None if nothing is in flight, or on an okq
            server.
        late_renewals: How many renewals of leases on this queue came more than a third of the lease too late, in this
            client: the machine, a handler that holds the GIL or the network delayed them.
    """

    consumers: int
    dead_letters: int
    next_expiry: float | None
    late_renewals: int = 0


RemoteEventStatistics = EventQueueStatistics
"""Another name of it, for a queue on an okq server."""
