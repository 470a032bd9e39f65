"""Waiting for a message, or for room: the lines of those who wait, and what wakes them.

A wait takes nothing. Who is woken tries again, and whoever is cancelled after it was woken lets the next one try.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import NamedTuple


class Line:
    """Those who wait for one thing, in the order in which they came, also when they come back."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._tickets = itertools.count()
        self.woken = 0
        """How many of those that were woken have not tried yet."""

    def __len__(self) -> int:
        return len(self._waiting)

    def ticket(self) -> int:
        """Return a place in the line."""
        return next(self._tickets)

    def join(self, ticket: int, future: asyncio.Future[None]) -> None:
        """Wait, at the place that one has."""
        behind = list(itertools.takewhile(lambda other: other > ticket, reversed(self._waiting)))
        self._waiting[ticket] = future
        for other in reversed(behind):
            self._waiting[other] = self._waiting.pop(other)

    def leave(self, ticket: int) -> None:
        """Wait no more; who was woken tries now."""
        if self._waiting.pop(ticket, None) is None:
            self.woken -= 1

    def wake(self, count: int) -> None:
        """Let so many try, those included that are about to."""
        for ticket in list(itertools.islice(self._waiting, max(0, count - self.woken))):
            future = self._waiting.pop(ticket)
            self.woken += 1
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception) -> None:
        """Everybody gets an error."""
        while self._waiting:
            _, future = self._waiting.popitem()
            self.woken += 1
            if not future.done():
                future.set_exception(error)


class Outlook(NamedTuple):
    """Who may try again.

    Attributes:
        receivers: How many of those who wait for a message.
        publishers: How many of those who wait for room.
        again: Seconds after which to look again, whatever is told until then.
    """

    receivers: int
    publishers: int
    again: float


class Waits:
    """The two lines of one queue object.

    Args:
        look: Says who may try again. It is told whether time has passed, and not only something was changed.

    Attributes:
        receivers: Those who wait for a message.
        publishers: Those who wait for room.
    """

    def __init__(self, look: Callable[[bool], Outlook]) -> None:
        self._look = look
        self._fd = -1
        self._timer: asyncio.TimerHandle | None = None
        self.receivers = Line()
        self.publishers = Line()

    async def wait(self, line: Line, ticket: int, fd: int, deadline: float | None) -> None:
        """Wait in one of the lines until there may be something, or until the deadline.

        Args:
            line: Which one.
            ticket: The place in it.
            fd: What is readable when something has changed; -1 for nothing.
            deadline: By the event loop's clock; None for none.

        Cancelled, it has taken nothing.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        line.join(ticket, future)
        self._listen(loop, fd)
        cancelled = False
        limit = None if deadline is None else loop.call_at(deadline, _end, future)
        try:
            await future
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:
            line.leave(ticket)
            if cancelled:
                self.nudge()  # if it was woken, it is somebody else's turn
            if limit is not None:
                limit.cancel()
            if not (self.receivers or self.publishers):
                self.stop(loop)

    def nudge(self) -> None:
        """Look who may try again, after this object has changed or learned something."""
        if self.receivers or self.publishers:
            self._wake(asyncio.get_running_loop(), False)

    def fail(self, error: Exception) -> None:
        """Everybody who waits gets an error."""
        self.receivers.fail(error)
        self.publishers.fail(error)

    def _listen(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        if self._fd == -1 and fd != -1:
            self._fd = fd
            loop.add_reader(fd, self._wake, loop, False)
        self._wake(loop, False)  # something may have changed since this task tried

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fd != -1:
            loop.remove_reader(self._fd)
            self._fd = -1

    def _wake(self, loop: asyncio.AbstractEventLoop, passed: bool) -> None:
        outlook = self._look(passed)
        self.receivers.wake(outlook.receivers)
        self.publishers.wake(outlook.publishers)
        when = loop.time() + outlook.again
        if self._timer is None or passed or self._timer.when() > when:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(when, self._wake, loop, True)


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
