"""The lag of streaming queries: how much waits in each of their queues, and how soon they will have caught up.

This needs no pyspark.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Final

from apressure.connection.settings import Settings
from apressure.connection.wire.blocking import Blocking
from apressure.spark import sealed_batches
from apressure.spark.engine import looks
from apressure.spark.engine.steps import QueueSteps

WINDOW: Final = 60.0
"""Seconds over which rates are measured."""


@dataclasses.dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a query is behind with one of its queues.

    Attributes:
        query: The query's name, or its id where it has no name.
        queue: The queue.
        messages: Messages that wait in the queue.
        bytes: Their size in bytes; None if clients of the queue do not count them.
        in_flight: Messages in batches that Spark has taken and not committed. An idle query keeps its last batch.
        in_flight_bytes: Their size in bytes; None if clients of the queue do not count them.
        rows_per_second: Messages that Spark takes each second, over the last minute; None at the first look.
        seconds_to_drain: Seconds until the queue is empty if it goes on like that: 0 if it is empty, infinite if the
            queue does not get shorter, None at the first look.
    """

    query: str
    queue: str
    messages: int
    bytes: int | None
    in_flight: int
    in_flight_bytes: int | None
    rows_per_second: float | None
    seconds_to_drain: float | None

    def __str__(self) -> str:
        size = "" if self.bytes is None else f" ({self.bytes:,} bytes)"
        text = f"{self.query}: {self.messages:,} messages{size} wait in {self.queue}, {self.in_flight:,} in flight"
        if self.rows_per_second is None or self.seconds_to_drain is None:
            return text
        drain = self.seconds_to_drain
        end = "does not get shorter" if math.isinf(drain) else f"empty in {drain:,.0f} s" if drain else "empty"
        return f"{text}; {self.rows_per_second:,.0f} rows/s, {end}"


class Trend:
    """How fast messages are taken, and how soon none will wait if it goes on like that."""

    def __init__(self) -> None:
        self._samples: collections.deque[tuple[float, int, int]] = collections.deque()

    def add(self, moment: float, taken: int, waiting: int) -> tuple[float | None, float | None]:
        """Note how many messages were ever taken, and how many wait, at a moment in seconds.

        Returns:
            Messages taken each second, and the seconds until none waits: infinite if they do not get fewer. None at the
            first time.
        """
        samples = self._samples
        if samples and taken < samples[-1][1]:  # the server has lost the group's state
            samples.clear()
        samples.append((moment, taken, waiting))
        while len(samples) > 2 and samples[0][0] < moment - WINDOW:
            samples.popleft()
        began, taken_before, waiting_before = samples[0]
        seconds = moment - began
        if seconds <= 0:
            return None, None if waiting else 0.0
        fewer = (waiting_before - waiting) / seconds
        drain = 0.0 if waiting == 0 else waiting / fewer if fewer > 0 else math.inf
        return (taken - taken_before) / seconds, drain


class LagMeter:
    """Measures the lag of queries, from what the server says at each look. Use it from one thread at a time.

    Args:
        settings: Where the server is.
        clock: The time in seconds, for rates.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._trends: dict[tuple[str, str], Trend] = {}  # by run of a query, and queue

    def look(self, run: str, query: str, names: list[str]) -> list[QueueLag]:
        """Look at the queues of a run of a query.

        Raises:
            ServerError, ServerUnavailableError: The server refused, or cannot be reached.
        """
        with closing(Blocking(self._settings)) as server:
            backlogs = looks.backlogs(server, looks.groups_of([QueueSteps(server, name) for name in names]))
            return [self._look(server, run, query, name, backlogs[name]) for name in names]

    def forget(self, run: str) -> None:
        """Forget a run that has ended."""
        for key in [key for key in self._trends if key[0] == run]:
            del self._trends[key]

    def _look(self, server: Blocking, run: str, query: str, name: str, backlog: Mapping[str, int]) -> QueueLag:
        messages = backlog["messages"]
        groups = sealed_batches.groups(server, name)
        trend = self._trends.setdefault((run, name), Trend())
        rows_per_second, seconds_to_drain = trend.add(self._clock(), sum(group.read for group in groups), messages)
        sizes = [group.bytes for group in groups if group.bytes is not None]
        return QueueLag(
            query,
            name,
            messages,
            backlog.get("bytes"),
            in_flight=sum(group.messages for group in groups),
            in_flight_bytes=sum(sizes) if len(sizes) == len(groups) else None,
            rows_per_second=rows_per_second,
            seconds_to_drain=seconds_to_drain,
        )


def queues_of(progress: Mapping[str, Any]) -> list[str]:
    """Return the names of the queues in a query's progress, without what other sources read."""
    names: dict[str, None] = {}
    for source in progress.get("sources", ()):
        backlog, end = (_decoded(source.get(field)) for field in ("latestOffset", "endOffset"))
        if all(isinstance(value, dict) and "messages" in value for value in backlog.values()):
            names |= dict.fromkeys(name for name in backlog if name in end)
    return list(names)


def _decoded(offset: Any) -> dict[str, Any]:
    """An offset of Spark's progress as an object; an empty one if it is none."""
    try:
        value = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
