"""How many deliveries a consumer asks for at a time."""

from __future__ import annotations

import asyncio
import math
from typing import Final

QUICK: Final = 0.05
"""Seconds: a chunk that the program handles in less may be followed by one of twice its size."""


class Chunk:
    """As many deliveries as the program handles in a moment.

    Args:
        fixed: Always so many; None to adapt to how quick the program is.
        most: The most that it grows to.
        one_by_one: After a chunk that took long, ask for one delivery; otherwise for half as many.

    Attributes:
        fixed: As given.
        size: How many to ask for.
        ask_below: The next chunk is asked for when so many or fewer of this one are left; -1 for when none are.
        turn_at: When the event loop has to turn, or more has to be looked at, by the clock of the leases.
    """

    def __init__(self, fixed: int | None, most: int = 1, *, one_by_one: bool = False) -> None:
        self.fixed = fixed
        self.size = fixed or 1
        self.ask_below = -1
        self.turn_at = math.inf
        self._most = most
        self._one_by_one = one_by_one
        self._asked = 0.0

    def adapt(self) -> int:
        """Return how many to ask for now, by how quickly the program has handled those before."""
        now = asyncio.get_running_loop().time()
        if self.fixed is None and self._asked:
            if now - self._asked < QUICK:
                self.size = min(self._most, 2 * self.size)
            else:
                self.size = 1 if self._one_by_one else max(1, self.size // 2)
        self._asked = now
        return self.size

    def waited(self) -> None:
        """Nothing was there: the time until the next chunk says nothing about how quick the program is."""
        self._asked = 0.0
