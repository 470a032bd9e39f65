"""How many workers a queue needs: the arithmetic, and what it takes from earlier looks."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from apressure import validation
from apressure.core.limits import UNLIMITED, Limits
from apressure.core.workers import WorkerStatistics
from apressure.telemetry.often import Often

_WINDOW: Final = 300.0
"""Seconds: the mean duration is that of this time, and fewer workers are wanted only after it."""

_MORE: Final = 0.25
"""Where a full queue keeps its producers waiting, so much of the workers is wanted beside them. Nobody knows how much
work waits outside."""

_KEPT: Final = 1800.0
"""Seconds for which so many workers stay wanted while there is work: fewer have not been enough."""

_ENOUGH: Final = 20
"""A mean is of so many messages, even if they take longer than the window."""

_ROUNDING: Final = 1e-9
"""What floating-point numbers may add to a whole number of workers."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What the number of wanted workers is made for. A worker is a process.

    Attributes:
        target: Seconds within which what waits shall be done.
        worker_concurrency: How many messages a worker handles at a time; None for what the workers report.
        min_workers: The fewest workers. 0 lets a queue without work have none.
        max_workers: The most; None for any number.

    Raises:
        TypeError, ValueError: An argument is invalid.
    """

    target: float = 60.0
    worker_concurrency: int | None = None
    min_workers: int = 1
    max_workers: int | None = None

    def __post_init__(self) -> None:
        validation.seconds(self.target, "target", above=True)
        validation.optional(validation.whole, self.worker_concurrency, "worker_concurrency", 1)
        validation.whole(self.min_workers, "min_workers", 0)
        validation.optional(validation.whole, self.max_workers, "max_workers", max(1, self.min_workers))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one look at a queue says of its work.

    Attributes:
        waiting: Messages that could be handed out now.
        in_flight: Messages that were received and are not settled.
        workers: Workers that receive.
        concurrency: How many messages a worker handles at a time.
        mean_seconds: How long a handler takes; None if that is not known.
        most: How many messages the limits of the queue let be in flight.
        expected: Messages will be put or due soon, and this takes a worker.
    """

    waiting: int
    in_flight: int
    workers: int = 0
    concurrency: float = 1.0
    mean_seconds: float | None = None
    most: float = math.inf
    expected: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a queue needs, as `/scale/ADDRESS` says it.

    Attributes:
        wanted_workers: So many workers.
        workers: Workers that receive now.
        waiting: Messages that wait.
        in_flight: Messages that were received and are not settled.
        mean_seconds: How long a handler takes; None if that is not known.
    """

    wanted_workers: int
    workers: int
    waiting: int
    in_flight: int
    mean_seconds: float | None


def wanted_workers(demand: Demand, scaling: Scaling) -> int:
    """Return how many workers one look asks for.

    They have room for as many handlers as do all the work within the target, and for no fewer than run now: so none
    is taken away from a backlog, and what is in flight counts until it is settled. More handlers than messages, or than
    the limits of the queue allow, would be idle.

    Until a handler has returned, its duration is not known. Then the workers that are there stay, and work gets one.
    """
    work = demand.waiting + demand.in_flight
    if demand.mean_seconds is None:
        wanted = demand.workers if work else 0
    else:
        running = min(demand.in_flight, demand.workers * demand.concurrency)
        handlers = min(max(work * demand.mean_seconds / scaling.target, running), work, demand.most)
        wanted = math.ceil(handlers / demand.concurrency - _ROUNDING)
    least = max(scaling.min_workers, int(work > 0 or demand.expected))
    return int(min(max(wanted, least), scaling.max_workers or math.inf))


class Scaler:
    """Tells how many workers one queue needs, from one look to the next.

    More workers are wanted at once. Fewer are wanted when no look of the last 5 minutes has asked for more: a short
    lull neither ends workers nor starts them again.

    A queue with a bound shows only a part of the work: producers wait with the rest. If it was full at most looks of a
    minute while all of its workers were busy, they are too few.

    Args:
        scaling: What the number is made for.
    """

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._durations = Durations()
        self._concurrency = 1.0
        self._asked: deque[tuple[float, int]] = deque()
        self._full = Often()
        self._workers = 0
        self._too_few: tuple[float, int] = (-math.inf, 0)

    def need(self, now: float, statistics: Any) -> Need:
        """Return what the queue needs.

        Args:
            now: The time of the look, in seconds of a monotonic clock.
            statistics: The queue's snapshot; None if it does not exist.
        """
        found = [each for each in getattr(statistics, "workers", ()) if each.kind != "spark"]
        mean = self._durations.mean(now, (each for each in found if each.kind != "consumer"))  # it has no handler
        present = [worker for worker in found if not worker.draining]
        workers = len({worker.id for worker in present})
        if at_a_time := sum(worker.concurrency for worker in present if worker.concurrency):
            self._concurrency = at_a_time / len({worker.id for worker in present if worker.concurrency})
        length, in_flight = getattr(statistics, "length", 0), getattr(statistics, "in_flight", 0)
        demand = Demand(
            waiting=_handed_out(statistics, length),
            in_flight=in_flight,
            workers=workers,
            concurrency=self._scaling.worker_concurrency or self._concurrency,
            mean_seconds=mean,
            most=_most(getattr(statistics, "limits", UNLIMITED), mean),
            expected=self._expected(statistics),
        )
        if not self._asked:  # an exporter that was started again does not know what was wanted before
            self._asked.append((now, min(workers, self._scaling.max_workers or workers)))
        asked = max(wanted_workers(demand, self._scaling), self._wanted_for_room(now, statistics, demand))
        while self._asked and now - self._asked[0][0] > _WINDOW:
            self._asked.popleft()
        while self._asked and self._asked[-1][1] <= asked:  # it says no more than this look
            self._asked.pop()
        self._asked.append((now, asked))
        return Need(
            wanted_workers=self._asked[0][1],
            workers=workers,
            waiting=length,
            in_flight=in_flight,
            mean_seconds=mean,
        )

    def _wanted_for_room(self, now: float, statistics: Any, demand: Demand) -> int:
        """Return how many workers are wanted since producers wait for room; 0 where that says nothing."""
        if demand.workers != self._workers:
            self._workers = demand.workers
            self._full.clear()  # what others could not do says nothing of these
        full = getattr(statistics, "room", None) == 0 or bool(getattr(statistics, "waiting_producers", ()))
        most = min(demand.most, (self._scaling.max_workers or math.inf) * demand.concurrency)
        busy = 0 < demand.workers * demand.concurrency <= demand.in_flight
        if self._full.look(now, full and busy and demand.waiting > 0 and demand.mean_seconds is not None):
            until, before = self._too_few
            wanted = demand.workers + math.ceil(demand.workers * _MORE)
            self._too_few = now + _KEPT, max(wanted, before) if now < until else wanted
        until, wanted = self._too_few
        if now >= until or not demand.waiting + demand.in_flight:
            return 0
        return int(min(wanted, most / demand.concurrency))  # `most` may be infinite

    def _expected(self, statistics: Any) -> bool:
        """Whether a worker has to be there soon: workers enqueue what is due, and drive the schedules."""
        due = getattr(statistics, "next_due", None)
        return bool(getattr(statistics, "schedules", 0)) or (due is not None and due <= self._scaling.target)


class Durations:
    """Tells how long handlers take, from what the workers have counted so far.

    The mean is that of the last 5 minutes, and of at least 20 messages. Where no worker has reported since, it stays.
    """

    def __init__(self) -> None:
        self._counted: dict[str, tuple[float, int]] = {}
        self._sums: deque[tuple[float, float, int]] = deque([(-math.inf, 0.0, 0)])

    def mean(self, now: float, workers: Iterable[WorkerStatistics]) -> float | None:
        """Return the mean in seconds; None before a handler has returned or failed.

        Args:
            now: The time of the look, in seconds of a monotonic clock.
            workers: Those that report now.
        """
        before, self._counted = self._counted, {}
        for worker in workers:
            seconds, messages = self._counted.get(worker.id, (0.0, 0))
            self._counted[worker.id] = seconds + worker.busy, messages + worker.handled + worker.failed
        sums = self._sums
        _, busy, done = sums[-1]
        for name, (seconds, messages) in self._counted.items():
            earlier, count = before.get(name, (0.0, 0))
            if messages < count:  # it counts from 0 again
                earlier, count = 0.0, 0
            busy, done = busy + max(0.0, seconds - earlier), done + messages - count
        if done > sums[-1][2]:
            sums.append((now, busy, done))
        while len(sums) > 2 and now - sums[1][0] > _WINDOW and done - sums[1][2] >= _ENOUGH:
            sums.popleft()
        (_, then, count), (_, busy, done) = sums[0], sums[-1]
        return (busy - then) / (done - count) if busy > then else None


def _handed_out(statistics: Any, length: int) -> int:
    """Return how many of the messages that wait could be handed out: none while paused, and not those of busy keys."""
    if getattr(statistics, "paused", False) or getattr(statistics, "limits", UNLIMITED).held_for:
        return 0
    return max(0, length - getattr(statistics, "parked", 0))


def _most(limits: Limits, mean: float | None) -> float:
    """Return how many messages can be in flight under these limits."""
    most = math.inf if limits.concurrency is None else float(limits.concurrency)
    if limits.rate is not None and mean is not None:
        most = min(most, limits.rate.count / limits.rate.per * mean)
    return most
