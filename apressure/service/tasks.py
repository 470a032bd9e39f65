"""The tasks of a service: they own the messages in flight, from the moment one was received until it is settled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from apressure.concurrency import background


class Tasks:
    """The tasks of a service, and how many messages wait for a retry.

    Args:
        on_change: Called when a handler has ended, or a message has been settled.

    Attributes:
        all: The tasks.
        retrying: How many messages wait for a retry.
        cancelled: `cancel` has been called.
        watch: Called at each change, too.
    """

    def __init__(self, on_change: Callable[[], object] | None = None) -> None:
        self._on_change = on_change
        self.watch: Callable[[], object] | None = None
        self.all: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self.retrying = 0
        self.cancelled = False
        self._changed = asyncio.Event()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start a task."""
        task = background.start(work, name)
        self.all.add(task)
        task.add_done_callback(self._ended)

    @contextlib.contextmanager
    def retry(self, messages: int = 1) -> Iterator[None]:
        """Count so many messages as ones that wait for a retry."""
        self.retrying += messages
        self.changed()
        try:
            yield
        finally:
            self.retrying -= messages
            self.changed()

    def changed(self) -> None:
        """Wake what waits for a change."""
        self._changed.set()
        if self._on_change is not None:
            self._on_change()
        if self.watch is not None:
            self.watch()

    async def change(self) -> None:
        """Wait until a handler has ended, or a message has been settled, since the last call."""
        await self._changed.wait()
        self._changed.clear()

    def cancel(self) -> None:
        """Cancel the tasks, each one once, so that nothing interrupts what a handler does on cancellation.

        `cancelling()` does not tell which tasks these are: before Python 3.13, a handler's TaskGroup that failed may
        leave a cancellation behind.
        """
        self.cancelled = True
        for task in self.all - self._ending:
            self._ending.add(task)
            task.cancel()

    async def join(self) -> None:
        """Wait until all tasks have ended. A cancellation is raised after that."""
        await background.join(self.all)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.all.discard(task)
        self._ending.discard(task)
        self.changed()
