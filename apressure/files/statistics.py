"""A snapshot of a queue in a directory."""

from __future__ import annotations

import dataclasses
from datetime import datetime

from apressure.concurrency.blocked import NOT_BLOCKED, BlockedSeconds


@dataclasses.dataclass(frozen=True, slots=True)
class FileQueueStatistics:
    """A snapshot of a `FileQueue`.

    Attributes:
        name: The queue's name.
        path: Its directory.
        length: Messages that wait.
        bound: The most messages that may be there, for this object; 0 for no bound.
        closed: Whether the queue is closed.
        paused: Whether it is paused: consumers of apressure get nothing.
        in_flight: Messages that were received, and neither acknowledged nor given back.
        unfinished: Messages that are being written, or whose writer died.
        oldest: When the oldest message was put, as its name says; None if there is none.
        next_expiry: When the next lease ends, and its message may be received again; None if there is none.
        put_count: Messages that this object has put.
        received_count: Messages that it has received, redelivered ones included.
        deleted_count: Messages that it has acknowledged or purged.
        dead_lettered_count: Messages that it has moved to the dead-letter queue.
        waiting_putters: Tasks of this object that wait for room.
        waiting_receivers: Tasks of this object that wait for a message.
        notified: Whether the kernel tells of changes; otherwise the directory is listed repeatedly.
        blocked: For how long operations of this object were blocked, and by what.
    """

    name: str
    path: str
    length: int
    bound: int
    closed: bool
    paused: bool
    in_flight: int
    unfinished: int
    oldest: datetime | None
    next_expiry: datetime | None
    put_count: int
    received_count: int
    deleted_count: int
    dead_lettered_count: int
    waiting_putters: int
    waiting_receivers: int
    notified: bool
    blocked: BlockedSeconds = NOT_BLOCKED
