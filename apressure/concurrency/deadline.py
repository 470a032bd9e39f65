"""`deadline=`: seconds for a whole operation, with connecting, repeating and settling. For request handlers.

The operation is cancelled when the time is up. Unlike after other cancellations, the caller does not wait for the
outcome: if a step is on its way, the error says that the outcome is unknown, and a later answer is settled in the
background.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from apressure import validation
from apressure.concurrency.settle import Deadline, current_deadline
from apressure.exceptions import DeadlineError, DeadlineOutcomeUnknownError, PressureError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])


class _Named(Protocol):
    name: str


def with_deadline(*, reads: bool = False, done: str = "put") -> Callable[[F], F]:
    """Return a decorator that does what `deadline=` of a queue's method asks for. The method itself ignores it.

    `put` and `get` call `within` themselves: each frame between them and the socket costs an item.

    Args:
        reads: The method changes nothing.
        done: What it does with items, for the error: they "were put".
    """

    def decorated(method: F) -> F:
        @functools.wraps(method)
        async def call(self: _Named, /, *args: Any, deadline: float | None = None, **kwargs: Any) -> Any:
            operation = method(self, *args, **kwargs)
            return await (operation if deadline is None else within(deadline, self.name, operation, reads, done))

        return call  # type: ignore[return-value]

    return decorated


async def within(
    seconds: float, name: str, operation: Coroutine[Any, Any, T], reads: bool = False, done: str = "put"
) -> T:
    """Run an operation in this task, with a deadline.

    Args:
        seconds: Seconds until the deadline; with 0 the operation does not begin.
        name: The queue's name, for the error.
        operation: The operation.
        reads: The operation changes nothing.
        done: What it does with items, for the error.

    Raises:
        DeadlineError: The deadline passed. DeadlineOutcomeUnknownError: The operation may have been carried out.
        TypeError, ValueError: `seconds` is not a number of at least 0.

    Cancelled, it leaves behind what the operation's docstring says.
    """
    try:
        validation.seconds(seconds, "deadline", most=math.inf)
    except (TypeError, ValueError):
        operation.close()
        raise
    if seconds == 0:
        operation.close()
        raise _passed(seconds, name, Deadline(0.0), reads, done)
    at = asyncio.get_running_loop().time() + seconds
    outer = current_deadline.get()
    mine = Deadline(at if outer is None else min(at, outer.at))
    token = current_deadline.set(mine)
    try:
        async with asyncio.timeout_at(at) as scope:
            return await operation
    except TimeoutError as error:
        if isinstance(error, PressureError) or not scope.expired():
            raise
        raise _passed(seconds, name, mine, reads, done) from None
    finally:
        current_deadline.reset(token)
        mine.at = math.inf  # tasks that the operation has started may still see it


def _passed(seconds: float, name: str, limited: Deadline, reads: bool, done: str) -> DeadlineError:
    what = f"the operation on the queue {name!r} did not end within its deadline of {seconds:g} s"
    error: DeadlineError
    if reads:
        error = DeadlineError(what, name=name)
    elif limited.sent:
        error = DeadlineOutcomeUnknownError(
            f"{what}: it was sent, and the server may carry it out, or have done so. Look before you repeat it",
            name=name,
        )
    else:
        rest = f"{limited.accepted} items were {done}, and no more" if limited.accepted else "nothing was done"
        error = DeadlineError(f"{what}: {rest}. Repeating it is safe", name=name)
    error.accepted = limited.accepted
    return error
