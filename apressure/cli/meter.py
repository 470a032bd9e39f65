"""How far a long put or get has come, on standard error while somebody looks at it."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final, Self

_PATIENCE: Final = 1.0
"""Seconds before anything is shown: what is over by then needs no progress bar."""

_INTERVAL: Final = 0.1


class Meter:
    """Counts messages and bytes, and shows them if asked to.

    Args:
        label: What is shown in front, such as "put orders".
        shown: Whether to show anything at all.
        total: How many messages there will be, if known.
        total_bytes: How many bytes there will be, if known.

    Attributes:
        messages: How many messages were moved.
        bytes: How many bytes they had.
    """

    def __init__(self, label: str, *, shown: bool, total: int | None = None, total_bytes: int | None = None) -> None:
        self.messages = 0
        self.bytes = 0
        self._label = label
        self._total = total
        self._total_bytes = total_bytes
        self._next = time.monotonic() + _PATIENCE if shown else float("inf")
        self._display: _Display | None = None

    def add(self, messages: int, size: int) -> None:
        """Count `messages` that had `size` bytes together."""
        self.messages += messages
        self.bytes += size
        if self._next != float("inf") and (now := time.monotonic()) >= self._next:
            self._next = now + _INTERVAL
            if self._display is None:
                self._display = _Display(self._label, self._total, self._total_bytes)
            self._display.update(self.messages, self.bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.update(self.messages, self.bytes)
            self._display.stop()


class _Display:
    def __init__(self, label: str, total: int | None, total_bytes: int | None) -> None:
        # Rich takes its time to load, and most puts and gets are over before anything is shown.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._total = total
        self._total_bytes = total_bytes
        self._began = time.monotonic()
        self._at_start: tuple[int, int] | None = None
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[moved]}"),
            TimeElapsedColumn(),
            console=Console(file=sys.stderr),
            transient=True,
        )
        self._task = self._progress.add_task(label, total=total if total is not None else total_bytes, moved="")
        self._progress.start()

    def update(self, messages: int, size: int) -> None:
        if self._at_start is None:
            self._at_start = messages, size
        seconds = time.monotonic() - self._began
        rate = (messages - self._at_start[0]) / seconds if seconds > 0.5 else 0.0
        moved = f"{messages:,} messages, {size / 1e6:,.1f} MB" + (f", {rate:,.0f}/s" if rate else "")
        completed = messages if self._total is not None else size if self._total_bytes is not None else None
        self._progress.update(self._task, completed=completed, moved=moved)

    def stop(self) -> None:
        self._progress.stop()
