"""Notes that other clients leave alone: how often a message was handed out, and how far names have come.

A file's modification time counts how often its message was handed out: two seconds each from the year 2000 on, since
some file systems count in twos. Other times mean never. Every file system has this time, and a rename keeps it.

An extended attribute of the directory has the newest key, if the file system has such attributes. It is written when
names run ahead of the clock, so that a client that finds the queue empty does not give an id a second time.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final

_MARK: Final = 946_684_800
_MARKS: Final = 100_000
_SECOND: Final = 1_000_000_000
_NEWEST: Final = "user.apressure.newest"


def handed_out(status: os.stat_result) -> int:
    """Return how often a message was handed out."""
    # A mark is a whole number of seconds. The time of a file that was written in 2000, by a wrong clock, rarely is.
    times, rest = divmod(status.st_mtime_ns - _MARK * _SECOND, 2 * _SECOND)
    return times if 0 <= times < _MARKS and not rest else 0


def mark(file: int | str, times: int | None, directory: int | None = None) -> None:
    """Note how often a message was handed out; None for never. `file` is a descriptor, or a name in a directory.

    A file that is missing, and another user's in a shared directory, stay unmarked.
    """
    seconds = None if times is None else (_MARK + 2 * min(times, _MARKS - 1),) * 2
    with contextlib.suppress(FileNotFoundError, PermissionError):
        os.utime(file, seconds, dir_fd=directory)


def newest(directory: int) -> int:
    """Return the newest key that was noted at a directory; -1 for none."""
    if sys.platform != "linux":  # Python has these attributes on Linux only
        return -1
    try:
        return int(os.getxattr(directory, _NEWEST))
    except (OSError, ValueError):  # none yet, or no such attributes here
        return -1


def note(directory: int, key: int) -> None:
    """Note the newest key, unless a newer one is noted."""
    if sys.platform == "linux" and key > newest(directory):
        with contextlib.suppress(OSError):
            os.setxattr(directory, _NEWEST, b"%d" % key)
