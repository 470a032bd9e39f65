"""What commands wait for, the outcome of a step or the end of a task, and an event loop that is awake meanwhile."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Generic, NamedTuple, TypeVar

from apressure.concurrency import background
from apressure.concurrency.settle import raised, set_result_once
from apressure.events.server.wire import ErrorReply, Reply
from apressure.exceptions import PressureError, QueueClosedError, QueueDoesNotExistError

logger = logging.getLogger("apressure.events.server")

R = TypeVar("R")

AWAKE: Final = 200e-6
"""Seconds after a command for which the event loop does not sleep: time for Redis, and for a client on this machine."""

_MOST_ASLEEP: Final = 63
"""The most commands in a row after which it sleeps, because it stayed awake in vain."""


class Outcome(Generic[R]):
    """An outcome that will be known: a future whose callback runs at once.

    The callback of an asyncio future runs in the next turn of the event loop. This one runs in the turn that read the
    answer of Redis, so a client that sends one command after the other has its reply a turn earlier.
    """

    _known = False
    _value: R | BaseException
    _callback: Callable[[Any], None] | None = None

    def done(self) -> bool:
        """Whether it is known, or nobody wants it any more."""
        return self._known

    def cancelled(self) -> bool:
        """Whether nobody wants it any more."""
        return self._known and isinstance(self._value, asyncio.CancelledError)

    def exception(self) -> BaseException | None:
        """Return the error, or None if it is a result. The outcome is known."""
        return self._value if isinstance(self._value, BaseException) else None

    def result(self) -> R:
        """Return the result, or raise the error. The outcome is known."""
        if isinstance(self._value, BaseException):
            raise self._value
        return self._value

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Have one callback called with this outcome as soon as it is known; never from within this call."""
        assert self._callback is None
        self._callback = callback
        if self._known:
            asyncio.get_running_loop().call_soon(callback, self)

    def finish(self, value: R | BaseException) -> None:
        """Tell the result, or an error, unless nobody wants it any more."""
        if self._known:
            return
        self._known, self._value = True, value
        if self._callback is not None:
            try:
                self._callback(self)
            except Exception as error:  # noqa: BLE001 - the event loop does the same, and others wait for this answer
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "the reply to a client failed", "exception": error}
                )

    def cancel(self) -> None:
        """Say that nobody wants it any more."""
        self.finish(asyncio.CancelledError())

    def __await__(self) -> Generator[Any, None, R]:
        """Wait for it in a task. Cancelled, nobody wants it any more."""
        if not self._known:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _: set_result_once(future, None))
            try:
                yield from future
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()


Replies = list[Reply]


class Answer(NamedTuple):
    """What commands wait for.

    Attributes:
        future: The outcome of a step, or a task.
        read: Called with the future when it is done: the replies, or what else to wait for.
        commands: How many it answers.
    """

    future: Outcome[Any] | asyncio.Future[Any]
    read: Callable[[Any], Replies | Answer]
    commands: int = 1

    def replies(self) -> Replies | Answer:
        """Return the replies, or what else to wait for, when the future is done."""
        try:
            return self.read(self.future)
        except Exception as error:  # noqa: BLE001 - the client learns of it
            return [error_reply(error)] * self.commands


def in_task(work: Coroutine[Any, Any, Reply]) -> Answer:
    """Carry out a command in a task."""
    task = background.start(background.caught(work), "a client's command")
    return Answer(task, lambda done: [raised(done.result())])


def error_reply(error: Exception) -> ErrorReply:
    """Return what the client is told of an error."""
    if isinstance(error, ErrorReply):
        return error
    if isinstance(error, QueueClosedError):
        return ErrorReply("ERR queue closed")
    if isinstance(error, QueueDoesNotExistError):
        return ErrorReply("ERR no such queue")
    if isinstance(error, (PressureError, ValueError)):
        return ErrorReply(f"ERR {error}")
    logger.error("a command failed: a bug of the server", exc_info=error)
    return ErrorReply("ERR internal error: the server's log has the details")


class Polling:
    """Keeps an event loop awake after a command: it looks for input without sleeping.

    A thread that sleeps takes some 30 µs to wake, and a command wakes the event loop twice: for itself, and for the
    answer of Redis. For a client that sends one command after the other, this is a third of the time. So the event loop
    does not sleep for a moment after a command. If nothing comes in that moment, it soon sleeps at once again: a client
    that sends a command now and then does not keep a core busy.

    Args:
        cores: How many cores this process may use; by default, it asks the system. With one, somebody who waits awake
            keeps Redis from answering, so the event loop always sleeps.
        clock: The time in seconds.
        call_soon: Calls a function in the next turn of the event loop; by default, of the running one.
    """

    def __init__(
        self,
        cores: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._clock = clock
        self._call_soon = call_soon or asyncio.get_running_loop().call_soon
        self._enabled = (cores or _cores()) > 1
        self._until = 0.0
        self._awake = False
        self._asleep = 0  # commands after which it sleeps, until it tries again
        self._pause = 0  # and how many that will be the next time

    def command(self) -> None:
        """A command has come."""
        if not self._enabled:
            return
        if self._awake:
            self._pause = 0
        elif self._asleep:
            self._asleep -= 1
            return
        else:
            self._awake = True
            self._call_soon(self._poll)
        self._until = self._clock() + AWAKE

    def _poll(self) -> None:
        if self._clock() < self._until:
            self._call_soon(self._poll)
        else:
            self._awake = False
            self._asleep = self._pause = min(2 * self._pause + 1, _MOST_ASLEEP)


def _cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
