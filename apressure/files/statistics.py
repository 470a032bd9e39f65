"""A snapshot of a queue in a directory."""

from __future__ import annotations

import dataclasses
from datetime import datetime

from apressure.core.statistics import BoundedStatistics


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FileQueueStatistics(BoundedStatistics):
    """A snapshot of a `FileQueue`: what `BoundedStatistics` says, and more. Its bound is that of this object.

    Attributes:
        path: Its directory.
        unfinished: Messages that are being written, or whose writer died.
        oldest: When the oldest message was put, as its name says; None if there is none.
        next_expiry: Seconds until the next lease ends, and its message may be received again; None if there is none.
        notified: Whether the kernel tells of changes; otherwise the directory is listed repeatedly.
    """

    path: str
    unfinished: int
    oldest: datetime | None
    next_expiry: float | None
    notified: bool
