"""Looks at one queue from time to time, and keeps what it saw."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from apressure.core.history import Minute
from apressure.exceptions import (
    DecodeError,
    PermissionDeniedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    UnsupportedError,
)
from apressure.telemetry.history import UNKNOWN, Arrivals, Flow, Head, Minutes, Speed, Trend
from apressure.telemetry.scaling import Need, Scaler, Scaling
from apressure.telemetry.states import State, States, failed

logger = logging.getLogger("apressure")

_HEAD_BYTES: Final = 4096
"""Bytes of the next message that are asked for."""

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
        speed: How fast messages come and go.
        states: How the queue is, in words, what matters most first; there is at least one.
        need: How many workers it needs; None if that is not asked for.
    """

    at: float
    error: str = ""
    statistics: Any = None
    oldest: float | None = None
    drain: float | None = None
    schedules: Sequence[Any] = ()
    speed: Speed = UNKNOWN
    states: tuple[State, ...] = ()
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
        minutes: The minutes in which it has looked.
        on_minute: Called with each minute that has ended.
    """

    def __init__(self, queue: Monitored, scaling: Scaling | None = None) -> None:
        self.queue = queue
        self.key = (label(queue.name), type(queue).__name__)
        self.latest: Sample | None = None
        self.minutes = Minutes()
        self.on_minute: Callable[[Minute], object] = lambda _: None
        self._trend = Trend()
        self._arrivals = Arrivals()
        self._head = Head()
        self._flow = Flow()
        self._states = States()
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
            sample = Sample(began, states=self._states.of(began, None))
        except TimeoutError as error:
            sample = _failed(began, str(error) or "it did not answer in time")
        except Exception as error:  # noqa: BLE001 (a queue of somebody else may raise anything, and metrics go on)
            sample = _failed(began, str(error) or type(error).__name__)
        if sample.error and not (self.latest is not None and self.latest.error):
            logger.warning("the metrics of the queue %r are missing: %s", self.queue.name, sample.error)
        self.latest = dataclasses.replace(sample, need=self._need(sample))

    async def _look(self, began: float) -> Sample:
        statistics = await self.queue.statistics()
        if getattr(statistics, "length", None) is None:
            return Sample(began, "", statistics)
        now = time.monotonic()
        oldest = await self._oldest(now, statistics)
        schedules = await self._schedules() if getattr(statistics, "schedules", 0) else ()
        speed, totals = self._flow.look(now, statistics)
        if (minute := self.minutes.look(began, statistics, oldest, totals)) is not None:
            self.on_minute(minute)
        return Sample(
            began, "", statistics, oldest, self._trend.drain(now, statistics.length), schedules,
            speed, self._states.of(began, statistics, schedules),
        )  # fmt: skip

    async def _schedules(self) -> Sequence[Any]:
        """Return the queue's schedules; none where this user may not read them."""
        try:
            found: Sequence[Any] = await self.queue.schedules()  # type: ignore[attr-defined]
        except PermissionDeniedError:
            return ()
        return found

    def _need(self, sample: Sample) -> Need | None:
        known = sample.statistics is None or hasattr(sample.statistics, "length")  # a pattern has none
        if self._scaler is None or sample.error or not known:
            return None
        return self._scaler.need(time.monotonic(), sample.statistics)

    async def _next_message(self) -> Any:
        """Return the next message, or what tells it from others: it may be large.

        Raises:
            QueueEmptyError: There is none any more.
            DecodeError: It cannot be decoded.
            PermissionDeniedError: This user may not look at messages.
        """
        queue: Any = self.queue
        if not hasattr(queue, "browse"):
            return await queue.peek()
        try:
            page = await queue.browse(limit=1, most_bytes=_HEAD_BYTES)
        except UnsupportedError:  # an okq server has no such command
            return await queue.peek()
        if not page.messages:
            raise QueueEmptyError("no message waits", name=queue.name)
        first = page.messages[0]
        return first.id, first.size, first.raw

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
            item = await self._next_message()
        except QueueEmptyError:
            self._head.gone()
            return 0.0
        except DecodeError as error:
            item = error.raw
        except PermissionDeniedError:
            return None
        return self._head.age(now, item)


def _failed(began: float, error: str) -> Sample:
    return Sample(began, error=error, states=failed(error))


def label(text: str) -> str:
    """Return a text as the value of a label: valid UTF-8, and not endless. Names may come from other programs."""
    return text.encode(errors="backslashreplace").decode()[:_LONGEST]
