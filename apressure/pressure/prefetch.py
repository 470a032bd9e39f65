"""How many messages a consumer asks for, and when."""

from __future__ import annotations

import asyncio

from apressure.pressure.leases.receiving import Receiving

MAX_PREFETCH = 1000
PREFETCH_SECONDS = 0.05
"""An adaptive prefetch takes about as many messages as the body of the loop handles in this time."""

READ_AHEAD = 16
"""From so many on, half of what is prefetched is asked for while the body works on the other half."""


class Prefetch:
    """How many messages a consumer has in hand: as many as its body handles in a moment, never more than the bound.

    Args:
        receiving: What asks for them.
        fixed: This many, however quick the body is; None to adapt to it.
        bound: The queue's bound; 0 for none.

    Attributes:
        half: Where this many are left in the buffer, the other half is due; 0 where all are asked for at once.
    """

    def __init__(self, receiving: Receiving, fixed: int | None, bound: int) -> None:
        self._receiving = receiving
        self._fixed = fixed
        self._most = min(MAX_PREFETCH, bound) if bound > 0 else MAX_PREFETCH
        self._chunk = 1
        self._handled = 0  # how many had been handled when the body began with the chunk,
        self._since = 0.0  # and when that was
        self.half = 0

    def plan(self, handled: int) -> int:
        """Decide how many to ask for, given how many the body has handled so far; returns that."""
        if self._fixed is not None:
            self._chunk = min(self._fixed, self._most)
        elif done := handled - self._handled:
            elapsed = asyncio.get_running_loop().time() - self._since
            quick = int(done * PREFETCH_SECONDS / elapsed) if elapsed > 0 else self._most
            more = self._chunk * 2 if self._receiving.full else self._chunk
            self._chunk = max(1, min(self._most, more, quick))
        self.half = self._chunk // 2 if self._chunk >= READ_AHEAD else 0
        return self.half or self._chunk

    def begin(self) -> None:
        """The body begins with a chunk: see how quick it is, and ask for the next half in good time."""
        self._handled, self._since = self._receiving.handed_out - 1, asyncio.get_running_loop().time()
        if self.half and self._receiving.full:  # otherwise the queue was empty behind them
            self._receiving.ahead(self.half)
