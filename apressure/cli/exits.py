"""What an exit code means, and which error leads to which.

This table is the only place that knows; `docs/cli.md` and the end of `--help` say the same.
"""

from __future__ import annotations

import enum
import json
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


def describe(error: BaseException, *, as_json: bool, code: Exit | None = None) -> str:
    """Return the one line that tells people (or with `as_json` programs) about an error."""
    code = code_of(error) if code is None else code
    message = one_line(str(error)) or type(error).__name__
    if not as_json:
        return f"apressure: {message}"
    described: dict[str, object] = {"error": type(error).__name__, "message": message, "exit_code": int(code)}
    for attribute in ("name", "role", "holder", "accepted", "extra", "code", "limit"):
        value = getattr(error, attribute, None)
        if isinstance(value, str | int) and attribute not in described:
            described[attribute] = value
    return json.dumps(described)
