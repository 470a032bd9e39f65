"""How often a message was handed out: its file's modification time says so.

Two seconds each from the year 2000 on, since some file systems count in twos. Other times are those of writing: never.
It moves with the file through all its names, other clients leave it alone, and every file system has it.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

_MARK: Final = 946_684_800
_MARKS: Final = 100_000
_SECOND: Final = 1_000_000_000


def handed_out(status: os.stat_result) -> int:
    """Return how often."""
    # A mark is a whole number of seconds; a clock that is in the year 2000 still, for want of a battery, rarely is.
    times, rest = divmod(status.st_mtime_ns - _MARK * _SECOND, 2 * _SECOND)
    return times if 0 <= times < _MARKS and not rest else 0


def mark(file: int | str, times: int | None, directory: int | None = None) -> None:
    """Note how often; None for never. `file` is a descriptor, or a name in a directory."""
    seconds = None if times is None else (_MARK + 2 * min(times, _MARKS - 1),) * 2
    with contextlib.suppress(PermissionError):  # somebody else's file, in a shared directory: it stays unmarked
        os.utime(file, seconds, dir_fd=directory)
