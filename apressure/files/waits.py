"""Lines of tasks that wait for a message, for room or for the end, and what wakes them.

A wait takes nothing. A task that is woken tries again. If it is cancelled instead, the next one tries.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import sys
import weakref
from collections.abc import Callable
from typing import NamedTuple

from apressure.concurrency.blocked import Blocked
from apressure.concurrency.settle import set_result_once
from apressure.core.waiting import Wait


class Line(dict[int, "asyncio.Future[None]"]):
    """Tasks that wait for one thing, by their tickets and in the order of these.

    Attributes:
        woken: How many of those that were woken have not tried yet.
    """

    woken = 0

    def join(self, ticket: int, future: asyncio.Future[None]) -> None:
        """Begin to wait, at the place of the ticket."""
        behind = list(itertools.takewhile(lambda other: other > ticket, reversed(self)))
        self[ticket] = future
        for other in reversed(behind):
            self[other] = self.pop(other)

    def leave(self, ticket: int) -> None:
        """End the wait. A task that was woken tries now."""
        if self.pop(ticket, None) is None:
            self.woken -= 1

    def wake(self, count: int) -> None:
        """Let `count` tasks try, including those that were woken before and have not tried yet."""
        for ticket in list(itertools.islice(self, max(0, count - self.woken))):
            self.woken += 1
            set_result_once(self.pop(ticket), None)

    def fail(self, error: Exception) -> int:
        """Raise an error in every waiting task. Returns how many there were."""
        count = len(self)
        while self:
            _, future = self.popitem()
            self.woken += 1
            if not future.done():
                future.set_exception(copy.copy(error))
        return count


class Outlook(NamedTuple):
    """How many waiting tasks of each line may try again: all of them, if nothing else is said.

    Attributes:
        again: Seconds after which to look again, even if nothing changes until then.
        receivers, putters, drainers, closers: How many; see `Waits`.
    """

    again: float
    receivers: int = sys.maxsize
    putters: int = sys.maxsize
    drainers: int = sys.maxsize
    closers: int = sys.maxsize


class Waits:
    """The lines of one queue object.

    While a task waits, the store attends to the kernel's notifications. It and the event loop have weak references
    only, so an object without other references is freed, closed or not.

    Args:
        look: Returns how many tasks may try again. Its argument says whether it is called since time has passed.
        attend: Is told what to call, with False, when something has changed; None for nothing.

    Attributes:
        receivers: Wait for a message.
        putters: Wait for room.
        drainers: Wait, in a closed queue, for a message in flight to come back or to be acknowledged.
        closers: Wait until the queue is closed.
        blocked: For how long operations waited here.
    """

    def __init__(
        self,
        look: Callable[[bool], Outlook],
        attend: Callable[[weakref.WeakMethod[Callable[[bool], None]] | None], None],
    ) -> None:
        self._look = look
        self._attend = attend
        self._loop: asyncio.AbstractEventLoop | None = None
        self._again: asyncio.TimerHandle | None = None
        self._closed = False
        self.receivers, self.putters, self.drainers, self.closers = self._lines = (Line(), Line(), Line(), Line())
        self._tickets = itertools.count()
        self.blocked = Blocked()

    def __del__(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self.stop()

    def ticket(self) -> int:
        """Return a place in a line."""
        return next(self._tickets)

    async def wait(self, wait: Wait, ticket: int, deadline: float | None) -> None:
        """Wait in a line until a try may succeed, or until the deadline, by the event loop's clock.

        Cancelled, it has taken nothing. After it, `nudge` lets the next task try.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        line = self._line(wait)
        line.join(ticket, future)
        self.blocked.until(wait.reason, future)
        self.nudge()  # something may have changed since this task tried
        limit = None if deadline is None else loop.call_at(deadline, set_result_once, future, None)
        try:
            await future
        finally:
            line.leave(ticket)
            if limit is not None:
                limit.cancel()

    def _line(self, wait: Wait) -> Line:
        if wait.reason == "full":
            return self.putters
        if wait.reason == "open":
            return self.closers
        return self.drainers if wait.reason == "draining" else self.receivers

    def nudge(self) -> None:
        """Wake the tasks that may try again, after an operation of this object."""
        if self._closed:
            return
        self._loop = asyncio.get_running_loop()
        if any(self._lines):
            self._wake(False)
        elif self._again is not None:
            self.stop()

    def fail(self, error: Exception) -> int:
        """Raise an error in every waiting task. Returns how many there were."""
        return sum(line.fail(error) for line in self._lines)

    def close(self, error: Exception) -> None:
        """Raise an error in every waiting task, and stop."""
        self._closed = True
        self.fail(error)
        self.stop()

    def stop(self) -> None:
        """Look no more until `nudge` is called."""
        self._attend(None)
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _wake(self, passed: bool) -> None:
        again, *counts = self._look(passed)
        for line, count in zip(self._lines, counts, strict=True):
            line.wake(int(count))
        if not any(self._lines):
            self.stop()
            return
        self._attend(weakref.WeakMethod(self._wake))
        assert self._loop is not None
        when = self._loop.time() + again
        if self._again is None or passed or self._again.when() > when:
            if self._again is not None:
                self._again.cancel()
            self._again = self._loop.call_at(when, _pass, weakref.WeakMethod(self._wake))


def _pass(method: weakref.WeakMethod[Callable[..., None]]) -> None:
    if (call := method()) is not None:
        call(True)
