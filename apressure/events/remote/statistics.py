"""A snapshot of a queue on an okq server."""

from __future__ import annotations

import dataclasses

from apressure.concurrency.blocked import NOT_BLOCKED, BlockedSeconds


@dataclasses.dataclass(frozen=True, slots=True)
class RemoteEventStatistics:
    """A snapshot of a `RemoteEventQueue`: what our server tells by QLOOK, or a released okq by QSTATUS.

    Attributes:
        name: The queue's name.
        length: Events that wait.
        in_flight: Events that were received, and neither acknowledged nor given back.
        consumers: Clients that are registered.
        bound: The most events that may wait; 0 for no bound.
        closed: Whether the queue is closed.
        paused: Whether it is paused.
        dead_letters: Events that failed too often in the hands of `EventQueue`s on the server's Redis.
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
    bound: int = 0
    closed: bool = False
    paused: bool = False
    dead_letters: int = 0
    blocked: BlockedSeconds = NOT_BLOCKED
    late_renewals: int = 0
    put_count: int = 0
    received_count: int = 0
    deleted_count: int = 0
