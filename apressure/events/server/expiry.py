"""Puts back the events of a queue whose claims expire, at the moment when they do."""

from __future__ import annotations

import asyncio
import logging

from apressure.concurrency import background
from apressure.events.engine.steps import EventSteps
from apressure.exceptions import PressureError

logger = logging.getLogger("apressure.events.server")


class Expiry:
    """Looks for expired claims of a queue when the next one is due.

    Args:
        steps: The queue's steps.
    """

    def __init__(self, steps: EventSteps) -> None:
        self._steps = steps
        self._look: asyncio.TimerHandle | None = None
        self._due = 0.0  # when that is, since uvloop's handles do not always know it

    @property
    def is_due(self) -> bool:
        """Whether a claim may expire."""
        return self._look is not None

    def look_in(self, seconds: float) -> None:
        """Put back what has expired, in so many seconds, unless that happens earlier anyhow."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if self._look is not None:
            if self._due <= due:
                return
            self._look.cancel()
        self._due = due
        self._look = loop.call_at(due, self._look_now)

    def close(self) -> None:
        """Look no more: the server stops."""
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _look_now(self) -> None:
        self._look = None
        background.start(self._heal(), "putting expired events back")

    async def _heal(self) -> None:
        try:
            _, due = await self._steps.heal()
        except PressureError as error:
            logger.warning("expired events cannot be put back", extra={"queue": self._steps.name, "reason": str(error)})
            due = 1000
        if due is not None:
            self.look_in(max(due / 1000, 0.01))
