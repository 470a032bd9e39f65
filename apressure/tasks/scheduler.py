"""Enqueues scheduled tasks at their time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from apressure.connection.client import Client
from apressure.tasks.options import DEFAULT_RESULT_TTL, ttl_of

LOOK: Final = 1.0
"""Seconds from one round to the next, if no task is due before."""


class Scheduler:
    """Enqueues scheduled tasks at their time (specification: Enqueue Scheduled Tasks), for some queues or all.

    Any number of schedulers may run at a time: each task moves once. A round also takes tasks from nodes that are gone,
    and deletes results that have expired. A task that apressure schedules wakes the scheduler if it is due first. The
    released blueque tells nobody: what it schedules less than a second ahead may be up to a second late.

    Args:
        client: The client.
        queues: The names of the queues; None for all that exist, also those that are made later.
        clock: Returns the time in seconds since 1970. It is read once a round.
        result_ttl: Seconds for which results are kept; None keeps them.
    """

    def __init__(
        self,
        client: Client,
        queues: Iterable[str] | None = None,
        *,
        clock: Callable[[], float] = time.time,
        result_ttl: float | None = DEFAULT_RESULT_TTL,
    ) -> None:
        self._client = client
        self._names = None if queues is None else tuple(queues)
        self._clock = clock
        self._ttl = ttl_of(result_ttl)

    async def run(self) -> None:
        """Do rounds, until it is cancelled. Cancelled, each task is scheduled or enqueued."""
        raise NotImplementedError

    async def round(self) -> float:
        """Do one round.

        Returns:
            Seconds until the next one is due, by the clock: at most 1.

        Raises:
            PressureError: The server cannot be reached, or refuses.

        Cancelled, each task is scheduled or enqueued.
        """
        raise NotImplementedError
