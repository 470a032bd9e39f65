"""What a queue knows of those that work on it."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Literal

WorkerKind = Literal["serve", "consumer", "runner", "spark"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatistics:
    """What works on a queue, as it told a few seconds ago.

    Attributes:
        id: Its id: what works in one process, on any number of queues, has the same.
        kind: `serve` (and `pipe`, `apressure worker`), a `consumer()` block, a `Runner` or a Spark query.
        handler: The name of its handler; "" where there is none.
        host: The name of its machine.
        pid: Its process.
        version: Its version of apressure.
        since: When it began.
        seen: When it told this.
        concurrency: How many messages it handles at a time, at most; 0 where that is not limited.
        in_hand: Messages that it has received and not settled.
        oldest: For how many seconds the longest of its handlers has run; None if none runs.
        handled: Messages whose handler has returned.
        failed: Attempts that have failed.
        busy: Seconds that its handlers have taken, in all.
        draining: It receives no more, and ends when what it has in hand is settled.
    """

    id: str
    kind: WorkerKind
    handler: str
    host: str
    pid: int
    version: str
    since: datetime
    seen: datetime
    concurrency: int
    in_hand: int
    oldest: float | None
    handled: int
    failed: int
    busy: float
    draining: bool
