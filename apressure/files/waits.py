"""The operations of a queue object: those that run, lines of those that wait, and what wakes these.

A wait takes nothing. A task that is woken tries again. If it is cancelled instead, the next one tries.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from apressure.concurrency.blocked import Blocked
from apressure.concurrency.settle import set_result_once
from apressure.core.backpressure import Backpressure
from apressure.core.waiting import Wait

if TYPE_CHECKING:
    from apressure.files.storage.store import Store


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


class Waits:
    """The lines of one queue object, and the context of each operation.

    An operation keeps descriptors and the thread open, and wakes other tasks at its end. While a task waits, the store
    attends to the kernel's notifications. It and the event loop have weak references only, so an object without other
    references is freed, closed or not.

    Args:
        store: The queue.

    Attributes:
        receivers: Wait for a message.
        putters: Wait for room.
        drainers: Wait, in a closed queue, for a message in flight to come back or to be acknowledged.
        closers: Wait until the queue is closed.
        tickets: The places in a line.
        backpressure: Tells the queue that puts wait here for room.
        blocked: For how long operations waited here.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._running = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._again: asyncio.TimerHandle | None = None
        self._closed = False
        self.receivers, self.putters, self.drainers, self.closers = self._lines = (Line(), Line(), Line(), Line())
        self.tickets = itertools.count()
        self.backpressure = Backpressure()
        self.blocked = Blocked()

    def __del__(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self.stop()

    def __enter__(self) -> None:
        self._running += 1

    def __exit__(self, *_: object) -> None:
        self._running -= 1
        self.nudge()
        if self._closed and not self._running:
            self._store.close()

    async def wait(self, wait: Wait, ticket: int, deadline: float | None) -> None:
        """Wait in a line until a try may succeed, or until the deadline, by the event loop's clock.

        Cancelled, it has taken nothing. After it, `nudge` lets the next task try.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        special = {"full": self.putters, "open": self.closers, "draining": self.drainers}
        line = special.get(wait.reason, self.receivers)
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

    def nudge(self) -> None:
        """Wake the tasks that may try again, after an operation of this object."""
        if self._closed:
            return
        if any(self._lines):
            self._loop = asyncio.get_running_loop()
            self._wake(False)
        elif self._again is not None:
            self.stop()

    def fail(self, error: Exception) -> int:
        """Raise an error in every waiting task. Returns how many there were."""
        return sum(line.fail(error) for line in self._lines)

    def close(self, error: Exception) -> None:
        """Raise an error in every waiting task, and close the store as soon as no operation runs."""
        self._closed = True
        self.fail(error)
        self.stop()
        if not self._running:
            self._store.close()

    def stop(self) -> None:
        """Look no more until `nudge` is called."""
        self._store.watcher.attend(None)
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _wake(self, passed: bool) -> None:
        again, counts = self._store.look(passed)
        for line, count in zip(self._lines, counts, strict=True):
            line.wake(count)
        if not any(self._lines):
            self.stop()
            return
        self._store.watcher.attend(weakref.WeakMethod(self._wake))
        assert self._loop is not None
        when = self._loop.time() + again
        if self._again is None or passed or self._again.when() > when:
            if self._again is not None:
                self._again.cancel()
            self._again = self._loop.call_at(when, _pass, weakref.WeakMethod(self._wake))


def _pass(method: weakref.WeakMethod[Callable[..., None]]) -> None:
    if (call := method()) is not None:
        call(True)
