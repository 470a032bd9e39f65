"""The thread for calls that may take long: they wait for a disk or a network, or list a large directory.

It is a daemon thread, not an executor: a program can end although a call hangs. At the `deadline=` of an operation, its
task stops waiting for a call, which ends some time later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from apressure import logs
from apressure.concurrency.settle import set_result_once, wait_shielded, within_deadline

T = TypeVar("T")


class _Job(Generic[T]):
    """A call in the thread.

    Attributes:
        ended: Done when the call has returned, or raised.
        error: What it raised.
        cancelled: The cancellation of the task that waits for it.
    """

    __slots__ = ("_arguments", "_call", "_loop", "_result", "cancelled", "ended", "error")

    def __init__(self, call: Callable[..., T], arguments: tuple[Any, ...]) -> None:
        self._call = call
        self._arguments = arguments
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.error: BaseException | None = None
        self.cancelled: asyncio.CancelledError | None = None

    def run(self) -> None:
        """Make the call, in the thread."""
        try:
            self._result = made(self._call, *self._arguments)
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self.error = error
        with contextlib.suppress(RuntimeError):  # the loop was closed, so no task waits any more
            self._loop.call_soon_threadsafe(set_result_once, self.ended, None)

    async def wait(self) -> None:
        """Wait for the end of the call, also when cancelled; but no longer than the operation's deadline."""
        try:
            if not _too_late():
                await asyncio.shield(self.ended)
        except asyncio.CancelledError as cancelled:
            self.cancelled = cancelled
            await wait_shielded(self.ended, math.inf)

    def result(self) -> T:
        """Return what the call returned, or raise what it raised."""
        if self.error is not None:
            raise self.error
        return self._result


class Worker:
    """One thread, started when it is needed. It makes calls in the order in which they were given.

    Attributes:
        always: Make short calls in the thread, too.
    """

    def __init__(self, always: bool) -> None:
        self.always = always
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._started = False
        self._late: _Job[Any] | None = None
        """The last call whose task has stopped waiting for it."""

    def __del__(self) -> None:
        self._jobs.put(None)

    async def do(self, call: Callable[..., T], *arguments: Any, undo: Callable[[T], object] | None = None) -> T:
        """Make a short call: here, unless `always` is set."""
        if self.always:
            return await self.in_thread(call, *arguments, undo=undo)
        return made(call, *arguments)

    async def in_thread(self, call: Callable[..., T], *arguments: Any, undo: Callable[[T], object] | None = None) -> T:
        """Make a call in the thread.

        Cancelled, it waits until the call has ended, undoes it where there is an `undo`, and then raises. At the
        operation's deadline it raises at once, and the call is undone when it has ended.
        """
        job = await self._ended(call, *arguments)
        if job.ended.done() and job.cancelled is None:
            return job.result()
        if undo is not None and not (job.ended.done() and job.error is not None):
            await self._ended(_undo, undo, job)  # if that fails, the message comes again when its lease ends
        raise job.cancelled or asyncio.CancelledError

    async def surely(self, call: Callable[..., object], *arguments: Any) -> None:
        """Make a short call that cleans up. Cancelled, it is made all the same. It must not raise."""
        if self.always and self._started:
            job = await self._ended(call, *arguments)
            if job.cancelled is not None:
                raise job.cancelled
        else:
            made(call, *arguments)

    async def _ended(self, call: Callable[..., T], *arguments: Any) -> _Job[T]:
        if not self._started:
            self._started = True
            threading.Thread(target=_work, args=(self._jobs,), name="apressure-files", daemon=True).start()
        job = _Job(call, arguments)
        self._jobs.put(job.run)
        await job.wait()
        if not job.ended.done():
            self._late = job
        return job

    def after(self, call: Callable[[], object]) -> None:
        """Make a call that releases what calls before it may still use."""
        if self._late is None or self._late.ended.done():
            call()
        else:
            self._jobs.put(call)

    def close(self, last: Callable[[], None]) -> None:
        """End the thread after all calls that it was given, and one more."""
        if self._started:
            self._jobs.put(last)
            self._jobs.put(None)
        else:
            last()


def _too_late() -> bool:
    """Whether the operation's deadline has cancelled this task, so that it must wait for nothing."""
    task = asyncio.current_task()
    return within_deadline(math.inf) <= 0 and task is not None and task.cancelling() > 0


def _undo(undo: Callable[[T], object], job: _Job[T]) -> None:
    if job.error is None:
        undo(job.result())


def made(call: Callable[..., T], *arguments: Any) -> T:
    """Make a call here; at the level DEBUG, log it, without its arguments."""
    if not logs.logger.isEnabledFor(logging.DEBUG):
        return call(*arguments)
    began, failure = time.monotonic(), None
    try:
        return call(*arguments)
    except BaseException as error:
        failure = error
        raise
    finally:
        name = getattr(call, "__name__", type(call).__name__).strip("_")
        logs.step(name, time.monotonic() - began, failure)


def _work(jobs: SimpleQueue[Callable[[], object] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # release its arguments now, not when the next one comes
