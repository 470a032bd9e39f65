"""The thread for calls that may take long: those that wait for a disk, for a network, or for a long listing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Job(Generic[T]):
    """A call on its way through the thread.

    Attributes:
        ended: The call has returned, or raised.
        cancelled: What cancelled the task that waits for it, if anything did.
    """

    __slots__ = ("_arguments", "_call", "_error", "_loop", "_result", "_waiter", "cancelled", "ended")

    def __init__(self, call: Callable[..., T], arguments: tuple[Any, ...]) -> None:
        self._call = call
        self._arguments = arguments
        self._loop = asyncio.get_running_loop()
        self._waiter = self._loop.create_future()
        self._error: BaseException | None = None
        self.ended = False
        self.cancelled: asyncio.CancelledError | None = None

    def run(self) -> None:
        """Make the call: in the thread."""
        try:
            self._result = self._call(*self._arguments)
        except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
            self._error = error
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile, nobody waits any more
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self.ended = True
        if not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the end of what cannot be stopped, whoever cancels meanwhile."""
        while not self.ended:
            try:
                await self._waiter
            except asyncio.CancelledError as cancelled:
                self.cancelled = cancelled
                self._waiter = self._loop.create_future()

    @property
    def failed(self) -> bool:
        """The call raised."""
        return self._error is not None

    def result(self) -> T:
        """Return what the call returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._result


class Worker:
    """One thread, started when it is needed; what it is given is done in order.

    Args:
        always: Give it short calls, too.
    """

    def __init__(self, always: bool) -> None:
        self.always = always
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._started = False

    def __del__(self) -> None:
        self._jobs.put(None)

    async def do(self, call: Callable[..., T], *arguments: Any, undo: Callable[[T], object] | None = None) -> T:
        """Make a short call: here, unless everything goes into the thread."""
        if not self.always:
            return call(*arguments)
        return await self.in_thread(call, *arguments, undo=undo)

    async def in_thread(self, call: Callable[..., T], *arguments: Any, undo: Callable[[T], object] | None = None) -> T:
        """Make a call in the thread.

        Cancelled, it waits until the call has ended, undoes it where there is an `undo`, and then raises.
        """
        job = await self._ended(call, *arguments)
        if job.cancelled is None:
            return job.result()
        if undo is not None and not job.failed:
            await self._ended(undo, job.result())  # what cannot be undone comes again when its time runs out
        raise job.cancelled

    async def surely(self, call: Callable[..., object], *arguments: Any) -> None:
        """Make a short call that tidies up: also when cancelled it is made, and has ended. Its error is nobody's."""
        if self.always and self._started:
            job = await self._ended(call, *arguments)
            if job.cancelled is not None:
                raise job.cancelled
        else:
            call(*arguments)

    async def _ended(self, call: Callable[..., T], *arguments: Any) -> _Job[T]:
        if not self._started:
            self._started = True
            threading.Thread(target=_work, args=(self._jobs,), name="apressure-files", daemon=True).start()
        job = _Job(call, arguments)
        self._jobs.put(job.run)
        await job.wait()
        return job

    def close(self, last: Callable[[], None]) -> None:
        """End the thread after everything that it was given, and one more call."""
        if self._started:
            self._jobs.put(last)
            self._jobs.put(None)
        else:
            last()


def _work(jobs: SimpleQueue[Callable[[], object] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # what it holds is not to live until the next one comes
