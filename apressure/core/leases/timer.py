"""Looks after leases: at each one in turn, or by a timer of the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from apressure.core.leases.renewal import Renewal

_IDLE: Final = 2.0
"""Seconds between two looks while there is no lease, so that a new one need not wake a thread."""


def look_at(renewals: Iterable[Renewal], renew: Callable[[Renewal], None] | None) -> float:
    """Renew what is due, and return in how many seconds to look again; 0 where one is due and `renew` is None."""
    pause = _IDLE
    for renewal in list(renewals):
        next_look = renewal.look()
        if next_look <= 0:
            if renew is None:
                return 0.0
            renew(renewal)
            next_look = renewal.look()
        pause = min(pause, max(next_look, 0.001))
    return pause


class Timer:
    """A `Renewer` of the event loop. While the loop is blocked, it renews nothing: a lease ends then.

    Attributes:
        home, home_thread, turned_at, late: As for `driver.Renewer`.
    """

    def __init__(self) -> None:
        self.home: asyncio.AbstractEventLoop | None = None
        self.home_thread: threading.Thread | None = None
        self.turned_at = 0.0
        self.late: Counter[str] = Counter()
        self._renewals: dict[Renewal, None] = {}
        self._next: asyncio.TimerHandle | None = None

    def __contains__(self, renewal: Renewal) -> bool:
        return renewal in self._renewals

    def add(self, renewal: Renewal) -> None:
        """Renew a lease until `discard`. It may have been added before."""
        if renewal in self._renewals:
            return  # it is looked at three times a lease
        self._renewals[renewal] = None
        if self.home is None:
            self.home, self.home_thread = asyncio.get_running_loop(), threading.current_thread()
        self._look_next(0.0)  # at once: this says when to look again

    def discard(self, renewal: Renewal) -> None:
        """Renew a lease no more."""
        self._renewals.pop(renewal, None)
        if not self._renewals and self._next is not None:
            self._next.cancel()
            self._next = None

    def failed(self, renewal: Renewal, error: Exception) -> None:
        """A renewal has failed: it is tried again when the next one is due."""

    def call_home(self, function: Callable[[], object]) -> None:
        """Call a function in the next turn of the event loop."""
        if self.home is not None:
            self.home.call_soon(function)

    def _look_next(self, pause: float) -> None:
        assert self.home is not None
        if self._next is not None:
            self._next.cancel()
        self._next = self.home.call_later(pause, self._look)

    def _look(self) -> None:
        self.turned_at = time.monotonic()
        pause = look_at(self._renewals, Renewal.renew_here)
        if self._renewals:
            self._look_next(pause)
