"""How long an object can be used: on one event loop, in one process, by one task, until it is closed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, ClassVar, Protocol

from apressure.exceptions import ClientClosedError


class _Closable(Protocol):
    def aclose(self) -> Awaitable[None]: ...


class AsyncClosing:
    """An object whose `async with` block ends with `aclose`."""

    async def __aexit__(
        self: _Closable, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class LoopBound(AsyncClosing):
    """An object that belongs to the event loop and the process in which it was first used."""

    _KIND: ClassVar[str]
    """What the object is, for errors."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._closed = False

    def check(self) -> None:
        """Raise a clear error if the object cannot be used: closed, another event loop, after a fork, no asyncio.

        Raises:
            ClientClosedError: It was closed.
            RuntimeError: It belongs to another event loop or process, or asyncio is not running.
        """
        pid = os.getpid()  # each time: a fork in C tells nobody
        if self._pid and self._pid != pid:
            raise RuntimeError(f"this {self._KIND} was opened before a fork: open a new one in the child process")
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("apressure needs a running asyncio event loop (trio is not supported)") from None
        if self._closed:
            raise ClientClosedError(f"this {self._KIND} was closed (aclose); open a new one")
        if self._loop is None:
            self._loop, self._pid = loop, pid
        elif self._loop is not loop:
            raise RuntimeError(f"this {self._KIND} belongs to another event loop: open one for each event loop")


class IteratingTask:
    """The task that iterates over a consumer: an item is acknowledged when its loop goes on, so there is only one."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None

    def check(self) -> bool:
        """Note that the current task iterates.

        Returns:
            Whether it did not before.

        Raises:
            RuntimeError: Another task does, and has not ended.
        """
        task = asyncio.current_task()
        if self._task is task:
            return False
        if self._task is not None and not self._task.done():
            raise RuntimeError(
                "another task iterates over this consumer: an item is acknowledged when its loop goes on, so each loop "
                "needs one task. Make a consumer for each task, or use ack='manual' and hand deliveries to several"
            )
        self._task = task
        return True
