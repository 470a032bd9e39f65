"""Does something at one await of an operation: cancels it, or ends the queue behind its back."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final

_MOST_AWAITS: Final = 1000

Act = Callable[[Any], Awaitable[object]]


class Interrupted:
    """An operation that something happens to at one of its awaits.

    Args:
        operation: The operation.
        number: At which await, from 0.
        act: Awaited there, before the operation goes on; its argument is what the operation awaits.

    Attributes:
        reached: The operation came to that await.
    """

    def __init__(self, operation: Awaitable[Any], number: int, act: Act) -> None:
        self.reached = False
        self._operation = operation
        self._number = number
        self._act = act

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._operation.__await__()
        resume: Callable[[], Any] = functools.partial(next, inner)
        for number in range(_MOST_AWAITS):
            try:
                awaited = resume()
            except StopIteration as done:
                return done.value
            if number == self._number:
                self.reached = True
                yield from self._act(awaited).__await__()
            try:
                yield awaited
                resume = functools.partial(next, inner)
            except BaseException as error:  # noqa: BLE001 (it is the operation's)
                resume = functools.partial(inner.throw, error)
        raise AssertionError(f"more than {_MOST_AWAITS} awaits")


async def result_of(operation: Awaitable[Any]) -> Any:
    """Return the result of an operation, or its error."""
    try:
        return await operation
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 (the test looks at it)
        return error


async def cancel(_: object) -> None:
    """Cancel the current task: it is cancelled while it awaits."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def cancel_at_answer(awaited: object) -> None:
    """Have the current task be cancelled in the turn of the event loop in which it gets what it awaits."""
    task = asyncio.current_task()
    if task is None or not isinstance(awaited, asyncio.Future):
        await cancel(awaited)
    else:
        awaited.add_done_callback(lambda _: task.cancel())
