"""What a task says while it runs: what it writes, its progress, and where it is a Python function, its result.

A process writes lines to the descriptor that the variable APRESSURE_PROGRESS_FD names:

* `0.4 half way`: the progress, from 0 to 1, and perhaps a message.
* `result {"frames": 12}`: the result, as JSON. The last one counts.
* `error no such codec`: why the task fails, if it does.

So a shell script says `echo 0.4 half way >&$APRESSURE_PROGRESS_FD`.
"""

from __future__ import annotations

import codecs
import contextlib
import logging
import os
import stat
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, Literal

from apressure import validation
from apressure.tasks.codec import decode_json
from apressure.tasks.options import fraction_of

logger = logging.getLogger("apressure")

VARIABLE: Final = "APRESSURE_PROGRESS_FD"

MAX_MESSAGE: Final = 1000
"""The most characters of a message of `report_progress`; a line of that size is written as a whole."""

MAX_LINE: Final = 16 << 20
"""The most bytes of a line, and so of a result."""

Stream = Literal["stdout", "stderr"]
STREAMS: Final[tuple[Stream, Stream]] = ("stdout", "stderr")

OnText = Callable[[Stream, str], object]
"""Called with the name of a stream and a piece of what was written to it."""

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
    fraction = fraction_of(fraction)
    message = " ".join(validation.text(message, "message").splitlines())[:MAX_MESSAGE]
    text = message.encode(errors="replace")
    if (on_progress := current_progress.get()) is not None:
        on_progress(fraction, text.decode())
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


class Tail:
    """The last bytes of a stream.

    Args:
        limit: How many bytes are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._total = 0

    def feed(self, data: bytes) -> None:
        """Append what was written."""
        self._total += len(data)
        self._kept += data[-self._limit :] if self._limit else b""
        if len(self._kept) > 2 * self._limit:  # not at each piece: that would move everything each time
            del self._kept[: -self._limit]

    @property
    def text(self) -> str:
        """What was kept, with � for what is not UTF-8. If the beginning is missing, a first line says so."""
        kept = bytes(self._kept[-self._limit :]) if self._limit else b""
        if self._total == len(kept):
            return kept.decode(errors="replace")
        start = next((i for i, byte in enumerate(kept[:4]) if byte & 0xC0 != 0x80), 0)  # where a character begins
        return f"[{self._total - len(kept) + start:,} bytes left out]\n{kept[start:].decode(errors='replace')}"


class Output:
    """The standard output and the standard error of one command.

    Args:
        limit: How many bytes are kept of each, and of both together.
        on_text: Called with each piece; its errors are logged.

    Attributes:
        stdout: The end of the standard output.
        stderr: The end of the standard error.
        both: The end of both together, in the order in which it came.
    """

    def __init__(self, limit: int, on_text: OnText | None) -> None:
        self.stdout, self.stderr, self.both = Tail(limit), Tail(limit), Tail(limit)
        self._on_text = on_text
        self._decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in STREAMS}

    def feed(self, stream: Stream, data: bytes) -> None:
        """Take what was written to a stream."""
        (self.stdout if stream == "stdout" else self.stderr).feed(data)
        self.both.feed(data)
        if self._on_text is not None and (text := self._decoders[stream].decode(data)):
            try:
                self._on_text(stream, text)
            except Exception:
                logger.exception("on_output failed: it is not called again for this task")
                self._on_text = None
