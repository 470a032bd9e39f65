"""Looks at one queue from time to time, and keeps what it saw."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from apressure.exceptions import DecodeError, QueueDoesNotExistError, QueueEmptyError
from apressure.telemetry.history import Arrivals, Head, Trend
from apressure.telemetry.scaling import Need, Scaler, Scaling

logger = logging.getLogger("apressure")

_LONGEST: Final = 1000
"""Characters of a label."""


class Monitored(Protocol):
    """What metrics need of a queue."""

    @property
    def name(self) -> str:
        """The queue's name."""

    async def statistics(self) -> Any:
        """Return a snapshot of the queue."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """What a look at a queue saw.

    Attributes:
        at: When it began, in seconds since 1970.
        error: Why it failed; empty if it succeeded.
        statistics: The queue's snapshot; None if it failed, or the queue does not exist.
        oldest: The age of the next message in seconds; None if it is not known.
        drain: In how many seconds the queue will be empty; None if it is not known.
        schedules: The queue's schedules, by name.
        need: How many workers it needs; None if that is not asked for.
    """

    at: float
    error: str = ""
    statistics: Any = None
    oldest: float | None = None
    drain: float | None = None
    schedules: Sequence[Any] = ()
    need: Need | None = None


class Sampler:
    """Looks at one queue.

    Args:
        queue: The queue.
        scaling: What the number of wanted workers is made for; None to show none.

    Attributes:
        queue: As given.
        key: The labels that name it: its name, and the name of its class.
        latest: What the latest look saw; None before the first one.
    """

    def __init__(self, queue: Monitored, scaling: Scaling | None = None) -> None:
        self.queue = queue
        self.key = (label(queue.name), type(queue).__name__)
        self.latest: Sample | None = None
        self._trend = Trend()
        self._arrivals = Arrivals()
        self._head = Head()
        self._scaler = None if scaling is None else Scaler(scaling)

    async def sample(self, timeout: float) -> None:
        """Look at the queue, for up to `timeout` seconds. Errors are kept; the first one of a row is logged.

        Cancelled, the latest sample stays.
        """
        began = time.time()
        try:
            async with asyncio.timeout(timeout):
                sample = await self._look(began)
        except QueueDoesNotExistError:
            sample = Sample(began)
        except TimeoutError as error:
            sample = Sample(began, error=str(error) or "it did not answer in time")
        except Exception as error:  # noqa: BLE001 (a queue of somebody else may raise anything, and metrics go on)
            sample = Sample(began, error=str(error) or type(error).__name__)
        if sample.error and not (self.latest is not None and self.latest.error):
            logger.warning("the metrics of the queue %r are missing: %s", self.queue.name, sample.error)
        self.latest = dataclasses.replace(sample, need=self._need(sample))

    async def _look(self, began: float) -> Sample:
        statistics = await self.queue.statistics()
        if getattr(statistics, "length", None) is None:
            return Sample(began, "", statistics)
        now = time.monotonic()
        oldest = await self._oldest(now, statistics)
        schedules = await self.queue.schedules() if getattr(statistics, "schedules", 0) else ()  # type: ignore[attr-defined]
        return Sample(began, "", statistics, oldest, self._trend.drain(now, statistics.length), schedules)

    def _need(self, sample: Sample) -> Need | None:
        known = sample.statistics is None or hasattr(sample.statistics, "length")  # a pattern has none
        if self._scaler is None or sample.error or not known:
            return None
        return self._scaler.need(time.monotonic(), sample.statistics)

    async def _oldest(self, now: float, statistics: Any) -> float | None:
        """Return the age of the next message."""
        if statistics.length == 0:
            self._head.gone()
            return 0.0
        if isinstance(oldest := getattr(statistics, "oldest", None), datetime):
            return max(0.0, (datetime.now(UTC) - oldest).total_seconds())
        if (produced := getattr(statistics, "produced_messages", None)) is not None:
            return self._arrivals.age(now, produced, statistics.length)
        if not hasattr(self.queue, "peek"):
            return None
        try:
            item = await self.queue.peek()
        except QueueEmptyError:
            self._head.gone()
            return 0.0
        except DecodeError as error:
            item = error.raw
        return self._head.age(now, item)


def label(text: str) -> str:
    """Return a text as the value of a label: valid UTF-8, and not endless. Names may come from other programs."""
    return text.encode(errors="backslashreplace").decode()[:_LONGEST]
