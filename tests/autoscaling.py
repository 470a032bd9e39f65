"""A day of load against the workers that an autoscaler starts and ends: what docs/do/scale.md shows.

Usage: python -m tests.autoscaling [--into PICTURE.png]

The number of workers comes from `apressure.telemetry.scaling`, and the pace of the autoscaler from
examples/deploy/scaling. The rest is a model: a Deployment whose pods take a while to start, and finish what they have
in hand, in steps of a second. Random numbers have a seed, so that each run has the same figures.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

from apressure.core.statistics import BoundedStatistics
from apressure.core.workers import WorkerStatistics
from apressure.telemetry.scaling import Scaler, Scaling
from examples.deploy.worker import SHUTDOWN_SECONDS

SCALING: Final = Path(__file__).parents[1] / "examples" / "deploy" / "scaling"
DAY: Final = 24 * 3600
LOOK: Final = 5
"""Seconds between two looks of the exporter."""
SYNC: Final = 15
"""Seconds between two decisions of the HPA."""
TOLERANCE: Final = 0.1
"""The HPA leaves the number as it is if the metric differs by no more."""
START: Final = 30
"""Seconds until a new pod takes messages."""
CONCURRENCY: Final = 4
MEAN: Final = 4.0
"""Seconds that a handler takes."""
SOON: Final = 600
"""Seconds: a worker that is started so soon after one was ended need not have been ended."""
EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)


def rate(second: int) -> float:
    """Return how many messages come in this second, on average: a working day, and a campaign at 19:00."""
    hour = second / 3600
    day = 6.0 * math.exp(-(((hour - 10.5) / 1.8) ** 2)) + 5.0 * math.exp(-(((hour - 15.0) / 1.8) ** 2))
    return (day if day > 0.05 else 0.0) + (9.0 if 19.0 <= hour < 19.5 else 0.0)


BATCHES: Final = {3600 * hour: 1 for hour in range(24)} | {3 * 3600: 4000}
"""Messages that are put at once: a schedule of every hour, and a job of the night."""


class Pod:
    """A worker.

    Attributes:
        ready: When it takes messages.
        in_hand: The messages that it handles.
        handled: The messages that it has handled.
        busy: Seconds that its handlers took.
        until: When it gives back what it has in hand; infinity before it is told to end.
    """

    def __init__(self, name: int, ready: int) -> None:
        self.name = name
        self.ready = ready
        self.in_hand = 0
        self.handled = 0
        self.busy = 0.0
        self.until = math.inf

    def told(self) -> WorkerStatistics:
        return WorkerStatistics(
            id=str(self.name), kind="serve", handler="handle", host="", pid=self.name, version="", since=EPOCH,
            seen=EPOCH, concurrency=CONCURRENCY, in_hand=self.in_hand, oldest=None, handled=self.handled, failed=0,
            busy=self.busy, draining=self.until < math.inf,
        )  # fmt: skip


class Autoscaler:
    """KEDA and its HPA, as the manifest sets them.

    Args:
        manifest: The name of the file.
    """

    def __init__(self, manifest: str) -> None:
        spec = yaml.safe_load((SCALING / manifest).read_text())["spec"]
        (trigger,) = spec["triggers"]
        self.target = float(trigger["metadata"].get("targetValue") or trigger["metadata"]["listLength"])
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        self._window = behavior["scaleDown"]["stabilizationWindowSeconds"]
        self.least, self.most = spec["minReplicaCount"], spec["maxReplicaCount"]
        self._polling, self._cooldown = spec["pollingInterval"], spec.get("cooldownPeriod", 300)
        self._recommended: deque[tuple[int, int]] = deque()
        self._active = -DAY

    def replicas(self, now: int, metric: float, current: int) -> int:
        """Return how many pods there shall be."""
        if metric > 0:
            self._active = now
        if current == 0:
            return int(metric > 0 and now % self._polling == 0)
        if self.least == 0 and now - self._active >= self._cooldown:
            return 0
        if now % SYNC:
            return current
        close = abs(metric / self.target / current - 1) <= TOLERANCE
        wanted = current if close else math.ceil(metric / self.target)
        self._recommended.append((now, wanted))
        while now - self._recommended[0][0] > self._window:
            self._recommended.popleft()
        if wanted < current:
            wanted = min(current, max(number for _, number in self._recommended))
        return int(min(max(wanted, self.least, 1), self.most, max(2 * current, current + 4)))


@dataclasses.dataclass
class Day:
    """What a day was like.

    Attributes:
        put: Messages.
        handled: Of these, those that were handled.
        cut: Handlers that were still at work when their worker had to end.
        waits: Seconds for which each message waited.
        busy: Seconds of work.
        paid: Seconds of workers.
        ended: Workers that were ended.
        flaps: Of these, those after which one was started within 10 minutes.
        most: The most workers at a time.
        minutes: For each minute: messages that wait, the workers, and those that were wanted.
    """

    put: int = 0
    handled: int = 0
    cut: int = 0
    waits: list[int] = dataclasses.field(default_factory=list)
    busy: float = 0.0
    paid: int = 0
    ended: int = 0
    flaps: int = 0
    most: int = 0
    minutes: list[tuple[int, int, float]] = dataclasses.field(default_factory=list)


def arrivals(chance: random.Random, second: int) -> int:
    """Return how many messages are put in this second."""
    count, least = BATCHES.get(second, 0), math.exp(-rate(second))
    product = chance.random()
    while product > least:
        product *= chance.random()
        count += 1
    return count


def simulate(
    manifest: str, length_alone: bool = False, duration: Callable[[float], float] | None = None, bound: int = 0
) -> Day:
    """Return what a day is like with the autoscaler of a manifest.

    Args:
        manifest: The file's name.
        length_alone: The metric is the number of messages that wait, as the scaler of a list sees it.
        duration: How long a handler takes, by a random number from 0 to 1.
        bound: The most messages that may wait; 0 for no bound. Producers wait with the others, each only for a moment.
    """
    puts, handlers, day = random.Random(7), random.Random(8), Day()
    times = duration or (lambda number: MEAN * (0.5 + number))
    scaler, autoscaler = Scaler(Scaling(min_workers=0, max_workers=20)), Autoscaler(manifest)
    waiting: deque[int] = deque()
    outside: deque[int] = deque()
    running: list[tuple[float, int, float, Pod]] = []  # when a handler ends, a number, how long it takes, its pod
    pods: list[Pod] = [Pod(-1, 0)] if autoscaler.least else []
    leaving: list[Pod] = []
    ends: list[int] = []
    numbers = itertools.count()
    metric = 0.0
    for now in range(DAY):
        for _ in range(arrivals(puts, now)):
            outside.append(now)
            day.put += 1
        enter(outside, waiting, bound)
        while running and running[0][0] <= now:
            _, _, seconds, pod = heapq.heappop(running)
            pod.in_hand -= 1
            if pod.until < now:  # it had given the message back
                continue
            pod.handled += 1
            pod.busy += seconds
            day.handled, day.busy = day.handled + 1, day.busy + seconds
        for pod in leaving:
            if now > pod.until and pod.in_hand:
                day.cut += pod.in_hand
                waiting.extendleft([now] * pod.in_hand)
        leaving = [pod for pod in leaving if pod.in_hand and pod.until >= now]
        free = [pod for pod in pods if pod.ready <= now]
        while waiting and free:
            pod = min(free, key=lambda each: each.in_hand)  # each worker takes its share
            if pod.in_hand == CONCURRENCY:
                break
            day.waits.append(now - waiting.popleft())
            enter(outside, waiting, bound)
            pod.in_hand += 1
            seconds = times(handlers.random())
            heapq.heappush(running, (now + seconds, next(numbers), seconds, pod))
        if now % LOOK == 0:
            metric = float(len(waiting)) if length_alone else look(scaler, now, len(waiting), bound, pods, leaving)
        replicas = autoscaler.replicas(now, metric, len(pods))
        for _ in range(replicas - len(pods)):
            pods.append(Pod(next(numbers), now + START))
            day.flaps += bool(ends) and now - ends.pop() <= SOON
        for pod in pods[replicas:]:  # the newest ones first
            pod.until = now + SHUTDOWN_SECONDS
            leaving.append(pod)
            ends.append(now)
            day.ended += 1
        del pods[replicas:]
        day.paid += len(pods) + len(leaving)
        day.most = max(day.most, len(pods))
        if now % 60 == 0:
            day.minutes.append((len(waiting), len(pods), metric / autoscaler.target))
    return day


def enter(outside: deque[int], waiting: deque[int], bound: int) -> None:
    """Put as many messages as there is room for."""
    while outside and not (bound and len(waiting) >= bound):
        waiting.append(outside.popleft())


def look(scaler: Scaler, now: int, waiting: int, bound: int, pods: list[Pod], leaving: list[Pod]) -> float:
    """Return the number that the exporter shows after a look."""
    present = [pod for pod in pods if pod.ready <= now] + leaving
    statistics = BoundedStatistics(
        name="orders", length=waiting, in_flight=sum(pod.in_hand for pod in present), waiting_putters=0,
        waiting_receivers=0, bound=bound, closed=False, paused=False, workers=tuple(pod.told() for pod in present),
    )  # fmt: skip
    return float(scaler.need(float(now), statistics).wanted_workers)


def summary(day: Day) -> dict[str, Any]:
    """Return the figures that the page has."""
    waits = sorted(day.waits)
    return {
        "messages": day.put,
        "worker hours": round(day.paid / 3600),
        "at work": f"{day.busy / CONCURRENCY / day.paid:.0%}",
        "most workers": day.most,
        "workers ended": day.ended,
        "started again within 10 minutes": day.flaps,
        "handlers cut short": day.cut,
        "waited over a minute": f"{sum(wait > 60 for wait in waits) / len(waits):.1%}",
        "median wait": f"{waits[len(waits) // 2]} s",
        "longest wait": f"{waits[-1]} s",
    }


def draw(days: dict[str, Day], into: Path) -> None:
    """Draw what waits, and the workers."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(9, 6), height_ratios=[1, 2])
    hours = [minute / 60 for minute in range(DAY // 60)]
    for (name, day), colour in zip(days.items(), ("#2f6fde", "#d6454b"), strict=True):
        above.plot(hours, [max(1, waiting) for waiting, _, _ in day.minutes], color=colour, linewidth=1)
        below.step(hours, [workers for _, workers, _ in day.minutes], color=colour, linewidth=1.2, label=name)
    busy = [rate(60 * minute) * MEAN / CONCURRENCY for minute in range(DAY // 60)]
    below.fill_between(hours, busy, color="#c3c9d0", label="work that comes in, in workers")
    above.set(yscale="log", ylabel="messages that wait", title="A day of load, and the workers that follow it")
    below.set(xlabel="hour", ylabel="workers", xlim=(0, 24), ylim=(0, None), xticks=range(0, 25, 3))
    below.legend(loc="upper center", fontsize="small")
    figure.tight_layout()
    figure.savefig(into, dpi=100, metadata={"Software": None})


def main() -> None:
    """Simulate, print, draw."""
    parser = argparse.ArgumentParser(prog="python -m tests.autoscaling", description=__doc__)
    parser.add_argument("--into", type=Path, metavar="PICTURE.png")
    options = parser.parse_args()
    days = {
        "wanted_workers (keda.yaml)": simulate("keda.yaml"),
        "the length of the list (keda-list.yaml)": simulate("keda-list.yaml", length_alone=True),
    }
    for name, day in days.items():
        print(name, *(f"  {what}: {value}" for what, value in summary(day).items()), sep="\n")
    if options.into:
        draw(days, options.into)


if __name__ == "__main__":
    main()
