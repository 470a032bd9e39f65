"""What a queue object has done so far, for its statistics."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True)
class Counts:
    """Counts the messages of one queue object, in this process. Servers count nothing for okq and Blueque.

    Attributes:
        put_count: Messages put.
        replaced_count: Of those, the ones that have taken the place of a message that waited.
        received_count: Messages received or got, redelivered ones and those read ahead included.
        deleted_count: Messages settled for good: acknowledged, got, moved on by `pipe`, purged; tasks that have ended.
        dead_lettered_count: Messages moved to the dead letters.
    """

    put_count: int = 0
    replaced_count: int = 0
    received_count: int = 0
    deleted_count: int = 0
    dead_lettered_count: int = 0

    def fields(self) -> dict[str, int]:
        """Return the counts, by the names that they have in statistics."""
        return dataclasses.asdict(self)
