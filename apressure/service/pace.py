"""A token bucket: at most so many beginnings a second, with a burst of one second."""

from __future__ import annotations

import asyncio
from typing import Final

_TOLERANCE: Final = 1e-6
"""Tokens: a timer may be early by the resolution of the clock, and sums of floats are a little too small."""


class Pace:
    """Says when the next one may begin.

    Args:
        rate: How many may begin a second. As many may begin at once after a second without any.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._most = max(1.0, rate)
        self._tokens = self._most
        self._at = 0.0

    async def turn(self) -> None:
        """Wait until one more may begin, and count it. Cancelled, nothing is counted."""
        while (missing := 1.0 - self._fill()) > _TOLERANCE:  # noqa: ASYNC110 (nothing but time fills it)
            await asyncio.sleep(missing / self._rate)
        self._tokens -= 1.0

    def count(self) -> None:
        """Count one that could not wait. The next ones wait longer for it."""
        self._tokens -= 1.0

    def _fill(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._at:
            self._tokens = min(self._most, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return self._tokens
