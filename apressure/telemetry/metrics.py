"""`Metrics`: samples queues in the background, and answers scrapes from the latest sample."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from apressure import validation
from apressure.concurrency import background
from apressure.protocols import Work
from apressure.telemetry.families import BUCKETS, Reading
from apressure.telemetry.handlers import Handler, name_of
from apressure.telemetry.reader import Reader
from apressure.telemetry.readings import readings_of
from apressure.telemetry.sampler import Monitored, Sample, label
from apressure.telemetry.scaling import Need, Scaling

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from prometheus_client.registry import Collector

    from apressure.telemetry.http import MetricsServer

_TIMEOUT: Final = 5.0
"""Seconds: the least default of `timeout`."""

OnDuration = Callable[[tuple[str, str, str], float], None]
"""Called with the labels of a handler, and the seconds of one call."""


class Metrics:
    """The metrics of some queues, and of the services that have it as their `observer`.

    While the block is open, a task looks at each queue every few seconds. A scrape shows what the latest looks saw: it
    never waits for a server, and works while the event loop is blocked. `apressure_up` is 0 for a queue whose look
    failed, or is out of date.

    Args:
        *queues: Queues of any kind: what has a `name` and `statistics()`. They are neither opened nor closed.
        interval: Seconds between two looks at a queue. There are at most 50 looks a second, so it is longer for more
            than 250 queues.
        timeout: Seconds for a look at a queue; None for the interval, and at least 5.
        port: Serve `/metrics` and `/healthz` there while the block is open; 0 for a free port, None for no server.
        host: The address to listen at. The default can be reached from this machine only.
        buckets: The upper limits of the buckets of durations, in seconds, ascending.
        local: Show what the queue objects of this process do, too: waiting tasks, blocked seconds, late renewals.
        scaling: Show how many workers each queue needs, also at `/scale/ADDRESS`; None for neither.

    Raises:
        TypeError, ValueError: An argument is invalid.
        MissingExtraError: A port is given, and prometheus_client is not installed.

    Example:
        >>> async with Metrics(port=9100) as metrics:
        ...     await serve(handle, AsyncQueue("orders"), observer=metrics)
    """

    def __init__(
        self,
        *queues: Monitored,
        interval: float = 5.0,
        timeout: float | None = None,
        port: int | None = None,
        host: str = "127.0.0.1",
        buckets: Sequence[float] = BUCKETS,
        local: bool = True,
        scaling: Scaling | None = None,
    ) -> None:
        self.interval = validation.seconds(interval, "interval", above=True)
        self.timeout = (
            max(interval, _TIMEOUT)
            if timeout is None
            else validation.seconds(timeout, "timeout", above=True, none=True)
        )
        self._buckets = tuple(float(validation.seconds(limit, "a bucket", above=True)) for limit in buckets)
        if not self._buckets or list(self._buckets) != sorted(set(self._buckets)):
            raise ValueError(f"buckets must be ascending seconds, not {list(buckets)}")
        self._local = local
        self.reader = Reader(self.interval, self.timeout, scaling)
        self.scaling = scaling
        self._handlers: dict[tuple[str, str, str], Handler] = {}
        self._on_duration: list[OnDuration] = []
        self._running: asyncio.Task[None] | None = None
        self._server: MetricsServer | None = None
        if port is not None:
            from apressure.telemetry.http import MetricsServer

            self._server = MetricsServer(self, host, port)
        for queue in queues:
            self.add(queue)

    @property
    def port(self) -> int | None:
        """The port that `/metrics` is served at; None without a server."""
        return None if self._server is None else self._server.port

    async def __aenter__(self) -> Self:
        """Begin to look, and to listen.

        Raises:
            OSError: The port cannot be used; the message says why, and what to do.
        """
        self.reader.turned_at = time.monotonic()
        if self._server is not None:
            self._server.start()
        self._running = background.start(self.run(), "looking at queues for metrics")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End both. Cancelled, it waits until they have ended all the same."""
        ending: set[asyncio.Task[None]] = set()
        if self._server is not None:
            ending.add(background.start(asyncio.to_thread(self._server.stop), "ending the server of metrics"))
        if self._running is not None:
            self._running.cancel()
            ending.add(self._running)
        for task in ending:
            task.add_done_callback(ending.discard)
        await background.join(ending)

    def add(self, queue: Monitored) -> None:
        """Show this queue, too. A queue that was added twice has to be discarded twice."""
        self.reader.add(queue)

    def discard(self, queue: Monitored) -> None:
        """Show this queue no more."""
        self.reader.discard(queue)

    async def run(self) -> None:
        """Look at all queues, again and again, and at once when one was added. The block does this in a task."""
        await self.reader.run()

    async def sample(self) -> None:
        """Look at all queues once, for up to `timeout` seconds in all.

        Cancelled, some queues keep their earlier sample.
        """
        await self.reader.sample()

    def readings(self) -> list[Reading]:
        """Return all values. It may be called in any thread, and does not wait."""
        by_key: dict[tuple[str, str], list[Sample | None]] = defaultdict(list)
        for sampler in self.reader.samplers:
            by_key[sampler.key].append(sampler.latest)
        oldest = self._out_of_date
        found = [
            reading for key, samples in by_key.items() for reading in readings_of(key, samples, oldest, self._local)
        ]
        for handler in tuple(self._handlers.values()):
            found += handler.readings()
        return found

    def needs(self) -> dict[tuple[str, str], Need | None]:
        """Return how many workers each queue needs, by its labels; None where the latest look failed or is old.

        It may be called in any thread, and does not wait.
        """
        found: dict[tuple[str, str], Need | None] = {}
        for sampler in self.reader.samplers:
            sample = sampler.latest
            need = None if sample is None or sample.at < self._out_of_date else sample.need
            found[sampler.key] = need or found.get(sampler.key)
        return found

    @property
    def _out_of_date(self) -> float:
        """Samples from before this time, in seconds since 1970, say nothing."""
        return time.time() - 3 * self.reader.period - self.timeout

    @property
    def stalled(self) -> float:
        """For how many seconds the event loop has not turned, as far as is known; 0 for less than a few."""
        seconds = time.monotonic() - self.reader.turned_at
        return seconds if seconds > self.timeout + 2 * self.interval else 0.0

    @contextlib.contextmanager
    def observing(self, work: Work) -> Iterator[Callable[[float], None]]:
        """Show a service and its queue while the block is open: `Observer`'s method. Its counts stay afterwards."""
        queue = work.queue
        labels = (label(queue.name), type(queue).__name__, name_of(work.handler))
        handler = self._handlers.setdefault(labels, Handler(labels, self._buckets))
        observe = handler.begin(work)
        monitored = hasattr(queue, "statistics")
        if monitored:
            self.add(queue)
        try:
            yield self._recording(labels, observe) if self._on_duration else observe
        finally:
            handler.end(work)
            if monitored:
                self.discard(queue)

    def collector(self) -> Collector:
        """Return a collector for a registry of prometheus_client: `REGISTRY.register(metrics.collector())`.

        Raises:
            MissingExtraError: prometheus_client is not installed.
        """
        from apressure.telemetry.prometheus import MetricsCollector

        return MetricsCollector(self, self._buckets)

    def instrument(self, meter: Meter | None = None) -> None:
        """Report to OpenTelemetry: all gauges and counters as observable instruments, and durations as a histogram.

        Call it before the services begin.

        Args:
            meter: The meter; None for the one named apressure of the global provider.

        Raises:
            MissingExtraError: opentelemetry-api is not installed.
        """
        from apressure.telemetry.otel import instrument

        self._on_duration.append(instrument(self, meter, self._buckets))

    def _recording(self, labels: tuple[str, str, str], observe: Callable[[float], None]) -> Callable[[float], None]:
        """Return what counts a duration here, and records it elsewhere."""
        others: Any = tuple(self._on_duration)

        def record(seconds: float) -> None:
            observe(seconds)
            for other in others:
                other(labels, seconds)

        return record
