"""How a cancelled task learns the outcome of its operation before it raises.

The outcome is a plain future that the reader of the connection completes. The task waits for it inside a shield and
survives further cancellations; then it raises the original one, because a fresh CancelledError would escape
`move_on_after`. (A bare loop would spin under anyio, which delivers a cancellation again and again.)
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from apressure.exceptions import PressureError


class Ending:
    """The end of a service. What it still waits for, once no handler runs, shares one `settle_timeout`.

    Attributes:
        since: Since when there is nothing left but to settle, by the monotonic clock; None before.
    """

    __slots__ = ("since",)

    def __init__(self) -> None:
        self.since: float | None = None

    @contextlib.contextmanager
    def limiting(self) -> Iterator[None]:
        """Limit what waits in this block."""
        outer = current_ending.get()
        token = current_ending.set(self)
        try:
            yield
        finally:
            current_ending.reset(token)
            if outer is not self:
                self.since = None  # tasks that have been started may still see it


current_ending: ContextVar[Ending | None] = ContextVar("current_ending", default=None)
"""The end of the service that runs here; None without one."""


def left_of(settle_timeout: float) -> float:
    """Return how many of these seconds the end of the service leaves that runs here; all of them without one."""
    ending = current_ending.get()
    if ending is None or ending.since is None:
        return settle_timeout
    return max(0.0, ending.since + settle_timeout - time.monotonic())


class Deadline:
    """The deadline of the operation under way, and what its error will say.

    Attributes:
        at: When it passes, by the event loop's clock. Nothing waits longer to learn an outcome.
        sent: Something was sent, or done, before the operation was cancelled.
        accepted: How many items a `put_many` or `requeue` had put by then.
    """

    __slots__ = ("accepted", "at", "sent")

    def __init__(self, at: float) -> None:
        self.at = at
        self.sent = False
        self.accepted = 0


current_deadline: ContextVar[Deadline | None] = ContextVar("current_deadline", default=None)
"""The `deadline=` of the operation that runs here; None without one."""


def note_sent() -> None:
    """Note that the operation may have done something: its deadline must not report that nothing was done."""
    if (deadline := current_deadline.get()) is not None:
        deadline.sent = True


def note_accepted(count: int) -> None:
    """Note how many items the operation had put when it was cancelled."""
    if (deadline := current_deadline.get()) is not None:
        deadline.accepted = count


@contextlib.contextmanager
def telling_accepted(accepted: Callable[[], int]) -> Iterator[None]:
    """Have an error or a cancellation that ends the block tell how many items were put, moved or deleted by then."""
    try:
        yield
    except asyncio.CancelledError:
        note_accepted(accepted())
        raise
    except PressureError as error:
        error.accepted = accepted()
        raise


def within_deadline(timeout: float) -> float:
    """Return how many of these seconds the operation's deadline leaves."""
    deadline = current_deadline.get()
    return timeout if deadline is None else min(timeout, deadline.at - asyncio.get_running_loop().time())


async def wait_shielded(future: asyncio.Future[Any], timeout: float) -> bool:
    """Wait for a future, even while this task is cancelled.

    Args:
        future: It is not cancelled by this.
        timeout: Seconds after which the outcome stays unknown, so that a frozen server cannot hold a task for ever.
            The operation's deadline, or the end of a service, may leave fewer.

    Returns:
        Whether the future is done.
    """
    note_sent()
    timeout = left_of(within_deadline(timeout))
    if future.done() or timeout <= 0:
        return future.done()
    from anyio import CancelScope  # here, since it loads anyio's backend, which only a cancellation needs

    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    with CancelScope(shield=True):
        while not future.done():
            remaining = end - loop.time()
            if remaining <= 0:
                return False
            try:
                await asyncio.wait((future,), timeout=remaining)
            except asyncio.CancelledError:
                continue
    return True


async def wait_for_answer(future: asyncio.Future[Any], timeout: float | None, settle_timeout: float) -> bool:
    """Wait for an answer for up to `timeout` seconds; None waits for as long as retries go on.

    A cancellation comes out when the answer is there, or after `settle_timeout` seconds.

    Returns:
        Whether the answer is there.
    """
    try:
        await asyncio.wait((future,), timeout=timeout)
    except asyncio.CancelledError:
        await wait_shielded(future, settle_timeout if timeout is None else min(timeout, settle_timeout))
        raise
    return future.done()


class Patience:
    """For how long to wait for several answers, one after the other.

    Args:
        settle_timeout: Seconds to wait for all of them once nobody needs the outcome.
        hurry: That is so from the beginning. Otherwise it is after a cancellation, and before that, `wait` waits for as
            long as retries go on.
    """

    def __init__(self, settle_timeout: float, hurry: bool) -> None:
        self._settle_timeout = settle_timeout
        self._end = asyncio.get_running_loop().time() + left_of(settle_timeout) if hurry else None

    async def wait(self, answer: asyncio.Future[Any]) -> bool:
        """Wait for an answer.

        A cancellation comes out when the answer is there, or after `settle_timeout` seconds. In the latter case nothing
        waits for later answers: the server is frozen.

        Returns:
            Whether the answer is there.
        """
        loop = asyncio.get_running_loop()
        remaining = None if self._end is None else max(0.0, self._end - loop.time())
        try:
            return await wait_for_answer(answer, remaining, self._settle_timeout)
        except asyncio.CancelledError:
            if self._end is None:
                self._end = loop.time() + (self._settle_timeout if answer.done() else 0.0)
            raise


def set_result_once(future: asyncio.Future[Any], value: Any) -> None:
    """Set a future's result, unless its waiter was cancelled meanwhile."""
    if not future.done():
        future.set_result(value)


def raised(outcome: Any) -> Any:
    """Return an outcome, or raise it if it is an error."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
