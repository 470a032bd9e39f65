"""Mends a queue that an okq has left torn: it died after it stored an event's contents and before it pushed the id."""

from __future__ import annotations

from apressure.events.engine.steps import EventSteps


class Mender:
    """Looks at a queue now and then, and puts events back that are in no list.

    Args:
        steps: The queue's steps.

    Attributes:
        steps: As given.
        suspicious: The latest look found contents without an id: an okq has died, or is in the middle of a push.
    """

    def __init__(self, steps: EventSteps) -> None:
        self.steps = steps
        self.suspicious = False

    async def look(self) -> int:
        """Look at the queue, and mend it if it was torn at the look before, too.

        Call it every few seconds: no okq takes that long for a push.

        Returns:
            How many events were put back, first in line.

        Raises:
            ServerError, ServerUnavailableError: The queue could not be looked at, or not be mended. The next look tries
                again.

        Cancelled, events were put back or not; another look is safe.
        """
        status = await self.steps.status()
        torn = status.contents > status.waiting + status.claimed
        mended = await self.steps.mend() if torn and self.suspicious else 0
        self.suspicious = torn and not mended
        return mended
