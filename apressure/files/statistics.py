"""What a queue in a directory looks like at one moment: immutable, and the only thing that displays read."""

from __future__ import annotations

import dataclasses
from datetime import datetime


@dataclasses.dataclass(frozen=True, slots=True)
class FileQueueStatistics:
    """A snapshot of a `FileQueue`.

    Attributes:
        name: The queue's name.
        path: Its directory.
        length: Messages that wait.
        in_flight: Messages that were received, and neither deleted nor given back.
        unfinished: Messages that are being written, or whose publisher died while it wrote them.
        capacity: The most messages that may be there, for this object; None for any number.
        oldest: When the oldest message that is there was published, as its name says; None where there is none.
        next_expiry: When the next message comes again that was received; None where there is none.
        published: Messages that this object has published.
        received: Messages that it has received, also those that came again.
        deleted: Messages that it has deleted.
        buried: Messages that it has moved to the dead-letter queue.
        waiting_publishers: Tasks that wait for room in this object.
        waiting_receivers: Tasks that wait for a message in it.
        notified: The kernel tells of changes; otherwise the directory is listed again and again.
    """

    name: str
    path: str
    length: int
    in_flight: int
    unfinished: int
    capacity: int | None
    oldest: datetime | None
    next_expiry: datetime | None
    published: int
    received: int
    deleted: int
    buried: int
    waiting_publishers: int
    waiting_receivers: int
    notified: bool
