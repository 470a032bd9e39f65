"""What a task says while it runs: its progress, and where it is a Python function, its result.

A process writes lines to the descriptor that the variable APRESSURE_PROGRESS_FD names:

* `0.4 half way`: the progress, from 0 to 1, and perhaps a message.
* `result {"frames": 12}`: the result, as JSON. The last one counts.
* `error no such codec`: why the task fails, if it does.

So a shell script says `echo 0.4 half way >&$APRESSURE_PROGRESS_FD`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from apressure import validation
from apressure.tasks.codec import decode_json

logger = logging.getLogger("apressure")

VARIABLE: Final = "APRESSURE_PROGRESS_FD"

MAX_MESSAGE: Final = 1000
"""The most characters of a message of `report_progress`; a line of that size is written as a whole."""

MAX_LINE: Final = 16 << 20
"""The most bytes of a line, and so of a result."""

OnProgress = Callable[[float, str], None]

current_progress: ContextVar[OnProgress | None] = ContextVar("current_progress", default=None)
"""Takes the progress of the task whose handler runs here; None outside of one."""


def report_progress(fraction: float, message: str = "") -> None:
    """Report how far the current task is: in a handler of a `Runner`, or in a process that a `Runner` has started.

    It returns at once. The progress is written to the task at most twice a second. Elsewhere nothing happens, so the
    same function can be called without a `Runner`.

    Args:
        fraction: From 0 to 1.
        message: What the task is doing. Everything after the first 1,000 characters is cut off.

    Raises:
        TypeError, ValueError: The fraction is no number from 0 to 1, or the message is no text.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)):
        raise TypeError(f"fraction must be a number from 0 to 1, not {type(fraction).__name__}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must be a number from 0 to 1, not {fraction}")
    message = " ".join(validation.text(message, "message").splitlines())[:MAX_MESSAGE]
    text = message.encode(errors="replace")
    if (on_progress := current_progress.get()) is not None:
        on_progress(float(fraction), text.decode())
        return
    with contextlib.suppress(KeyError, ValueError, OSError):
        descriptor = int(os.environ[VARIABLE])
        # A process further down has the variable without the descriptor, or with another file behind it.
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.write(descriptor, b"%g %b\n" % (fraction, text))


class Reports:
    """Reads what a process reports.

    Args:
        on_progress: Called with a fraction and a message.
        of: What the process runs, for the log.

    Attributes:
        result: The result as JSON; None without one.
        error: Why the task fails; None if the process has not said so.
    """

    def __init__(self, on_progress: OnProgress, of: str) -> None:
        self.result: str | None = None
        self.error: str | None = None
        self._on_progress = on_progress
        self._of = of
        self._unread = bytearray()
        self._skipping = False
        self._warned = False

    def feed(self, data: bytes) -> None:
        """Take what was written."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            if not self._skipping:
                self._line(bytes(self._unread + line))
            self._unread.clear()
            self._skipping = False
        if self._skipping:
            return
        self._unread += rest
        if len(self._unread) > MAX_LINE:
            self._skipping = True
            self.error = f"the task reported a line of more than {MAX_LINE:,} bytes: write large results to a file"
            self._unread.clear()

    def _line(self, line: bytes) -> None:
        word, _, rest = line.decode(errors="replace").strip().partition(" ")
        if word == "result":
            self._take_result(rest)
        elif word == "error":
            self.error = rest
        elif word:
            with contextlib.suppress(ValueError):
                if 0 <= (fraction := float(word)) <= 1:
                    self._on_progress(fraction, rest[:MAX_MESSAGE])
                    return
            self._warn(line)

    def _take_result(self, text: str) -> None:
        try:
            decode_json(text)
        except (ValueError, RecursionError) as error:
            self.error = f"the task reported a result that is not JSON: {error}"
        else:
            self.result = text

    def _warn(self, line: bytes) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s reported a line that is neither progress (0.4 message), nor a result, nor an error: %r",
                self._of, line[:100],
            )  # fmt: skip
