"""Waiting for a message, or for room: the lines of those who wait, and what wakes them.

A wait takes nothing. Who is woken tries again, and whoever is cancelled after it was woken lets the next one try.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

Line = deque["asyncio.Future[bool]"]


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
        self.receivers: Line = deque()
        self.publishers: Line = deque()

    async def wait(self, line: Line, fd: int, deadline: float | None) -> None:
        """Wait in one of the lines until there may be something, or until the deadline.

        Args:
            line: Which one.
            fd: What is readable when something has changed; -1 for nothing.
            deadline: By the event loop's clock; None for none.

        Cancelled, it has taken nothing.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        line.append(future)
        self._listen(loop, fd)
        limit = None if deadline is None else loop.call_at(deadline, _wake, future)
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():
                self.nudge()  # somebody else's turn
            raise
        finally:
            if limit is not None:
                limit.cancel()
            if future in line:
                line.remove(future)
            self._rest(loop)

    def nudge(self) -> None:
        """Look who may try again, after this object has changed or learned something."""
        if self.receivers or self.publishers:
            self._wake(asyncio.get_running_loop(), False)

    def fail(self, error: Exception) -> None:
        """Everybody who waits gets an error."""
        for line in (self.receivers, self.publishers):
            while line:
                future = line.popleft()
                if not future.done():
                    future.set_exception(error)

    def _listen(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        if self._fd == -1 and fd != -1:
            self._fd = fd
            loop.add_reader(fd, self._wake, loop, False)
        self._wake(loop, False)  # something may have changed since this task tried

    def _rest(self, loop: asyncio.AbstractEventLoop) -> None:
        if not (self.receivers or self.publishers):
            self.stop(loop)

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
        for line, count in ((self.receivers, outlook.receivers), (self.publishers, outlook.publishers)):
            for _ in range(min(count, len(line))):
                _wake(line.popleft())
        when = loop.time() + outlook.again
        if self._timer is None or passed or self._timer.when() > when:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(when, self._wake, loop, True)


def _wake(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(True)
