"""A snapshot of a queue on an okq server."""

from __future__ import annotations

import dataclasses

from apressure.core.statistics import BoundedStatistics


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RemoteEventStatistics(BoundedStatistics):
    """A snapshot of a `RemoteEventQueue`: what our server tells by QLOOK, or a released okq by QSTATUS.

    A released okq has no bound, no end, no pauses and no dead letters.

    Attributes:
        consumers: Clients that are registered.
        dead_letters: Events that failed too often.
        late_renewals: As in `EventQueueStatistics`.
    """

    consumers: int
    bound: int = 0
    closed: bool = False
    paused: bool = False
    dead_letters: int = 0
    late_renewals: int = 0
