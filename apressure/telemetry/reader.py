"""Looks at queues again and again, a few at a time, so that a busy server hardly notices."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final

from apressure.concurrency import background
from apressure.concurrency.backoff import pause_until
from apressure.telemetry.sampler import Monitored, Sampler
from apressure.telemetry.scaling import Scaling

MOST: Final = 50
"""Looks a second: about 1 % of a core of the server (`nox -s bench -- watch` measures that)."""

_AT_A_TIME: Final = 32
"""So many queues are looked at side by side, where all are looked at once."""

_UNANSWERED: Final = 1000
"""So many looks may be without an answer. Those at a server that hangs must not keep others from theirs."""

_TOGETHER: Final = 0.2
"""Seconds: looks that are due within this time go to a server together, which wakes it and costs it less."""

_HEARTBEAT: Final = 1.0
"""Seconds after which the task notes that the event loop runs."""


class Reader:
    """Looks at queues. Each is looked at every `interval` seconds, or less often, if there are too many for that.

    Args:
        interval: Seconds between two looks at a queue.
        timeout: Seconds for a look.
        scaling: How many workers the queues may need; None for not to say it.
        most: Looks a second.

    Attributes:
        interval, timeout: As given.
        turned_at: When the event loop has run last, as far as is known, by the monotonic clock.
        looked: Set after each look, for those who show what was seen. They clear it.
    """

    def __init__(self, interval: float, timeout: float, scaling: Scaling | None = None, most: int = MOST) -> None:
        self.interval = interval
        self.timeout = timeout
        self.turned_at = 0.0
        self.looked = asyncio.Event()
        self._most = most
        self._scaling = scaling
        self._samplers: dict[int, tuple[Sampler, int]] = {}
        self._preferred: set[int] = set()
        self._lines: tuple[deque[_Place], deque[_Place]] = deque(), deque()
        self._due: dict[int, float] = {}
        self._last = self._lines[1]
        self._changed = asyncio.Event()
        self._looking: set[asyncio.Task[None]] = set()

    def add(self, queue: Monitored) -> Sampler:
        """Look at this queue, too. A queue that was added twice has to be discarded twice."""
        known = self._samplers.get(id(queue))
        sampler, count = known or (Sampler(queue, self._scaling), 0)
        self._samplers[id(queue)] = sampler, count + 1
        if known is None:
            self._place_first(sampler)
        return sampler

    def discard(self, queue: Monitored) -> None:
        """Look at this queue no more."""
        sampler, count = self._samplers.pop(id(queue), (None, 0))
        if sampler is not None and count > 1:
            self._samplers[id(queue)] = sampler, count - 1
        else:
            self._due.pop(id(queue), None)

    def prefer(self, samplers: set[Sampler]) -> None:
        """Use half of the looks for these queues, if there are too many queues: somebody looks at them."""
        before, self._preferred = self._preferred, {id(sampler.queue) for sampler in samplers}
        for sampler in samplers:
            if id(sampler.queue) in self._due and id(sampler.queue) not in before:
                self._place_first(sampler)

    @property
    def samplers(self) -> tuple[Sampler, ...]:
        """What has looked at the queues, in the order in which they were added. It may be read in any thread."""
        return tuple(sampler for sampler, _ in tuple(self._samplers.values()))

    @property
    def period(self) -> float:
        """In how many seconds each queue is looked at once."""
        return max(self.interval, len(self._samplers) / self._most)

    async def run(self) -> None:
        """Look at the queues until this is cancelled, and at once at those that are new."""
        loop = asyncio.get_running_loop()
        last, left = loop.time(), float(self._most)
        try:
            while True:
                now = loop.time()
                self.turned_at = time.monotonic()
                left, last = min(self._most, left + (now - last) * self._most), now
                self._changed.clear()
                while left >= 1 and len(self._looking) < _UNANSWERED and (sampler := self._next(now)) is not None:
                    left -= 1
                    looking = background.start(self._look(sampler), "looking at a queue")
                    self._looking.add(looking)
                    looking.add_done_callback(self._looked)
                pause = self._due_in(now) if left >= 1 else 0.0
                await pause_until(self._changed, max(pause, min(_TOGETHER, self.interval)))
        finally:
            for task in self._looking:
                task.cancel()
            await background.join(self._looking)

    async def sample(self) -> None:
        """Look at all queues once, for up to `timeout` seconds in all.

        Cancelled, some queues keep their earlier sample.
        """
        limit = asyncio.Semaphore(_AT_A_TIME)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout

        async def look(sampler: Sampler) -> None:
            async with limit:
                await sampler.sample(max(0.0, deadline - loop.time()))

        async with asyncio.TaskGroup() as group:
            for sampler in self.samplers:
                group.create_task(look(sampler))
        self.turned_at = time.monotonic()
        self.looked.set()

    def _place_first(self, sampler: Sampler) -> None:
        """Have this queue looked at next. If it has a place in a line, that counts no more."""
        self._due[id(sampler.queue)] = 0.0
        self._line_of(sampler).appendleft((0.0, sampler))
        self._changed.set()

    def _line_of(self, sampler: Sampler) -> deque[_Place]:
        """Return the line for a queue. In both, all wait for the same time, so the first one is due first.

        Those that are preferred have one of their own: see `_next`.
        """
        return self._lines[0 if id(sampler.queue) in self._preferred else 1]

    async def _look(self, sampler: Sampler) -> None:
        """Look at a queue; then it is the last one of its line."""
        await sampler.sample(self.timeout)
        if self._is_known(sampler):
            due = self._due[id(sampler.queue)] = asyncio.get_running_loop().time() + self.interval
            self._line_of(sampler).append((due, sampler))

    def _looked(self, looking: asyncio.Task[None]) -> None:
        if len(self._looking) == _UNANSWERED:
            self._changed.set()
        self._looking.discard(looking)
        self.looked.set()

    def _next(self, now: float) -> Sampler | None:
        """Return what is to look now: from both lines in turn, where both have somebody who is due."""
        preferred, others = self._lines
        for line in (others, preferred) if self._last is preferred else (preferred, others):
            while line and line[0][0] <= now:
                due, sampler = line.popleft()
                if self._is_known(sampler) and self._due.get(id(sampler.queue)) == due:
                    del self._due[id(sampler.queue)]
                    self._last = line
                    return sampler
        return None

    def _is_known(self, sampler: Sampler) -> bool:
        known, _ = self._samplers.get(id(sampler.queue), (None, 0))
        return known is sampler

    def _due_in(self, now: float) -> float:
        """Return in how many seconds the next queue is due."""
        if len(self._looking) >= _UNANSWERED:
            return _HEARTBEAT
        return min((_HEARTBEAT, self.interval, *(line[0][0] - now for line in self._lines if line)))


_Place = tuple[float, Sampler]
"""When it is due, by the event loop's clock, and what looks."""
