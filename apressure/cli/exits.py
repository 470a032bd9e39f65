"""The exit codes, and the code of each error.

`docs/reference/cli.md` and the end of `--help` repeat this table; a test compares them.
"""

from __future__ import annotations

import enum
from typing import Final, TypeGuard

from apressure import exceptions as errors
from apressure.cli.show import printable
from apressure.exceptions import PressureError


class Exit(enum.IntEnum):
    """The exit codes of `apressure`. Codes above 128 are 128 plus the number of a signal, as in a shell."""

    OK = 0
    ERROR = 1
    USAGE = 2
    DOES_NOT_EXIST = 3
    ALREADY_EXISTS = 4
    CLOSED = 5
    TIMEOUT = 6
    SERVER = 7
    MISSING_EXTRA = 8
    HANGUP = 129
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


MEANINGS: Final = {
    Exit.OK: "done",
    Exit.ERROR: "any other error",
    Exit.USAGE: "the command line is wrong",
    Exit.DOES_NOT_EXIST: "the queue, the task, the schedule or the worker does not exist",
    Exit.ALREADY_EXISTS: "the queue exists already, or the item is a repeat",
    Exit.CLOSED: "the queue is closed",
    Exit.TIMEOUT: "the queue was full, empty or in use, the task had not ended, or no reply came, until the timeout",
    Exit.SERVER: "the server cannot be reached, or refused the command",
    Exit.MISSING_EXTRA: "an optional package is missing",
    Exit.HANGUP: "SIGHUP",
    Exit.INTERRUPTED: "Ctrl-C",
    Exit.BROKEN_PIPE: "the reader of the output has ended",
    Exit.TERMINATED: "SIGTERM",
}

_CODES: Final[tuple[tuple[Exit, tuple[type[BaseException], ...]], ...]] = (
    (
        Exit.DOES_NOT_EXIST,
        (errors.QueueDoesNotExistError, errors.ScheduleDoesNotExistError, errors.TaskDoesNotExistError),
    ),
    (Exit.ALREADY_EXISTS, (errors.QueueAlreadyExistsError, errors.DuplicateMessageError)),
    (Exit.CLOSED, (errors.QueueClosedError,)),
    (
        Exit.TIMEOUT,
        (
            errors.QueueFullError,
            errors.QueueEmptyError,
            errors.QueueInUseError,
            errors.QueueOpenError,
            errors.NoReplyError,
            errors.TaskUnfinishedError,
        ),
    ),
    (
        Exit.SERVER,
        (errors.ServerError, errors.ServerUnavailableError, errors.OutcomeUnknownError, errors.ClientClosedError),
    ),
    (Exit.MISSING_EXTRA, (errors.MissingExtraError,)),
    (Exit.BROKEN_PIPE, (BrokenPipeError,)),
    (Exit.INTERRUPTED, (KeyboardInterrupt,)),
)

HANDLED: Final = (PressureError, OSError, ValueError)
"""Errors that are printed on one line. Any other error is a bug of ours and is shown with its traceback."""


class UsageError(PressureError):
    """The options of a command exclude or need each other."""


class NoWorkerError(PressureError):
    """No worker has that id."""


class HookError(PressureError):
    """A function of the user's worker, for startup or shutdown, has raised an error."""


def code_of(error: BaseException) -> Exit:
    """Return the exit code for an error that ended a command."""
    for code, kinds in _CODES:
        if isinstance(error, kinds):
            return code
    # The library raises ValueError for invalid names, bounds, URLs and settings.
    if isinstance(error, NoWorkerError):
        return Exit.DOES_NOT_EXIST
    if isinstance(error, UsageError) or (isinstance(error, ValueError) and not isinstance(error, PressureError)):
        return Exit.USAGE
    return Exit.ERROR


def one_line(text: str) -> str:
    """Return `text` on one line, with control characters made visible: names of queues may contain them."""
    return printable(" ".join(text.split()))


def message_of(error: BaseException) -> str:
    """Return the error's message on one line. If no server was found there, say what names another one."""
    message = one_line(str(error)) or type(error).__name__
    if isinstance(error, errors.ServerUnavailableError) and message.startswith(("cannot reach", "cannot find")):
        message += " --url or APRESSURE_URL names another server"
    return message


def explained(error: BaseException) -> TypeGuard[PressureError]:
    """Return whether an error has a page that says more than its message."""
    return isinstance(error, PressureError) and type(error).__module__ == PressureError.__module__


def as_dict(error: BaseException, code: Exit) -> dict[str, object]:
    """Return an error for `--json`: its class, message, exit code and data."""
    described: dict[str, object] = {
        "error": type(error).__name__,
        "message": message_of(error),
        "exit_code": int(code),
    }
    for attribute in ("name", "id", "status", "role", "holder", "extra", "code", "limit", "help"):
        value = getattr(error, attribute, None)
        if isinstance(value, str | int):
            described[attribute] = value
    return described
