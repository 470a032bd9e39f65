"""How long to pause before the next try: each pause is longer than the one before, up to a limit, and jittered."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random

from apressure import validation


@dataclasses.dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow: how long to wait before the next try.

    Args:
        first: Seconds of the first pause.
        most: Seconds of the longest pause, but for the first one.
        factor: How many times longer each pause is than the one before; 1 for pauses of one length.
        jitter: Take a random part of up to a half off each pause, so that those who failed together do not try again
            together.

    Raises:
        TypeError, ValueError: An argument is invalid.

    Example:
        >>> await serve(handle, queue, retry=Backoff(first=5.0, most=3600.0, factor=3.0))
    """

    first: float = 1.0
    most: float = 60.0
    factor: float = 2.0
    jitter: bool = True

    def __post_init__(self) -> None:
        validation.seconds(self.first, "first")
        validation.seconds(self.most, "most")
        validation.number(self.factor, "factor", least=1.0)
        if not isinstance(self.jitter, bool):
            raise TypeError(f"jitter must be True or False, not {type(self.jitter).__name__}")

    def pause(self, failures: int) -> float:
        """Return the seconds to pause after so many failures before this one."""
        longest: float = min(max(self.most, self.first), self.first * self.factor ** min(failures, 60))
        return longest * random.uniform(0.5, 1.0) if self.jitter else longest


async def pause_until(event: asyncio.Event, seconds: float | None) -> None:
    """Pause for so many seconds, None for any number, or until the event is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
