"""Looks for input without sleeping while commands follow each other closely.

A thread that sleeps takes some 30 µs to wake, and a command wakes the event loop twice: for itself, and for the answer
of Redis. For a client that sends one command after the other, this is a third of the time. So the event loop does not
sleep for a moment after a command. If nothing comes in that moment, it soon sleeps at once again: a client that sends
a command now and then does not keep a core busy.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import Final

AWAKE: Final = 200e-6
"""Seconds after a command for which the event loop does not sleep: time for Redis, and for a client on this machine."""

_MOST_ASLEEP: Final = 63
"""The most commands in a row after which it sleeps, because it stayed awake in vain."""


class Polling:
    """Keeps an event loop awake after a command.

    Args:
        cores: How many cores this process may use; by default, it asks the system. With one, somebody who waits awake
            keeps Redis from answering, so the event loop always sleeps.
        clock: The time in seconds.
        call_soon: Calls a function in the next turn of the event loop; by default, of the running one.
    """

    def __init__(
        self,
        cores: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._clock = clock
        self._call_soon = call_soon or asyncio.get_running_loop().call_soon
        self._enabled = (cores or _cores()) > 1
        self._until = 0.0
        self._awake = False
        self._asleep = 0  # commands after which it sleeps, until it tries again
        self._pause = 0  # and how many that will be the next time

    def command(self) -> None:
        """A command has come."""
        if not self._enabled:
            return
        if self._awake:
            self._pause = 0
        elif self._asleep:
            self._asleep -= 1
            return
        else:
            self._awake = True
            self._call_soon(self._poll)
        self._until = self._clock() + AWAKE

    def _poll(self) -> None:
        if self._clock() < self._until:
            self._call_soon(self._poll)
        else:
            self._awake = False
            self._asleep = self._pause = min(2 * self._pause + 1, _MOST_ASLEEP)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
