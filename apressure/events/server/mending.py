"""Puts events back: those whose claims expire, and those that an okq beside the server has left when it died.

The contents of the latter are stored, and no list has them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from typing import Final

from apressure.concurrency import background
from apressure.connection.client import Client
from apressure.events.engine.steps import EventSteps, Mender, active_queues
from apressure.exceptions import PermissionDeniedError, PressureError, ServerError

logger = logging.getLogger("apressure.events.server")

LOOK: Final = 10.0
"""Seconds between two looks at all queues. What was torn at two of them is mended."""
AT_A_TIME: Final = 100
"""How many queues are looked at at a time, so that clients' commands get through in between."""


class Alarm:
    """Calls a function at the earliest of the times that it was told.

    Args:
        ring: The function.
    """

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # when that is, since uvloop's handles do not always know it

    @property
    def is_set(self) -> bool:
        """Whether it will call the function."""
        return self._timer is not None

    def ring_in(self, seconds: float) -> None:
        """Call the function in so many seconds, unless that comes earlier."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if self._timer is None or due < self._due:
            self.close()
            self._due = due
            self._timer = loop.call_at(due, self._go_off)

    def close(self) -> None:
        """Do not call the function any more: the server stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _go_off(self) -> None:
        self._timer = None
        self._ring()


class Expiry(Alarm):
    """Puts back the claims of a queue that have expired, and has due events wait in line, when it rings.

    Args:
        steps: The queue's steps.
    """

    def __init__(self, steps: EventSteps) -> None:
        super().__init__(lambda: background.start(self._heal(), "putting expired events back"))
        self._steps = steps

    def look_when(self, due: bytes) -> None:
        """Do that when events are due that were just delayed, given as `Due.encoded`. Redis tells when a time comes."""
        self.ring_in(0 if due.startswith(b"@") else int(due.partition(b"!")[0]) / 1000)

    async def _heal(self) -> None:
        try:
            _, due = await self._steps.heal()
        except PressureError as error:
            logger.warning("expired events cannot be put back", extra={"queue": self._steps.name, "reason": str(error)})
            due = 1000
        if due is not None:
            self.ring_in(max(due / 1000, 0.01))


async def keep_mending(client: Client, served: Callable[[], Iterable[Mender]]) -> None:
    """Mend the queues that are served, and at the start all queues that Redis has. It ends when it is cancelled.

    Args:
        client: The client.
        served: Returns the menders of the queues that are served now.
    """
    found: list[Mender] | None = None
    while True:
        found = await _find(client) if found is None else await _look(found)
        await _look(served())
        await asyncio.sleep(LOOK)


async def _find(client: Client) -> list[Mender] | None:
    """Return those of all queues that have to be looked at again; None if Redis has to be asked once more for all."""
    try:
        names = await active_queues(client)
    except PressureError as error:
        logger.warning("the queues that an okq may have left torn are not known yet", extra={"reason": str(error)})
        return [] if isinstance(error, PermissionDeniedError) else None
    return await _look(Mender(EventSteps(client, name)) for name in names)


async def _look(menders: Iterable[Mender]) -> list[Mender]:
    """Look at queues. Returns those that have to be looked at again: torn ones, and those that were out of reach."""
    ahead, again, failed = iter(menders), [], []
    while some := list(itertools.islice(ahead, AT_A_TIME)):  # whole queues are forgotten at once: there may be many
        outcomes = await asyncio.gather(*(one.look() for one in some), return_exceptions=True)
        for mender, outcome in zip(some, outcomes, strict=True):
            # (A ServerError is no reason: a key of another type stays that.)
            unreached = isinstance(outcome, PressureError) and not isinstance(outcome, ServerError)
            if isinstance(outcome, PressureError):
                failed.append((mender.steps.name, outcome))
            elif isinstance(outcome, BaseException):
                raise outcome
            elif outcome:
                logger.info("mended what an okq had left", extra={"queue": mender.steps.name, "events": outcome})
            if mender.suspicious or unreached:
                again.append(mender)
    if failed:
        name, reason = failed[0]
        logger.warning("queues cannot be mended", extra={"queue": name, "queues": len(failed), "reason": str(reason)})
    return again
