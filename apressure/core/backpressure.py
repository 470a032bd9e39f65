"""Backpressure: a queue object whose puts wait for room for longer than a second tells that to its queue.

It is background work of a timer, as `core.registration` is: no put waits for it, and a put that does not wait, or for a
shorter time, sends nothing.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final, NamedTuple, Protocol

from apressure.core.registration import Pace, Registration, Registry, waiting_record
from apressure.core.workers import Letter

PATIENCE: Final = 1.0
"""Seconds for which a put waits before its queue is told; and from one look at those that wait to the next."""
BEAT: Final = 15.0
"""Seconds from one beat to the next, at least: where nothing changes, nothing need be told."""
SPREAD: Final = 5.0
"""Up to so many seconds more, by chance: of those that began together, each tells it at another time."""
CHANGED: Final = 5.0
"""Seconds after which it is told sooner that other puts wait."""
LASTS: Final = 30.0
"""Seconds for which it counts."""


class WaitingPuts(NamedTuple):
    """Puts that wait for room.

    Attributes:
        puts: How many.
        since: Since when the first of them has waited, by the clock of the event loop.
    """

    puts: int
    since: float


class Putter(Protocol):
    """Where puts may wait for room."""

    @property
    def for_room(self) -> WaitingPuts | None:
        """The puts that wait now; None if none does."""


class WaitForRoom:
    """A wait of an operation that has no lane.

    Args:
        since: Since when it waits, by the clock of the event loop.

    Attributes:
        ended: It waits no more.
    """

    def __init__(self, since: float) -> None:
        self.ended = False
        self._since = since

    @property
    def for_room(self) -> WaitingPuts | None:
        return None if self.ended else WaitingPuts(1, self._since)


class Backpressure:
    """Registers that puts of one queue object wait, from when one has waited for a second until none waits.

    Attributes:
        registry: Where it registers; None where it cannot.
    """

    def __init__(self) -> None:
        self.registry: Registry | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._putters: dict[Putter, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._registration: Registration | None = None
        self._told: WaitingPuts | None = None

    def note(self, putter: Putter) -> None:
        """A put begins to wait, or waits again."""
        if self.registry is None:
            return
        self._putters[putter] = None
        if self._timer is None:
            self._loop = asyncio.get_running_loop()
            self._timer = self._loop.call_later(PATIENCE, self._look)

    def end(self) -> None:
        """Leave the queue: its object is being closed."""
        self.registry = None
        if self._timer is not None and self._loop is asyncio.get_running_loop():  # not in a process that was forked
            self._timer.cancel()
            self._leave()

    def _look(self) -> None:
        self._timer = None
        waiting = self._waiting()
        if waiting is None or self.registry is None:
            self._leave()
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(PATIENCE, self._look)
        if self._registration is not None and waiting != self._told:
            self._registration.hurry(CHANGED)
        elif self._registration is None and loop.time() - waiting.since >= PATIENCE:
            self._registration = Registration(self.registry, Letter.PUTS, self._record, pace=_pace)
            self._registration.start(0)

    def _leave(self) -> None:
        if self._registration is not None:
            self._registration.end()
            if self._registration.refused:
                self.registry = None
            self._registration = None

    def _waiting(self) -> WaitingPuts | None:
        found = {putter: waiting for putter in self._putters if (waiting := putter.for_room) is not None}
        self._putters = dict.fromkeys(found)
        puts = sum(waiting.puts for waiting in found.values())
        return WaitingPuts(puts, min(waiting.since for waiting in found.values())) if found else None

    def _record(self, _: bool) -> bytes:
        now = asyncio.get_running_loop().time()
        self._told = self._waiting()
        puts, since = self._told or (0, now)
        return waiting_record(puts, now - since)


def _pace() -> Pace:
    return Pace(random.uniform(BEAT, BEAT + SPREAD), LASTS)
