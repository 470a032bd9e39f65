"""A timeout that does not count the time for which the process stood still."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

_TICKS: Final = 100


@contextlib.asynccontextmanager
async def awake_timeout(seconds: float) -> AsyncIterator[None]:
    """End the block with TimeoutError after so many seconds in which the event loop turned.

    A process that stood still (its machine paused, it was stopped, its loop was blocked) finds the end of a timeout and
    the answer that it waited for in the same turn. So each hundredth of the time counts when a timer has noticed it.
    """
    loop, ticks = asyncio.get_running_loop(), 0
    timer: asyncio.TimerHandle

    def tick() -> None:
        nonlocal ticks, timer
        ticks += 1
        if ticks < _TICKS:
            timer = loop.call_later(seconds / _TICKS, tick)
        else:
            timeout.reschedule(loop.time())

    timer = loop.call_later(seconds / _TICKS, tick)
    async with asyncio.timeout(None) as timeout:
        try:
            yield
        finally:
            timer.cancel()
