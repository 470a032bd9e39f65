"""What an operation has taken out of its queue for good, until its caller has it.

A coroutine hands its result over when it returns. A thread without asyncio gets it later, and may be interrupted in
between: then the result has no owner, and goes back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar

GiveBack = Callable[[], Awaitable[object]]
"""Gives back what an operation has taken, as its cancellation does."""

current_taken: ContextVar[list[GiveBack] | None] = ContextVar("current_taken", default=None)
"""Where the operation that runs here notes what it takes; None where its caller gets the result at once."""


def note_taken(give_back: GiveBack) -> None:
    """Note how to give back what the operation returns, or has in its error: right before its end, without awaiting."""
    if (taken := current_taken.get()) is not None:
        taken.append(give_back)
