"""What open pages need: a list of queues, a stream that says when there is something new, looks that come first."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable
from typing import Final

from apressure.concurrency import background
from apressure.monitor.monitor import Monitor, Seen
from apressure.monitor.recent import Recent
from apressure.spark.sealed_batches import GroupBatches
from apressure.telemetry.sampler import Sampler

MOST: Final = 100
"""Streams at a time."""

LASTS: Final = 30.0
"""Seconds after which a stream ends, and the browser opens another one: then it shows that it may."""

_LISTED: Final = 1.0
"""Seconds for which a list of all queues is used again: with ten thousand queues, sorting them takes a while."""

_STAYS: Final = 15.0
"""Seconds for which a page counts as seen after it was loaded; one that is open is loaded again before."""


class Live:
    """Knows which queues somebody sees.

    Args:
        monitor: Watches the queues.

    Attributes:
        groups: What Spark had in flight a moment ago.
        failures: How many dead letters of each class of error there were a moment ago.
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self.groups: Recent[list[GroupBatches]] = Recent()
        self.failures: Recent[dict[str, int]] = Recent()
        self._seen: dict[Sampler, float] = {}
        self._list: tuple[float, list[Seen]] = -math.inf, []
        self._streams = 0
        self._version = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to count what is new."""
        self._task = background.start(self._run(), "noting looks for open pages")

    async def aclose(self) -> None:
        """End that."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def queues(self) -> list[Seen]:
        """Return the queues, those that need somebody first, as of a moment ago."""
        at, found = self._list
        if time.monotonic() - at >= min(_LISTED, self._monitor.reader.interval):
            found = self._monitor.seen()
            self._list = time.monotonic(), found
        return found

    def see(self, samplers: Iterable[Sampler]) -> None:
        """Have these looked at first for a while: somebody sees them."""
        now = time.monotonic()
        self._seen.update((sampler, now + _STAYS) for sampler in samplers)
        self._seen = {sampler: until for sampler, until in self._seen.items() if until > now}
        self._monitor.reader.prefer(set(self._seen))

    @property
    def full(self) -> bool:
        """Whether there are as many streams as there may be."""
        return self._streams >= MOST

    async def stream(self) -> AsyncIterator[bytes]:
        """Say when there is something new: server-sent events, without data."""
        self._streams += 1
        try:
            yield b"retry: 2000\n\nevent: open\ndata:\n\n"
            ends, version = time.monotonic() + LASTS, self._version
            while time.monotonic() < ends:
                await asyncio.sleep(self._monitor.reader.interval)
                news = self._version != version
                version = self._version
                yield b"event: look\ndata:\n\n" if news else b": nothing new\n\n"
        finally:
            self._streams -= 1

    async def _run(self) -> None:
        looked = self._monitor.reader.looked
        while True:
            await looked.wait()
            looked.clear()
            self._version += 1
