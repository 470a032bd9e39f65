"""Starts background tasks: each is kept alive, and its failure surfaces. No other module creates tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_running: set[asyncio.Task[Any]] = set()


def start(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Run a coroutine in a task of its own. A failure goes to the event loop's exception handler."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler(
            {"message": f"apressure: {task.get_name()} failed", "exception": error, "task": task}
        )
