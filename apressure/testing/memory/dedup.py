"""What a queue in memory remembers of messages that were put once."""

from __future__ import annotations

import math
from collections.abc import Iterable

from apressure.core.dedup import Dedup


class StoredDedup:
    """The dedup ids of a queue. Times are those of the queue's clock, in seconds."""

    def __init__(self) -> None:
        self._records: dict[bytes, tuple[float, str]] = {}

    def __len__(self) -> int:
        return len(self._records)

    def note(self, dedup: Dedup, message_id: str, now: float) -> None:
        """A message was put."""
        ends = math.inf if dedup.window is None else now + dedup.window / 1000
        self._records[dedup.id] = ends, "" if dedup.window is not None else message_id

    def message_of(self, dedup_id: bytes) -> str:
        """Return the id of the message that was put with this id, if it counts until that is done; or nothing."""
        return self._records.get(dedup_id, (0.0, ""))[1]

    def counts(self, dedup_id: bytes, unfinished: Iterable[str], now: float) -> bool:
        """Whether a message that is put with this id now is a repeat. `unfinished`: the ids of those that are there."""
        ends, message_id = self._records.get(dedup_id, (0.0, ""))
        return message_id in unfinished if message_id else ends > now
