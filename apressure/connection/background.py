"""The one place that starts tasks of its own: each is kept alive, and its failure surfaces."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

_running: set[asyncio.Task[Any]] = set()


def start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Run work beside the caller. A failure goes to the event loop's exception handler; nothing is dropped silently."""
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
