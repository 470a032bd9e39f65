"""Keeps the history of the queues that a reader looks at: each minute that has ended is written to its queue."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from apressure.concurrency import background
from apressure.core.history import Minute
from apressure.core.schedules import UNAVAILABLE
from apressure.exceptions import PressureError, ReadOnlyError
from apressure.monitor.recent import Recent
from apressure.telemetry.reader import Reader
from apressure.telemetry.sampler import Sampler


class Recorder:
    """Adds queues to a reader, writes their history, and reads it for those who draw it.

    Args:
        reader: Looks at the queues.
        writes: Write the history; otherwise the samplers alone keep it.
    """

    def __init__(self, reader: Reader, *, writes: bool = True) -> None:
        self._reader = reader
        self._writes = writes
        self._writing: set[asyncio.Task[None]] = set()
        self._read: Recent[list[Minute]] = Recent()

    def add(self, queue: Any) -> Sampler:
        """Look at this queue, too."""
        sampler = self._reader.add(queue)
        if self._writes:
            sampler.on_minute = functools.partial(self._keep, sampler)
        else:
            sampler.minutes.keep_all()
        return sampler

    def discard(self, queue: Any) -> None:
        """Look at this queue no more."""
        self._reader.discard(queue)

    async def minutes(self, sampler: Sampler) -> list[Minute]:
        """Return the last day of a queue: what others have written until a moment ago, and what was seen here."""
        queue: Any = sampler.queue

        async def read() -> list[Minute]:
            try:
                return list(await queue.history())
            except PressureError:  # this user may not read it, or the server is down
                return []

        written = await self._read.of(sampler, read)
        return sorted({minute.time: minute for minute in (*written, *sampler.minutes.kept)}.values())

    async def aclose(self) -> None:
        """Wait for what is being written. Each write has a timeout of a few seconds."""
        if self._writing:
            await asyncio.wait(self._writing)

    def _keep(self, sampler: Sampler, minute: Minute) -> None:
        if not minute.idle:
            writing = background.start(self._write(sampler, minute), "writing the history of a queue")
            self._writing.add(writing)
            writing.add_done_callback(self._writing.discard)

    async def _write(self, sampler: Sampler, minute: Minute) -> None:
        queue: Any = sampler.queue
        try:
            await queue.write_history(minute, deadline=self._reader.timeout)
        except (*UNAVAILABLE, ReadOnlyError):  # this user may not: do not fill the server's log with that
            sampler.on_minute = lambda _: None
            sampler.minutes.keep_all()
        except (PressureError, OSError):  # the server is down
            pass
