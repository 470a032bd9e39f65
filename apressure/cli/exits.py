"""What an exit code means, and which error leads to which.

This table is the only place that knows; `docs/cli.md` and the end of `--help` say the same.
"""

from __future__ import annotations

import enum
from typing import Final

from apressure.exceptions import (
    ClientClosedError,
    MissingExtraError,
    OutcomeUnknownError,
    PressureError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
    QueueInUseError,
    ServerError,
    ServerUnavailableError,
)


class Exit(enum.IntEnum):
    """The exit codes of `apressure`. From 128 on they are a signal's number plus 128, as in a shell."""

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
    Exit.DOES_NOT_EXIST: "the queue does not exist",
    Exit.ALREADY_EXISTS: "the queue exists already",
    Exit.CLOSED: "the queue is closed",
    Exit.TIMEOUT: "full, empty or in use until the timeout",
    Exit.SERVER: "no server, or it refused",
    Exit.MISSING_EXTRA: "an optional package is missing",
    Exit.HANGUP: "SIGHUP",
    Exit.INTERRUPTED: "Ctrl-C",
    Exit.BROKEN_PIPE: "whoever read the output has gone",
    Exit.TERMINATED: "SIGTERM",
}

_CODES: Final[tuple[tuple[type[BaseException], Exit], ...]] = (
    (QueueDoesNotExistError, Exit.DOES_NOT_EXIST),
    (QueueAlreadyExistsError, Exit.ALREADY_EXISTS),
    (QueueClosedError, Exit.CLOSED),
    (QueueFullError, Exit.TIMEOUT),
    (QueueEmptyError, Exit.TIMEOUT),
    (QueueInUseError, Exit.TIMEOUT),
    (ServerError, Exit.SERVER),
    (ServerUnavailableError, Exit.SERVER),
    (OutcomeUnknownError, Exit.SERVER),
    (ClientClosedError, Exit.SERVER),
    (MissingExtraError, Exit.MISSING_EXTRA),
    (BrokenPipeError, Exit.BROKEN_PIPE),
    (KeyboardInterrupt, Exit.INTERRUPTED),
)

HANDLED: Final = (PressureError, OSError, ValueError)
"""Errors that are told in one line. Anything else is a mistake of ours and deserves its traceback."""


class UsageError(PressureError):
    """Options that do not go together."""


def code_of(error: BaseException) -> Exit:
    """Return the exit code for an error that ended a command."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    # The library refuses bad names, bounds, URLs and settings with the standard library's ValueError.
    if isinstance(error, UsageError) or (isinstance(error, ValueError) and not isinstance(error, PressureError)):
        return Exit.USAGE
    return Exit.ERROR


def one_line(text: str) -> str:
    """Return `text` on one line, with control characters made visible: queue names may contain any."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))


def message_of(error: BaseException) -> str:
    """Return the error's message on one line."""
    return one_line(str(error)) or type(error).__name__


def as_dict(error: BaseException, code: Exit) -> dict[str, object]:
    """Return what programs are told about an error: its class, message, exit code and data."""
    described: dict[str, object] = {
        "error": type(error).__name__,
        "message": message_of(error),
        "exit_code": int(code),
    }
    for attribute in ("name", "role", "holder", "extra", "code", "limit"):
        value = getattr(error, attribute, None)
        if isinstance(value, str | int):
            described[attribute] = value
    return described
