"""What a command writes: the end of it is kept, so a command that writes without end fills no memory."""

from __future__ import annotations

import codecs
import logging
from collections.abc import Callable
from typing import Final, Literal

logger = logging.getLogger("apressure")

Stream = Literal["stdout", "stderr"]
STREAMS: Final[tuple[Stream, Stream]] = ("stdout", "stderr")

OnText = Callable[[Stream, str], object]
"""Called with the name of a stream and a piece of what was written to it."""


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
