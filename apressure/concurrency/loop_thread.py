"""Calls coroutines from code without asyncio, and waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from anyio.from_thread import BlockingPortal

from apressure.exceptions import PressureError

R = TypeVar("R")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._pid = os.getpid()

    def call(self, operation: Callable[[], Awaitable[R]], undo: Callable[[R], Awaitable[object]] | None = None) -> R:
        """Run an operation and return its result.

        At Ctrl-C it is cancelled. If it had a result all the same, which nobody gets now, `undo` is called with it.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("this queue was opened before a fork: open a new one in the child process")
        results: list[R] = []
        began: list[asyncio.Task[object]] = []
        interrupted, ended = threading.Event(), threading.Event()

        async def run() -> R:
            if interrupted.is_set() or (task := asyncio.current_task()) is None:
                raise asyncio.CancelledError
            began.append(task)
            try:
                results.append(await operation())
                return results[0]
            finally:
                ended.set()

        def interrupt() -> None:
            interrupted.set()
            for task in began:
                task.cancel()

        try:
            return self._portal.start_task_soon(run).result()
        except KeyboardInterrupt:
            self._portal.call(interrupt)  # from here on, an operation that has not begun will not begin
            if began:
                ended.wait()
            if results and undo is not None:
                with contextlib.suppress(PressureError):
                    self._portal.call(undo, results[0])
            raise
