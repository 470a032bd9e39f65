"""A snapshot of a queue on an okq server."""

from __future__ import annotations

import dataclasses

from apressure.core.statistics import Statistics


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RemoteEventStatistics(Statistics):
    """A snapshot of a `RemoteEventQueue`: what `Statistics` says, and the rest of QSTATUS.

    Attributes:
        consumers: Clients that are registered.
        late_renewals: As in `EventQueueStatistics`.
    """

    consumers: int
    late_renewals: int = 0
