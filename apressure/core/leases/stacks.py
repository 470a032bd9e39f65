"""What a program is doing: the stack of the event loop's thread, where its tasks wait, and where a handler is."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

_TASKS: Final = 20
"""How many tasks are shown."""


def stacks(
    loop: asyncio.AbstractEventLoop | None, thread: threading.Thread | None, task: asyncio.Task[Any] | None
) -> str:
    """Return the stack of the thread that runs an event loop, and those of some tasks. Callable in any thread.

    Args:
        loop: The event loop.
        thread: The thread that runs it.
        task: The task that comes first.
    """
    lines: list[str] = []
    frame = None if thread is None else sys._current_frames().get(thread.ident or 0)  # noqa: SLF001
    if thread is not None and frame is not None:
        lines += [f"the thread {thread.name}:\n", *traceback.format_stack(frame)]
    others = () if loop is None else _tasks_of(loop)
    unique = dict.fromkeys(one for one in (task, *others) if one is not None and not one.done())
    for one in itertools.islice(unique, _TASKS):
        lines += [f"the task {one.get_name()}:\n", *_stack_of(one)]
    if len(unique) > _TASKS:
        lines.append(f"and {len(unique) - _TASKS} more tasks\n")
    return "".join(lines).rstrip()


def frames_of(running: Any) -> list[str]:
    """Return where a call of a handler is, the outermost frame first: files, lines and functions, and nothing else.

    Args:
        running: The call: a coroutine or a task that waits, or something that knows its thread by `ident`. Of anything
            else, nothing is known.
    """
    if isinstance(running, asyncio.Task):
        running = running.get_coro()
    frame = sys._current_frames().get(getattr(running, "ident", None) or 0)  # noqa: SLF001
    found = _frames(running) if frame is None else reversed(list(traceback.walk_stack(frame)))
    return [f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_qualname}" for frame, line in found]


def _tasks_of(loop: asyncio.AbstractEventLoop) -> set[asyncio.Task[Any]]:
    try:
        return asyncio.all_tasks(loop)
    except RuntimeError:  # the set of tasks changed again and again meanwhile
        return set()


def _stack_of(task: asyncio.Task[Any]) -> list[str]:
    """Return the lines of a task's stack. (`Task.get_stack` ends at the outermost coroutine.)"""
    return traceback.StackSummary.extract(_frames(task.get_coro())).format()


def _frames(waiting: Any) -> Iterator[tuple[FrameType, int]]:
    """Yield the frame of a coroutine, of what it waits for, and so on."""
    while waiting is not None:
        frame = _first(waiting, "cr_frame", "gi_frame", "ag_frame")
        if frame is not None:
            yield frame, frame.f_lineno
        waiting = _first(waiting, "cr_await", "gi_yieldfrom", "ag_await") or _stepped(waiting)


def _stepped(generator: Any) -> Any:
    """Return the coroutine that a generator runs with `send` instead of `await`; None if there is none.

    `serve` runs handlers like this, in `_resume`: its coroutine is the local variable `running`.
    """
    frame = getattr(generator, "gi_frame", None)
    return None if frame is None else frame.f_locals.get("running")


def _first(waiting: Any, *names: str) -> Any:
    """Return the first of these attributes that is there: coroutines and both kinds of generators differ."""
    return next((found for name in names if (found := getattr(waiting, name, None)) is not None), None)
