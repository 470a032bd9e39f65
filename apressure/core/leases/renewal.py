"""Keeps a lease renewed: when that is due, by which connection, and until when a handler may hold it.

A `Renewer` looks at it from time to time, in a thread of its own. So everything here reads what the event loop writes,
and never the other way round: what changes the lease itself is called on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final, Protocol

from apressure.core.driver import Connection
from apressure.core.leases.clock import Term
from apressure.core.leases.stacks import stacks
from apressure.exceptions import LeaseLostError

logger = logging.getLogger("apressure")


RETRY: Final = 1.0
"""Seconds before a renewal that failed is tried again, and for which its connection may try to repair itself."""

_IDLE: Final = 2.0
"""Seconds between two looks while there is no lease, so that a new one need not wake a thread."""

_PAUSED: Final = 2
"""The answer to a renewal where the queue is paused."""

Step = Callable[[int, Callable[[Any], None], Connection | None], object]
"""Renews a lease on the server: for how many milliseconds, who gets the answer, and by which connection."""


class Held(Protocol):
    """A lease that is to be renewed.

    Attributes:
        term: How long it lasts.
        renewable: There is something to renew.
        in_hand: The program has something in hand that it has not settled.
        progress: Another value after each message that was handed out or settled.
    """

    term: Term

    @property
    def renewable(self) -> bool: ...

    @property
    def in_hand(self) -> bool: ...

    @property
    def progress(self) -> Hashable: ...

    def renew(self) -> None:
        """Renew it over the client's own connection. Called on the event loop."""

    def give_up(self, error: LeaseLostError) -> None:
        """End it, and give back what is in flight; later operations raise the error. Called on the event loop."""


class Standstill:
    """Measures for how long there has been no progress under a lease.

    Args:
        lease: The lease.
        most: As many seconds without progress end the lease; it may change.

    Attributes:
        seconds: For how long there was no progress at the latest look.
        excused: How many operations wait for another queue with messages of this lease in hand. While any does, it is
            enough that the event loop turns.
    """

    def __init__(self, lease: Held, most: float) -> None:
        self.most = most
        self.seconds = 0.0
        self.excused = 0
        self._lease = lease
        self._progress: Hashable = None
        self._looked_at = 0.0
        self._extended = 0.0

    def look(self, turned_at: float) -> None:
        """Look at the lease. A process that stood still itself is not blamed for that.

        Args:
            turned_at: When the client's event loop turned last, by the monotonic clock.
        """
        lease, term = self._lease, self._lease.term
        now, progress = time.monotonic(), lease.progress
        turned = turned_at > self._looked_at and (self.excused or not lease.in_hand)
        alive = turned or progress != self._progress or term.clock() < term.extended or now < self._extended
        self.seconds = 0.0 if alive else self.seconds + min(now - self._looked_at, term.seconds)
        self._progress, self._looked_at = progress, now

    @contextlib.contextmanager
    def excuse(self) -> Iterator[None]:
        """Meanwhile an operation waits for another queue, with messages of this lease in hand."""
        self.excused += 1
        try:
            yield
        finally:
            self.excused -= 1

    def extend(self, seconds: float) -> None:
        """The program has asked for so many seconds from now: nothing is stuck until then."""
        self._extended = max(self._extended, time.monotonic() + seconds)

    def end(self) -> None:
        """There is nothing to look at: the next look counts as progress."""
        self._progress = None

    @property
    def over(self) -> bool:
        """Whether there has been progress since the latest look."""
        return self._lease.progress != self._progress


class Schedule:
    """When a lease has to be renewed, and whether that came too late.

    Args:
        lease: The lease.
        renewer: Counts renewals that came too late.
        name: The queue's name.

    Attributes:
        name: As given.
    """

    def __init__(self, lease: Held, renewer: Timer, name: str) -> None:
        self.name = name
        self._lease = lease
        self._renewer = renewer
        self._earliest = 0.0  # by the clock of the term
        self._due: float | None = None  # when the renewal under way had to begin

    def begin(self) -> None:
        """The lease has just been taken, or renewed."""
        self._due = None
        self.postpone(self._lease.term.seconds / 3)

    def postpone(self, seconds: float) -> None:
        """Renew it no earlier than in so many seconds."""
        self._earliest = self._lease.term.clock() + seconds

    def pause(self) -> float:
        """Return in how many seconds the lease has to be renewed; acknowledgements and receives renew it, too."""
        term = self._lease.term
        return max(self._earliest, term.certain_until - term.seconds * 2 / 3) - term.clock()

    def note_due(self) -> None:
        """Note when the lease had to be renewed, unless an earlier try has noted it."""
        if self._due is None:
            self._due = self._lease.term.clock() + self.pause()

    def renewed(self) -> None:
        """The lease is renewed: count it if that is more than a third of the lease too late."""
        term, due = self._lease.term, self._due
        self.begin()
        if due is not None:
            due = max(due, term.certain_until - term.seconds * 2 / 3)  # another step may have renewed it meanwhile
            if term.clock() - due > term.seconds / 3:
                self._renewer.late[self.name] += 1


class Renewal:
    """Renews a lease.

    Args:
        lease: The lease.
        renewer: The client's.
        keys: The KEYS of its script.
        step: Renews it on the server.
        what: What the lease is on, for the log and for errors.
        name: The queue's name.
        max_hold: Seconds without progress after which the lease ends.
        on_paused: Called on the event loop when a renewal finds the queue paused.

    Attributes:
        keys: As given.
        standstill: For how long there has been no progress.
        schedule: When the lease has to be renewed.
    """

    def __init__(
        self,
        lease: Held,
        renewer: Timer,
        keys: tuple[bytes, ...],
        step: Step,
        what: str,
        name: str,
        max_hold: float,
        on_paused: Callable[[], None] | None = None,
    ) -> None:
        self.keys = keys
        self.standstill = Standstill(lease, max_hold)
        self._task: weakref.ref[asyncio.Task[Any]] | None = None
        self._lease = lease
        self._renewer = renewer
        self.schedule = Schedule(lease, renewer, name)
        self._what = what
        self._step = step
        self._on_paused = on_paused
        self._pending = False
        self._stuck = False
        self._ended = False

    def note_task(self) -> None:
        """Note the current task, which acquires the lease or receives under it, for the log."""
        task = asyncio.current_task()
        self._task = None if task is None else weakref.ref(task)

    def begin(self) -> None:
        """Renew the lease from now on, if that has not begun before. It has just been taken, or renewed."""
        if self._ended:
            return  # messages have come after the lease was left
        self.schedule.begin()
        self._stuck = False
        self._renewer.add(self)

    def end(self) -> None:
        """Renew the lease never again."""
        self._ended = True
        self._renewer.discard(self)

    def look(self) -> float:
        """Return in how many seconds to look again; 0 or less if the lease has to be renewed now."""
        third = self._lease.term.seconds / 3
        if not self._stuck and self._lease.renewable:
            self._watch()
        else:
            self.standstill.end()
        if self._stuck or self._pending or not self._lease.renewable:
            return min(third, RETRY)
        pause = self.schedule.pause()
        if pause <= 0:
            return 0.0
        # Not for each lease at its very moment: the thread looks at all of them, and there may be a thousand.
        return min(max(pause, third / 10), third, self.standstill.most / 3)

    def renew(self, connection: Connection) -> None:
        """Renew the lease over this connection. Called in the renewer's thread."""
        term = self._lease.term
        milliseconds = term.milliseconds
        self.schedule.note_due()
        confirm = term.sent(milliseconds)
        self._pending = True

        def on_answer(answer: Any) -> None:
            self._pending = False
            if isinstance(answer, Exception):
                self.schedule.postpone(min(RETRY, term.seconds / 3))
                self._renewer.failed(self, answer)
            else:
                self.schedule.renewed()
                confirm()
                if answer == _PAUSED and self._on_paused is not None:
                    self._renewer.call_home(self._on_paused)

        self._step(milliseconds, on_answer, connection)

    def renew_here(self) -> None:
        """Renew the lease over the client's own connection. Called on the event loop."""
        self._pending = False
        self.schedule.note_due()
        self.schedule.renewed()
        self._lease.renew()

    def _watch(self) -> None:
        """End the lease if there has been no progress for too long."""
        self.standstill.look(self._renewer.turned_at)
        if self.standstill.seconds < self.standstill.most:
            return
        self._stuck = True
        logger.error(
            "the lease on %s of the queue %r ends: for %g seconds (max_hold) nothing was handed out or "
            "settled, and a handler is busy, or the event loop is blocked\n%s",
            self._what, self.schedule.name, self.standstill.most,
            stacks(self._renewer.home, self._renewer.home_thread, None if self._task is None else self._task()),
            extra={"event": "handler_stuck", "queue": self.schedule.name, "seconds": self.standstill.most},
        )  # fmt: skip
        self._renewer.call_home(self._give_up)

    def _give_up(self) -> None:
        """End a lease that was held for too long. Called on the event loop."""
        if self not in self._renewer or not self._stuck:
            return
        if self.standstill.over:  # the loop was blocked, and has gone on before this
            self.begin()
            return
        self.end()
        self._lease.give_up(
            LeaseLostError(
                f"the lease on {self._what} of the queue {self.schedule.name!r} was given up: for "
                f"{self.standstill.most:g} seconds (max_hold) nothing was handed out or settled",
                name=self.schedule.name,
                role="producer" if self._what == "the producer role" else "consumer",
            )
        )


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
    """Looks after leases by a timer of the event loop. While the loop is blocked, it renews nothing: a lease ends then.

    Attributes:
        home: The client's event loop.
        home_thread: The thread that runs it.
        turned_at: When the client's event loop is known to have turned, by the monotonic clock.
        late: How many renewals came too late, by the name of the queue.
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
