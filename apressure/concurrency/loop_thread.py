"""Calls coroutines from code without asyncio, and waits for them.

The rule of this module: a result has one owner. At Ctrl-C, Python raises KeyboardInterrupt between any two steps of the
main thread, and the operation may have ended already. Then either `call` returns the result, or the result goes back.
Python looks for signals when a function is called and when a loop goes on, but not when a function written in Python
returns: what `call` and its callers return right away reaches the program's variable.

The main thread waits for plain locks only. A condition, and so a `concurrent.futures.Future`, is code in Python that
Ctrl-C may leave with its lock taken, and the event loop would then wait for that lock for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Self, TypeVar, cast

from apressure.concurrency import background
from apressure.concurrency.handover import GiveBack, current_taken
from apressure.exceptions import PressureError

R = TypeVar("R")


class _Call(Generic[R]):
    """One operation, until its caller has the result. `begin` and `settle` run on the event loop.

    Args:
        operation: Begins it.
        undo: Undoes its result.
        on_end: Called when it has ended.
    """

    def __init__(
        self,
        operation: Callable[[], Awaitable[R]],
        undo: Callable[[R], Awaitable[object]] | None,
        on_end: Callable[[_Call[R]], object],
    ) -> None:
        self._operation = operation
        self._undo = undo
        self._on_end = on_end
        self._done = _taken_lock()
        self._task: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._result: R | None = None
        self._error: BaseException | None = None
        self._taken: list[GiveBack] = []

    def begin(self) -> None:
        """Begin the operation, unless Ctrl-C came before."""
        if self._settling is None:
            self._task = background.start(self._run(), "an operation of a queue without asyncio")

    def wait(self) -> R:
        """Wait for the end, and return the result, or raise the error."""
        self._done.acquire()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # or its traceback would refer to itself
        return cast("R", self._result)

    def fail(self, error: BaseException) -> None:
        """End with an error."""
        self._error = error
        self._done.release()

    def settle(self, told: threading.Lock) -> None:
        """Cancel the operation, wait for its end, give back what it has taken all the same, and release the lock."""
        if self._settling is None:
            self._settling = background.start(self._settle(), "giving back what nobody has got")
        self._settling.add_done_callback(lambda _: told.release())

    async def _run(self) -> None:
        current_taken.set(self._taken)
        try:
            result = self._result = await self._operation()
            if (undo := self._undo) is not None:
                self._taken.append(lambda: undo(result))
        except BaseException as error:  # noqa: BLE001 (`wait` raises it)
            self._error = error
        finally:
            self._on_end(self)
            self._done.release()

    async def _settle(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        for give_back in reversed(self._taken):
            with contextlib.suppress(PressureError):
                await give_back()


class LoopThread:
    """An event loop in a thread of its own, while its block lasts."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._calls: set[_Call[Any]] = set()
        self._interrupted: set[_Call[Any]] = set()
        self._began, self._ended = _taken_lock(), _taken_lock()
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, name="apressure-loop", daemon=True).start()
        self._began.acquire()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *error: object) -> None:
        if os.getpid() != self._pid:
            return  # a forked child has no thread to wait for
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._ended.acquire()

    def call(self, operation: Callable[[], Awaitable[R]], undo: Callable[[R], Awaitable[object]] | None = None) -> R:
        """Run an operation and return its result.

        At Ctrl-C, the operation is cancelled and its end awaited. If it has a result all the same, which nobody gets
        now, `undo` is called with it, and what the operation has noted with `note_taken` is given back. A second
        Ctrl-C ends only this wait: the next call, or `settle`, waits for the rest.

        Raises:
            RuntimeError: This is a forked child, or the block has ended.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("this queue was opened before a fork: open a new one in the child process")
        if self._interrupted:
            self.settle()
        call = _Call(operation, undo, self._calls.discard)
        try:
            self._calls.add(call)
            self._loop.call_soon_threadsafe(call.begin)
            return call.wait()
        except KeyboardInterrupt:
            self._interrupted.add(call)
            self._settle(call)
            raise

    def run(self, function: Callable[[], R]) -> R:
        """Call a function on the event loop, and return its result."""

        async def operation() -> R:
            return function()

        return self.call(operation)

    def stop(self, last: Callable[[], object]) -> None:
        """Call a function on the event loop, and end the thread; this does not wait. In a forked child it does nothing.

        For what is collected without the end of its block.
        """
        if os.getpid() == self._pid:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(last)
                self._loop.call_soon_threadsafe(self._stopped.set)

    def settle(self) -> None:
        """Wait until the calls that were interrupted have given back what they took."""
        for call in list(self._interrupted):
            self._settle(call)

    def _settle(self, call: _Call[Any]) -> None:
        told = _taken_lock()
        self._loop.call_soon_threadsafe(call.settle, told)
        told.acquire()
        self._interrupted.discard(call)

    def _serve(self) -> None:
        """Run the event loop: the thread's function."""
        try:
            with asyncio.Runner() as runner:
                runner.get_loop()  # it may fail, where too many files are open
                runner.run(self._wait_for_the_end())
        except BaseException as error:  # noqa: BLE001 (`__enter__` raises it)
            self._failure = error
            self._began.release()
        finally:
            for call in list(self._calls):  # they came too late to begin: nobody else would tell them
                call.fail(RuntimeError("the queue was released by another thread"))
            self._ended.release()

    async def _wait_for_the_end(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self._began.release()
        await self._stopped.wait()


def _taken_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock
