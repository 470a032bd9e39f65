"""Starts background tasks: each is kept alive, and its failure surfaces. No other module creates tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_running: set[asyncio.Task[Any]] = set()


def start(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Run a coroutine in a task of its own. A failure goes to the event loop's exception handler."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_ended)
    return task


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


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler(
            {"message": f"apressure: {task.get_name()} failed", "exception": error, "task": task}
        )
