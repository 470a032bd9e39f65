"""Enqueues scheduled tasks at their time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from apressure.concurrency.settle import raised
from apressure.connection.client import Client
from apressure.connection.settings import RECONNECT_BACKOFF
from apressure.core.waiting import moment
from apressure.exceptions import PermissionDeniedError, PressureError, ServerError
from apressure.tasks.engine.keys import SCHEDULED
from apressure.tasks.engine.steps import TaskSteps, queue_names
from apressure.tasks.engine.waits import channels_of
from apressure.tasks.options import DEFAULT_RESULT_TTL, ttl_of

logger = logging.getLogger("apressure")

LOOK: Final = 1.0
"""Seconds from one round to the next, if no task is due before."""

_TOGETHER: Final = 50
"""Queues that are looked after at a time."""


class Scheduler:
    """Enqueues scheduled tasks at their time (specification: Enqueue Scheduled Tasks), for some queues or all.

    Consumers and puts of apressure do that for their queues, too. A queue with nodes of the released blueque only, or
    with consumers that are stopped at times, needs a scheduler.

    Any number of schedulers may run at a time: each task moves once. A round also takes tasks from nodes of apressure
    that are gone, and deletes results that have expired. A task that apressure schedules wakes the scheduler if it is
    due first. The released blueque tells nobody: what it schedules less than a second ahead may be up to a second late.

    Args:
        client: The client.
        queues: The names of the queues; None for all that exist, also those that are made later.
        clock: Returns the time in seconds since 1970, and is read once a round; None for the server's clock.
        result_ttl: Seconds for which results are kept; None keeps them.

    Raises:
        TypeError, ValueError: An argument is invalid.

    Example:
        >>> async with TaskClient("redis://127.0.0.1:6379/0") as client:
        ...     await Scheduler(client).run()
    """

    def __init__(
        self,
        client: Client,
        queues: Iterable[str] | None = None,
        *,
        clock: Callable[[], float] | None = None,
        result_ttl: float | None = DEFAULT_RESULT_TTL,
    ) -> None:
        if isinstance(queues, str):
            raise TypeError("queues must be an iterable of names, such as ['video.encode']")
        self._client = client
        self._clock = clock
        self._ttl = ttl_of(result_ttl)
        self._all = queues is None
        self._queues = {name: TaskSteps(client, name) for name in queues or ()}
        self._damaged: set[str] = set()

    async def run(self) -> None:
        """Do rounds, until it is cancelled. It goes on after an outage of the server.

        Raises:
            PressureError: The server refuses, for a reason that does not pass.

        Cancelled, each task is scheduled or enqueued.
        """
        channels, failures, loop = channels_of(self._client), 0, asyncio.get_running_loop()
        while True:
            since, begun = moment(), loop.time()
            try:
                pause = await self.round()
                failures = 0
            except PressureError as error:
                if not error.temporary:
                    raise
                logger.warning("the scheduler cannot reach its tasks (it tries again): %s", error)
                pause = LOOK + RECONNECT_BACKOFF.pause(failures)
                failures += 1
            await channels.wait(SCHEDULED, since, max(0.0, pause - (loop.time() - begun)))

    async def round(self) -> float:
        """Do one round.

        Returns:
            Seconds from its beginning until the next one is due, by the clock: at most 1.

        Raises:
            PressureError: The server cannot be reached, or refuses. The queues before are done.

        Cancelled, each task is scheduled or enqueued.
        """
        self._client.check()
        now = None if self._clock is None else self._clock()
        if self._all:
            await self._find()
        queues = list(self._queues.values())
        pause = LOOK
        for begin in range(0, len(queues), _TOGETHER):
            tended = await asyncio.gather(
                *(self._tend(steps, now) for steps in queues[begin : begin + _TOGETHER]), return_exceptions=True
            )
            pause = min(pause, *map(raised, tended))
        return pause

    async def _find(self) -> None:
        """Learn which queues there are."""
        names = await queue_names(self._client)
        for gone in self._queues.keys() - set(names):
            del self._queues[gone]
        for name in names:
            if name not in self._queues:
                try:
                    self._queues[name] = TaskSteps(self._client, name)
                except ValueError as error:  # another program has written it
                    self._tell(name, error)

    async def _tend(self, steps: TaskSteps, now: float | None) -> float:
        """Look after one queue. Returns in how many seconds to look again."""
        try:
            pause = await steps.tend(now, self._ttl)
        except ServerError as error:
            if error.temporary or isinstance(error, PermissionDeniedError):
                raise
            self._tell(steps.name, error)  # a damaged queue disturbs no other
            return LOOK
        self._damaged.discard(steps.name)
        return pause

    def _tell(self, name: str, error: Exception) -> None:
        if name not in self._damaged:
            self._damaged.add(name)
            logger.error("the scheduler leaves out the queue %r: %s", name, error)
