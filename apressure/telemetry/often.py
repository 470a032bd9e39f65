"""What is seen at most looks at a queue."""

from __future__ import annotations

from collections import deque
from typing import Final

_WINDOW: Final = 60.0
"""Seconds of looks that count."""

_FEW: Final = 4
"""So many looks are needed to say what is seen often."""


class Often:
    """Tells whether something was seen at most looks of the last minute: what comes and goes between two looks counts.

    Nothing is said before there were looks for a minute.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, bool]] = deque()

    def look(self, now: float, seen: bool) -> bool:
        """Note a look; return whether it was seen at half of them, or every other time."""
        looks = self._looks
        looks.append((now, seen))
        while len(looks) > _FEW and now - looks[1][0] >= _WINDOW:
            looks.popleft()
        often = 2 * sum(seen for _, seen in looks) >= len(looks) - 1
        return often and len(looks) >= _FEW and now - looks[0][0] >= _WINDOW

    def clear(self) -> None:
        """Begin anew."""
        self._looks.clear()
