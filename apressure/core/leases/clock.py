"""How long leases last, by a clock that goes on while the machine is suspended, as the server's does."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Final

Clock = Callable[[], float]
"""Returns seconds; only differences mean something."""

# Linux stops CLOCK_MONOTONIC while it is suspended; macOS does not, and has no CLOCK_BOOTTIME.
since_boot: Final[Clock] = functools.partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Term:
    """How long a lease lasts, and until when it has certainly not expired.

    Args:
        seconds: How long the role stays taken after a renewal.
        clock: Returns seconds, also those for which the machine was suspended.

    Attributes:
        seconds: As given; it may change.
        extended: The lease lasts until then at least, by the clock.
        clock: As given.

    Renewals are confirmed in the event loop, and in the thread of the client's `Renewer`.
    """

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.seconds = seconds
        self.clock = clock
        # Each lease has its own list, so that a late confirmation changes the list of a lease that has ended. If two
        # threads confirm at the same time, the earlier time may remain: then the server is asked once more.
        self._certain_until = [0.0]
        self.extended = 0.0

    @property
    def certain_until(self) -> float:
        """When the lease may expire, by the clock."""
        return self._certain_until[0]

    @property
    def certain(self) -> bool:
        """Whether the lease has certainly not expired."""
        return self.clock() < self.certain_until

    def begin(self) -> None:
        """Another lease begins, which may be shorter than the one before."""
        self._certain_until = [0.0]

    @property
    def milliseconds(self) -> int:
        """For how long a step that is sent now renews the lease."""
        return int(max(self.seconds, self.extended - self.clock()) * 1000)

    def extend(self, seconds: float) -> None:
        """Let renewals last until at least so many seconds from now."""
        self.extended = self.clock() + seconds

    def sent(self, milliseconds: int) -> Callable[[], None]:
        """A step that renews the lease leaves now; returns what to call when the server has carried it out.

        The server renewed the lease at some time after that; a repeat counts as the first try.
        """
        certain_until, until = self._certain_until, self.clock() + milliseconds / 1000

        def confirmed() -> None:
            certain_until[0] = max(certain_until[0], until)

        return confirmed
