"""How a task waits for the answer to a step, and what happens to the step when the task is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from apressure.concurrency.settle import raised, set_result_once, wait_shielded
from apressure.core.driver import Connection, OnAnswer, Request

Undo = Callable[[Any], asyncio.Future[Any] | None]
"""Undoes a step, given its answer; returns what completes when it is undone, or None if there is nothing to undo."""


async def ask(
    connection: Connection,
    send: Callable[[OnAnswer], Request],
    settle_timeout: float,
    undo: Undo | None = None,
) -> Any:
    """Send a step and return its answer; an answer that is an exception is raised.

    Cancelled, a step that was not sent yet is taken back. Otherwise this waits for the answer, for up to
    `settle_timeout` seconds, and `undo` undoes the step.

    Args:
        connection: Where `send` sends it.
        send: Sends the step; its argument is called once with the answer.
        settle_timeout: Seconds.
        undo: Undoes it.
    """
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    cancelled = False

    def on_answer(answer: Any) -> None:
        undone = undo(answer) if cancelled and undo is not None else None
        if undone is None:
            set_result_once(future, answer)
        else:
            undone.add_done_callback(lambda _: set_result_once(future, answer))

    request = send(on_answer)
    try:
        await asyncio.wait((future,))  # not `await future`: a cancellation would cancel it, and lose the answer
    except asyncio.CancelledError:
        if connection.take_back(request):
            raise
        cancelled = True
        undone = undo(future.result()) if future.done() and undo is not None else None
        await wait_shielded(undone or future, settle_timeout)
        raise
    return raised(future.result())
