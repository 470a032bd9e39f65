"""The thread for calls that may take long: those that wait for a disk, for a network, or for a long listing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    """One thread, started when it is needed; what it is given is done in order.

    Args:
        always: Give it short calls, too.
    """

    def __init__(self, always: bool) -> None:
        self.always = always
        self._executor: ThreadPoolExecutor | None = None

    async def do(self, call: Callable[..., T], *arguments: Any, undo: Callable[[T], object] | None = None) -> T:
        """Make a short call: here, unless everything goes into the thread."""
        if not self.always:
            return call(*arguments)
        return await self.in_thread(call, *arguments, undo=undo)

    async def in_thread(self, call: Callable[..., T], *arguments: Any, undo: Callable[[T], object] | None = None) -> T:
        """Make a call in the thread.

        Cancelled, it waits until the call has ended, undoes it where there is an `undo`, and then raises.
        """
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "apressure-files")
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, call, *arguments)
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            await _ended(future)
            if future.exception() is None and undo is not None:
                undone = loop.run_in_executor(self._executor, undo, future.result())
                await _ended(undone)
                undone.exception()  # what cannot be undone comes again when its time runs out
            raise
        return future.result()

    async def surely(self, call: Callable[..., object], *arguments: Any) -> None:
        """Make a short call that tidies up: also when cancelled it is made, and has ended. Its error is nobody's."""
        if not self.always or self._executor is None:
            call(*arguments)
            return
        future = asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments)
        cancelled = await _ended(future)
        future.exception()
        if cancelled:
            raise asyncio.CancelledError

    def close(self, last: Callable[[], None]) -> None:
        """End the thread after everything that it was given, and one more call."""
        if self._executor is None:
            last()
        else:
            self._executor.submit(last)
            self._executor.shutdown(wait=False)


async def _ended(future: asyncio.Future[Any]) -> bool:
    """Wait for the end of what cannot be stopped. Returns whether somebody cancelled meanwhile."""
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            cancelled = True
    return cancelled
