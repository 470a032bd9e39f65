"""Shows the progress of a long put or get on standard error."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Final, Self

from apressure.cli.show import printable

_PATIENCE: Final = 1.0
"""Seconds before anything is shown: a shorter command needs no progress bar."""


def is_shown(progress: bool | None, *, busy: int) -> bool:
    """Return whether to show progress; `busy` is the file descriptor of the items."""
    return (os.isatty(2) and not os.isatty(busy)) if progress is None else progress


class Meter:
    """Counts messages and bytes, and shows them if asked to.

    Args:
        label: The text before the numbers, such as "put orders".
        shown: Show the progress.
        total: How many messages there will be, if known.
        total_bytes: How many bytes there will be, if known.

    Attributes:
        messages: How many messages were moved.
        bytes: How many bytes they had.
    """

    def __init__(self, label: str, *, shown: bool, total: int | None = None, total_bytes: int | None = None) -> None:
        self.messages = 0
        self.bytes = 0
        self._label = printable(label)
        self._total = total
        self._total_bytes = total_bytes
        self._next = time.monotonic() + _PATIENCE if shown else float("inf")
        self._display: _Bar | _Lines | None = None

    def expect(self, total: int) -> None:
        """Set how many messages there will be, if that was not known at the start."""
        self._total = total

    def add(self, messages: int, size: int) -> None:
        """Count `messages` that had `size` bytes together."""
        self.messages += messages
        self.bytes += size
        if self._next != float("inf") and (now := time.monotonic()) >= self._next:
            if self._display is None:
                if sys.stderr.isatty():
                    self._display = _Bar(self._label, self._total, self._total_bytes)
                else:
                    self._display = _Lines(self._label)
            self._next = now + self._display.interval
            self._display.update(self.messages, self.bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.update(self.messages, self.bytes)
            self._display.stop()


class _Lines:
    """Progress for a file: a line every two seconds."""

    interval = 2.0

    def __init__(self, label: str) -> None:
        self._label = label

    def update(self, messages: int, size: int) -> None:
        sys.stderr.write(f"{self._label}: {_moved(messages, size)}\n")
        sys.stderr.flush()

    def stop(self) -> None:
        """Do nothing: lines stay."""


class _Bar:
    """Progress for a terminal."""

    interval = 0.1

    def __init__(self, label: str, total: int | None, total_bytes: int | None) -> None:
        # Imported here, since Rich is slow to load, and most commands end before anything is shown.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._total = total
        self._total_bytes = total_bytes
        self._began: float | None = None
        self._at_first = 0
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[moved]}", markup=False),
            TimeElapsedColumn(),
            console=Console(file=sys.stderr),
            transient=True,
        )
        self._task = self._progress.add_task(label, total=total if total is not None else total_bytes, moved="")

    def update(self, messages: int, size: int) -> None:
        now = time.monotonic()
        if self._began is None:
            self._began, self._at_first = now, messages
        moved = _moved(messages, size)
        if now - self._began > 0.5:
            moved += f", {(messages - self._at_first) / (now - self._began):,.0f}/s"
        completed = messages if self._total is not None else size if self._total_bytes is not None else None
        self._progress.update(self._task, completed=completed, moved=moved)
        if not self._progress.live.is_started:
            self._progress.start()

    def stop(self) -> None:
        self._progress.stop()


def _moved(messages: int, size: int) -> str:
    # The size is unknown if the messages do not pass through this process.
    return f"{messages:,} messages" + (f", {size / 1e6:,.1f} MB" if size else "")
