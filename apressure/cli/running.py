"""From a command line to an event loop and back: signals become cancellation, cancellation an exit code."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StoppedBySignalError(Exception):
    """A signal ended the command. Its cause is the error that cleaning up ended with, if it did.

    Attributes:
        signum: Which signal.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


def run(coroutine: Coroutine[Any, Any, _T], *, insist: bool = False) -> _T:
    """Run a command's coroutine in a new event loop.

    SIGINT, SIGTERM and SIGHUP cancel it, once: what it does then is bounded in time, and a command that gives
    items back must be let to. Whoever sends a second signal does not want to wait for that and gets the signal's
    own effect. A signal that is ignored when the process starts (nohup) stays ignored.

    Args:
        coroutine: The command.
        insist: Ignore further signals while it cleans up. For a command that has processes to end.

    Raises:
        StoppedBySignalError: A signal came, and the coroutine has ended.
    """
    received: list[int] = []

    async def supervised() -> _T:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def stop(signum: int) -> None:
            received.append(signum)
            if len(received) == 1:
                task.cancel()
            elif not insist:
                signal.signal(signum, signal.SIG_DFL)
                os.kill(os.getpid(), signum)

        for signum in _SIGNALS:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                loop.add_signal_handler(signum, stop, signum)
        return await coroutine

    try:
        result = asyncio.run(supervised())
    except asyncio.CancelledError:
        if not received:
            raise
        raise StoppedBySignalError(received[0]) from None
    except Exception as error:
        if not received:
            raise
        raise StoppedBySignalError(received[0]) from error
    if received:
        raise StoppedBySignalError(received[0])
    return result
