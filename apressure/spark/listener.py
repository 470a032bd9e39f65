"""A listener that tells how far queries are behind."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from apressure import validation
from apressure.exceptions import PressureError
from apressure.spark.lag import LagMeter, QueueLag, queues_of
from apressure.spark.options import Options

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_log = logging.getLogger("apressure.spark")


class LagListener(StreamingQueryListener):
    """Tells the lag of all queries of a session that read queues of one server: `spark.streams.addListener(…)`.

    It looks at the queues when Spark reports progress, or that a query is idle, at most once every `interval` seconds
    for each query, over a connection of its own. It logs a line for each queue to the logger `apressure.spark`: at the
    level INFO, or WARNING from a threshold on. Whatever fails in it is logged, and disturbs no query. If the server
    cannot be reached, it does not retry before the next look, unless `retryTimeout` says so.

    Args:
        callback: Is called with each `QueueLag`, in a thread of Spark's listeners, for example to set metrics.
        warn_messages: Warn if so many messages wait in a queue.
        warn_seconds: Warn if a queue will not be empty before so many seconds have passed.
        interval: The fewest seconds between two looks at the queues of a query.
        **options: `url`, `prefix`, `username`, … as in `Options`, where the queries read.

    Raises:
        ValueError: An option is unknown or invalid, or a number is negative.
    """

    def __init__(
        self,
        callback: Callable[[QueueLag], object] | None = None,
        *,
        warn_messages: int | None = None,
        warn_seconds: float | None = None,
        interval: float = 10.0,
        **options: Any,
    ) -> None:
        self._callback = callback
        self._warn_messages = None if warn_messages is None else validation.whole(warn_messages, "warn_messages", 0)
        self._warn_seconds = None if warn_seconds is None else validation.seconds(warn_seconds, "warn_seconds")
        self._interval = validation.seconds(interval, "interval")
        checked = Options.of({"queues": "*", **options})
        if checked.retry_timeout is None:  # Spark's listeners share a thread, which must not wait for a server
            checked = dataclasses.replace(checked, retry_timeout=0.0)
        self._meter = LagMeter(checked.settings())
        self._queries: dict[str, tuple[str, list[str]]] = {}  # by run: the query's name, and its queues
        self._looked: dict[str, float] = {}
        self._lock = threading.Lock()  # Spark may call from several threads

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """A query has begun: it has no queues yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A query has processed a batch."""
        progress = json.loads(event.progress.json)
        run = str(progress["runId"])
        with self._lock:
            if names := queues_of(progress):
                self._queries[run] = str(progress.get("name") or progress["id"]), names
            self._look(run)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """A query has nothing to do, or waits for a role."""
        with self._lock:
            self._look(str(event.runId))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """A query has ended."""
        run = str(event.runId)
        with self._lock:
            self._queries.pop(run, None)
            self._looked.pop(run, None)
            self._meter.forget(run)

    def _look(self, run: str) -> None:
        now = time.monotonic()
        if run not in self._queries or now < self._looked.get(run, -math.inf) + self._interval:
            return
        query, names = self._queries[run]
        try:
            found = self._meter.look(run, query, names)
        except PressureError as error:
            _log.warning("the lag of the query %s cannot be measured: %s", query, error)
            return
        finally:
            self._looked[run] = time.monotonic()
        for lag in found:
            _log.log(logging.WARNING if self._is_late(lag) else logging.INFO, "%s", lag)
            if self._callback is not None:
                try:
                    self._callback(lag)
                except Exception:  # noqa: BLE001 - it is the user's function
                    _log.exception("the callback for the lag of the query %s failed", query)

    def _is_late(self, lag: QueueLag) -> bool:
        many = self._warn_messages is not None and lag.messages >= self._warn_messages
        seconds = lag.seconds_to_drain
        return many or (self._warn_seconds is not None and seconds is not None and seconds >= self._warn_seconds)
