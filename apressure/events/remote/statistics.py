"""A snapshot of a queue on an okq server."""

from __future__ import annotations

import dataclasses

from apressure.concurrency.blocked import NOT_BLOCKED, BlockedSeconds


@dataclasses.dataclass(frozen=True, slots=True)
class RemoteEventStatistics:
    """A snapshot of a `RemoteEventQueue`: what QSTATUS tells.

    Attributes:
        name: The queue's name.
        length: Events that wait.
        in_flight: Events that were received, and neither acknowledged nor given back.
        consumers: Clients that are registered.
        waiting_putters: Tasks of this object that are putting.
        waiting_receivers: Tasks of this object that are receiving.
        blocked: For how long operations of this object were blocked, and by what.
        late_renewals: As in `EventQueueStatistics`.
        put_count: Events that this object has put.
        received_count: Events that it has received or got, redelivered ones and those read ahead included.
        deleted_count: Events that it has acknowledged, got or purged.
    """

    name: str
    length: int
    in_flight: int
    consumers: int
    waiting_putters: int
    waiting_receivers: int
    blocked: BlockedSeconds = NOT_BLOCKED
    late_renewals: int = 0
    put_count: int = 0
    received_count: int = 0
    deleted_count: int = 0
