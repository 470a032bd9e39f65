"""Waiting for a message, or for room: the lines of those who wait, and what wakes them.

A wait takes nothing. Who is woken tries again, and whoever is cancelled after it was woken lets the next one try.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import Callable
from typing import Final, NamedTuple

_REST: Final = 0.05
"""Seconds between two readings of what the kernel tells while nobody waits. It remembers some 3000 messages."""


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
    """The two lines of one queue object, and who reads what the kernel tells it.

    While somebody waits, that is read at once. While nobody does it is read now and then, since the kernel remembers so
    much and no more, and then the next operation would have to list everything; and not at all where nothing happens.
    The event loop has weak references only, so an object that nobody has any more ends, closed or not.

    Args:
        look: Says who may try again. It is told whether time has passed, and not only something was changed.
        fileno: Returns what is readable when something has changed; -1 for nothing.

    Attributes:
        receivers: Those who wait for a message.
        publishers: Those who wait for room.
    """

    def __init__(self, look: Callable[[bool], Outlook], fileno: Callable[[], int]) -> None:
        self._look = look
        self._fileno = fileno
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fd = -1
        self._again: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._closed = False
        self.receivers = Line()
        self.publishers = Line()

    def __del__(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._stop()

    async def wait(self, line: Line, ticket: int, deadline: float | None) -> None:
        """Wait in one of the lines until there may be something, or until the deadline.

        Args:
            line: Which one.
            ticket: The place in it.
            deadline: By the event loop's clock; None for none.

        Cancelled, it has taken nothing. However it ends, `nudge` lets the next one try.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        line.join(ticket, future)
        self.nudge()  # something may have changed since this task tried
        limit = None if deadline is None else loop.call_at(deadline, _end, future)
        try:
            await future
        finally:
            line.leave(ticket)
            if limit is not None:
                limit.cancel()

    def nudge(self) -> None:
        """Look who may try again, after this object has changed or learned something."""
        if self._closed:
            return
        self._loop = asyncio.get_running_loop()
        if self.receivers or self.publishers:
            self._wake(False)
        elif self._pause is None and (self._again is not None or self._fd == -1):
            self._rest()

    def close(self, error: Exception) -> None:
        """Everybody who waits gets an error, and nothing is read any more."""
        self._closed = True
        self.receivers.fail(error)
        self.publishers.fail(error)
        self._stop()

    def _wake(self, passed: bool) -> None:
        outlook = self._look(passed)
        self.receivers.wake(outlook.receivers)
        self.publishers.wake(outlook.publishers)
        if not (self.receivers or self.publishers):
            self._rest()
            return
        self._listen()
        assert self._loop is not None
        when = self._loop.time() + outlook.again
        if self._again is None or passed or self._again.when() > when:
            if self._again is not None:
                self._again.cancel()
            self._again = self._loop.call_at(when, _call, weakref.WeakMethod(self._wake), True)

    def _rest(self) -> None:
        self._stop()
        assert self._loop is not None
        self._pause = self._loop.call_later(_REST, _call, weakref.WeakMethod(self._listen))

    def _listen(self) -> None:
        """Read what is told, as soon as it is told."""
        assert self._loop is not None
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        fd = self._fileno()
        if fd != self._fd:
            self._ignore()
            if fd != -1:
                self._loop.add_reader(fd, _call, weakref.WeakMethod(self._wake), False)
            self._fd = fd

    def _ignore(self) -> None:
        if self._fd != -1 and self._loop is not None:
            self._loop.remove_reader(self._fd)
            self._fd = -1

    def _stop(self) -> None:
        self._ignore()
        for timer in (self._again, self._pause):
            if timer is not None:
                timer.cancel()
        self._again = self._pause = None


def _call(method: weakref.WeakMethod[Callable[..., None]], *arguments: bool) -> None:
    if (call := method()) is not None:
        call(*arguments)


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
