"""What was asked about a queue a moment ago: open pages ask again every two seconds."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SECONDS: Final = 10.0
"""For which an answer counts."""


class Recent(Generic[T]):
    """Keeps answers for some seconds."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, tuple[float, T]] = {}

    async def of(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer that is kept, or ask. Cancelled, or where that raises, nothing is kept."""
        now = time.monotonic()
        self._answers = {one: kept for one, kept in self._answers.items() if now - kept[0] < SECONDS}
        if key in self._answers:
            return self._answers[key][1]
        answer = await ask()
        self._answers[key] = now, answer
        return answer
