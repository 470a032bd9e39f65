"""The outcome of a command that waits for Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from apressure.concurrency.settle import set_result_once

R = TypeVar("R")


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
