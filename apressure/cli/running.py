"""Runs a command: signals become cancellation, and errors become one line on standard error and an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json as jsons
import logging
import os
import signal
import sys
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import typer

from apressure.cli.asking import advised
from apressure.cli.exits import HANDLED, Exit, as_dict, code_of, explained, message_of
from apressure.cli.options import Common, complain
from apressure.cli.wording import in_options, reword

_T = TypeVar("_T")

NewLoop = Callable[[], asyncio.AbstractEventLoop]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclasses.dataclass(frozen=True)
class Remains:
    """What a command that ended early left undone.

    Attributes:
        text: For people.
        data: For programs.
    """

    text: str
    data: dict[str, int]


def execute(
    common: Common,
    coroutine: Coroutine[Any, Any, _T],
    *,
    insist: bool = False,
    remains: Callable[[], Remains | None] = lambda: None,
    new_loop: NewLoop = asyncio.new_event_loop,
    signals: Sequence[int] = _SIGNALS,
    untold: Collection[str] | None = None,
) -> _T:
    """Run a command and return its result. An error is printed on one line and ends the process with its exit code.

    Args:
        common: The common options.
        coroutine: The command.
        insist: Ignore further signals while the command cleans up.
        remains: Called after an error or a signal. Its result is printed on the same line.
        new_loop: Makes the event loop.
        signals: The signals that cancel the command. () for a command that listens to signals itself.
        untold: The events of the log that are not printed; None for `ROUTINE`.
    """
    with errors_printed(common, remains), _log_printed(common, ROUTINE if untold is None else untold):
        return _run(coroutine, insist, new_loop, signals)


@contextlib.contextmanager
def errors_printed(common: Common, remains: Callable[[], Remains | None] = lambda: None) -> Iterator[None]:
    """Print an error on one line, and end the process with its exit code."""
    try:
        yield
    except _StoppedBySignalError as stopped:
        code = Exit(128 + stopped.signum)
        left = remains()
        if isinstance(stopped.__cause__, HANDLED):
            _print_error(common, stopped.__cause__, code, left)
        elif left is not None:
            _print_error(common, stopped, code, left)
        raise typer.Exit(int(code)) from None
    except HANDLED as error:
        code = code_of(error)
        if code is Exit.BROKEN_PIPE:
            mute_output()
        else:
            _print_error(common, error, code, remains())
        raise typer.Exit(int(code)) from None


def mute_output() -> None:
    """Discard what the interpreter flushes to standard output at its end: nobody reads it any more."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class _StoppedBySignalError(Exception):
    """A signal ended the command. If cleaning up failed, that error is the cause.

    Attributes:
        signum: The signal.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


def _run(coroutine: Coroutine[Any, Any, _T], insist: bool, new_loop: NewLoop, signals: Sequence[int]) -> _T:
    """Run a coroutine in a new event loop.

    The first of the signals cancels it, so that it can give items back, which takes a bounded time. A second
    signal has its default effect, unless `insist` is True: then it is ignored, for commands that have processes to end.
    A signal that was ignored when the process started (nohup) stays ignored.

    Raises:
        _StoppedBySignalError: A signal came, and the coroutine has ended.
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

        for signum in signals:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                loop.add_signal_handler(signum, stop, signum)
        return await coroutine

    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            result = runner.run(supervised())
    except asyncio.CancelledError:
        if not received:
            raise
        raise _StoppedBySignalError(received[0]) from None
    except Exception as error:
        if not received:
            raise
        raise _StoppedBySignalError(received[0]) from error
    if received:
        raise _StoppedBySignalError(received[0])
    return result


def new_fast_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop: uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _print_error(common: Common, error: BaseException, code: Exit, remains: Remains | None) -> None:
    error = advised(error, common.named)
    reword(error, common.options)
    if common.json:
        complain(jsons.dumps({**as_dict(error, code), **(remains.data if remains else {})}))
    else:
        hint = f" ({error.help})" if sys.stderr.isatty() and explained(error) else ""
        complain(f"apressure: {message_of(error)}{hint}" + (f"; {remains.text}" if remains else ""))


ROUTINE: Final = frozenset(
    {"client_closing", "connected", "redelivered", "role_released", "role_taken", "serve_ended", "serve_started"}
)
"""Events that are the usual course of a command. They are not printed."""


class _Printer(logging.Handler):
    """Prints each log record as one line, and below it the traceback of what the user's functions have raised.

    Args:
        untold: Events that are not printed.
        options: The options of the command.
    """

    def __init__(self, untold: Collection[str], options: Mapping[str, str]) -> None:
        super().__init__()
        self._untold = untold
        self._options = options

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", None) in self._untold:
            return
        text = in_options(str(record.msg), self._options)  # and not what a handler's error says, which is an argument
        lines = (text % record.args if record.args else text).splitlines()
        if record.exc_info:
            lines += logging.Formatter().formatException(record.exc_info).splitlines()
        complain(f"apressure: {lines[0] if lines else ''}")
        for line in lines[1:]:  # of a traceback, or where the event loop is blocked
            complain(line)


@contextlib.contextmanager
def _log_printed(common: Common, untold: Collection[str]) -> Iterator[None]:
    """Print the library's warnings on standard error; on a terminal also which role a command waits for."""
    logger, printer = logging.getLogger("apressure"), _Printer(untold, common.options)
    level = logger.level
    logger.setLevel(logging.INFO if sys.stderr.isatty() and not common.json else logging.WARNING)
    logger.addHandler(printer)
    try:
        yield
    finally:
        logger.removeHandler(printer)
        logger.setLevel(level)
