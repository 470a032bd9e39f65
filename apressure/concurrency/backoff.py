"""How long to pause before the next try: each pause is longer than the one before, up to a limit, and jittered."""

from __future__ import annotations

import asyncio
import contextlib
import random


class Backoff:
    """Exponential backoff with jitter. It keeps no state: the caller counts its failures.

    Args:
        first: Seconds of the first pause.
        most: Seconds of the longest pause.
        factor: How many times longer each pause is than the one before.
    """

    def __init__(self, first: float, most: float, factor: float = 2.0) -> None:
        self._first = first
        self._most = most
        self._factor = factor

    def pause(self, failures: int) -> float:
        """Return the seconds to pause after so many failures before this one.

        The jitter takes away up to half, so that clients that failed together do not try again together.
        """
        longest: float = min(self._most, self._first * self._factor ** min(failures, 60))
        return longest * random.uniform(0.5, 1.0)


async def pause_until(event: asyncio.Event, seconds: float) -> None:
    """Pause for so many seconds, or until the event is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
