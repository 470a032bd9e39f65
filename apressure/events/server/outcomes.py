"""What commands wait for, the outcome of a step or the end of a task, and an event loop that is awake meanwhile."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from apressure.concurrency import background
from apressure.concurrency.settle import raised
from apressure.events.server.wire import ErrorReply, Reply
from apressure.exceptions import PressureError, QueueClosedError, QueueDoesNotExistError

logger = logging.getLogger("apressure.events.server")

R = TypeVar("R")

AWAKE: Final = 200e-6
"""Seconds after a command for which the event loop does not sleep: time for Redis, and for a client on this machine."""

_MOST_ASLEEP: Final = 63
"""The most commands in a row after which it sleeps, because it stayed awake in vain."""


class Outcome(asyncio.Future[R]):
    """A future that can tell its outcome at once.

    The callback of an asyncio future runs in the next turn of the event loop. That of `call_at_once` runs in the turn
    that read the answer of Redis, so a client that sends one command after the other has its reply a turn earlier.
    """

    _at_once: Callable[[Any], None] | None = None

    def call_at_once(self, callback: Callable[[Any], None]) -> None:
        """Have one callback called with this outcome as soon as it is known; never from within this call."""
        if self.done():
            self.add_done_callback(callback)
        else:
            self._at_once = callback

    def finish(self, value: R | Exception) -> None:
        """Tell the result, or an error, unless nobody wants it any more."""
        if self.done():
            return
        if isinstance(value, Exception):
            self.set_exception(value)
            self.exception()  # perhaps nobody asks for it
        else:
            self.set_result(value)
        self._tell()

    def cancel(self, msg: Any = None) -> bool:
        """Say that nobody wants it any more."""
        cancelled = super().cancel(msg)
        if cancelled:
            self._tell()
        return cancelled

    def _tell(self) -> None:
        try:
            if self._at_once is not None:
                self._at_once(self)
        except Exception as error:  # noqa: BLE001 - the event loop does the same, and others wait for this answer
            self.get_loop().call_exception_handler({"message": "the reply to a client failed", "exception": error})


Replies = list[Reply]


class Answer(NamedTuple):
    """What commands wait for.

    Attributes:
        future: The outcome of a step, or a task.
        read: Called with the future when it is done: the replies, or what else to wait for.
        commands: How many it answers.
    """

    future: asyncio.Future[Any]
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
