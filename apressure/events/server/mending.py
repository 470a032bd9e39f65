"""Mends what an okq beside the server has left when it died: events whose contents are stored, and that no list has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from apressure.connection.client import Client
from apressure.events.engine.steps import EventSteps, Mender, active_queues
from apressure.exceptions import PermissionDeniedError, PressureError, ServerError

logger = logging.getLogger("apressure.events.server")

LOOK: Final = 10.0
"""Seconds between two looks at all queues. What was torn at two of them is mended."""
AT_A_TIME: Final = 100
"""How many queues are looked at at a time, so that clients' commands get through in between."""


async def keep_mending(client: Client, served: Callable[[], Iterable[Mender]]) -> None:
    """Mend the queues that are served, and at the start all queues that Redis has. It ends when it is cancelled.

    Args:
        client: The client.
        served: Returns the menders of the queues that are served now.
    """
    found: list[Mender] | None = None
    while True:
        if found is None:
            found = await _find(client)
        else:
            found = await _look(found)
        await _look(served())
        await asyncio.sleep(LOOK)


async def _find(client: Client) -> list[Mender] | None:
    """Return those of all queues that have to be looked at again; None if Redis has to be asked once more for all."""
    try:
        names = await active_queues(client)
    except PressureError as error:
        logger.warning("the queues that an okq may have left torn are not known yet", extra={"reason": str(error)})
        return [] if isinstance(error, PermissionDeniedError) else None
    again = []
    for begin in range(0, len(names), AT_A_TIME):  # whole queues are forgotten at once: there may be very many
        again += await _look(Mender(EventSteps(client, name)) for name in names[begin : begin + AT_A_TIME])
    return again


async def _look(menders: Iterable[Mender]) -> list[Mender]:
    """Look at queues. Returns those that have to be looked at again: torn ones, and those that were out of reach."""
    chosen, again, failed = list(menders), [], []
    for begin in range(0, len(chosen), AT_A_TIME):
        some = chosen[begin : begin + AT_A_TIME]
        outcomes = await asyncio.gather(*(one.look() for one in some), return_exceptions=True)
        for mender, outcome in zip(some, outcomes, strict=True):
            if isinstance(outcome, int):
                if outcome:
                    logger.info("mended what an okq had left", extra={"queue": mender.steps.name, "events": outcome})
                if mender.suspicious:
                    again.append(mender)
            elif isinstance(outcome, PressureError):
                failed.append((mender.steps.name, outcome))
                if mender.suspicious or not isinstance(outcome, ServerError):  # a key of another type stays that
                    again.append(mender)
            else:
                raise outcome
    if failed:
        name, reason = failed[0]
        logger.warning("queues cannot be mended", extra={"queue": name, "queues": len(failed), "reason": str(reason)})
    return again
