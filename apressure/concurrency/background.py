"""Starts background tasks: each is kept alive, and its failure surfaces. No other module creates tasks."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_running: set[asyncio.Task[Any]] = set()


def start(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Run a coroutine in a task of its own. A failure goes to the event loop's exception handler."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_ended)
    return task


async def caught(work: Awaitable[T]) -> T | Exception:
    """Return the result of some work, or its error: for a task whose outcome others raise."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001 (those that wait for the task raise it)
        return error


def running() -> frozenset[asyncio.Task[Any]]:
    """Return the tasks of the running event loop that `start` made and that have not ended."""
    loop = asyncio.get_running_loop()
    return frozenset(task for task in _running if task.get_loop() is loop and not task.done())


async def join(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until a collection is empty which each task leaves at its end. A cancellation is raised after that."""
    from anyio import CancelScope  # here, since it loads anyio's backend

    cancelled: asyncio.CancelledError | None = None
    with CancelScope(shield=True):
        while tasks:
            try:
                await asyncio.wait(tasks)
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled


class Shared(Generic[T]):
    """Work that one task does at a time, for all who want its outcome. Its error is theirs, too.

    Args:
        work: Begins it.
        name: What it is.
        on_end: Called with the outcome: the result, the error, or None if the task was cancelled. Not after `cancel`.
        discard: Called with a result that comes after `cancel` all the same: at the very end of the work a cancellation
            goes unnoticed.
    """

    def __init__(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        name: str,
        on_end: Callable[[T | Exception | None], object] = lambda _: None,
        discard: Callable[[T], object] = lambda _: None,
    ) -> None:
        self._work = work
        self._name = name
        self._on_end = on_end
        self._discard = discard
        self._task: asyncio.Task[T | Exception] | None = None
        self._waiting = 0

    def start(self) -> asyncio.Task[T | Exception]:
        """Begin the work, unless it is under way. The task returns the result, or the error."""
        if self._task is None:
            self._task = start(self._caught(), self._name)
            self._task.add_done_callback(self._ended)
        return self._task

    async def wait(self, needed: Callable[[], bool] = bool) -> None:
        """Begin the work, unless it is under way, wait for its end, and raise its error.

        Cancelled, it ends the work, unless other tasks wait for it, or it is `needed` all the same.
        """
        task = self.start()
        self._waiting += 1
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            if self._waiting == 1 and self._task is task and not needed():
                self.cancel()
            raise
        finally:
            self._waiting -= 1
        if not task.cancelled() and isinstance(outcome := task.result(), Exception):
            raise copy.copy(outcome)

    def cancel(self) -> None:
        """End the work: nobody needs its outcome."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _caught(self) -> T | Exception:
        return await caught(self._work())  # begun here: the task may be cancelled before its first step

    def _ended(self, task: asyncio.Task[T | Exception]) -> None:
        outcome = None if task.cancelled() else task.result()
        if self._task is task:
            self._task = None
            self._on_end(outcome)
        elif outcome is not None and not isinstance(outcome, Exception):
            self._discard(outcome)


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler(
            {"message": f"apressure: {task.get_name()} failed", "exception": error, "task": task}
        )
