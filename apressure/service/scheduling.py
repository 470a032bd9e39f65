"""A service drives the schedules of its queue: it puts the items that are due, with all others that do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

from apressure.concurrency import background
from apressure.concurrency.backoff import Backoff
from apressure.core.schedules import UNAVAILABLE
from apressure.exceptions import PressureError
from apressure.protocols import Scheduled

logger = logging.getLogger("apressure")

_PAUSES: Final = Backoff(1.0, 60.0)
"""The pauses after a failure."""


@contextlib.asynccontextmanager
async def driving(queue: Any) -> AsyncIterator[None]:
    """Drive the schedules of a queue during the block, if it is of a kind that has some."""
    if not isinstance(queue, Scheduled):
        yield
        return
    task = background.start(drive(queue), "driving schedules")
    running = {task}
    task.add_done_callback(running.discard)
    try:
        yield
    finally:
        task.cancel()
        await background.join(running)


async def drive(queue: Scheduled, for_ever: bool = False) -> None:
    """Drive the schedules of a queue, until that fails for good: its server has none, or the rights are missing.

    With `for_ever`, the error is raised.
    """
    failures = 0
    while True:
        try:
            pause = await queue.drive_schedules()
            failures = 0
        except PressureError as error:
            if not error.temporary:
                if for_ever:
                    raise
                # Where there are none to drive, this service handles items, and others drive them.
                level = logging.DEBUG if isinstance(error, UNAVAILABLE) else logging.WARNING
                logger.log(level, "the schedules of %r are not driven here: %s", queue, error)
                return
            pause = _PAUSES.pause(failures)
            failures += 1
        await asyncio.sleep(pause)
