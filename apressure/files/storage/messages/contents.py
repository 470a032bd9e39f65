"""The content of a message's file, and notes that other clients leave alone.

A message is written, brought to the disk, and read if it is small enough. `look` is for pages: it changes nothing.

A file's modification time counts how often its message was handed out: two seconds each from the year 2000 on, since
some file systems count in twos. Other times mean never. Every file system has this time, and a rename keeps it.

An extended attribute of the directory has the newest key, if the file system has such attributes. It is written when
names run ahead of the clock, so that a client that finds the queue empty does not give an id a second time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from apressure.core.browsing import MOST_READ, Seen
from apressure.files.storage.names import READY, FileName, id_of, parse, time_of
from apressure.files.storage.place import READ, opened

_TO_DO: Final = "Call ack(id) to delete it, or set max_attempts= to dead-letter it after so many tries"

_MARK: Final = 946_684_800
_MARKS: Final = 100_000
_EACH: Final = 2_000_000_000
"""Nanoseconds."""
_NEWEST: Final = "user.apressure.newest"


class TooLargeError(OSError):
    """A message has more bytes than allowed, or does not fit into memory."""


def check_size(size: int, largest: int) -> None:
    """Raise TooLargeError if a message is too large."""
    if size > largest:
        reason = f"it has {size} bytes, and at most {largest} are allowed (max_message_size)"
        raise TooLargeError(errno.EFBIG, f"{reason}. {_TO_DO}")


def read(fd: int, size: int, largest: int) -> bytes:
    """Return the content of a file.

    Args:
        fd: The file.
        size: Its size in bytes, as its status says.
        largest: The most bytes that are allowed.

    Raises:
        TooLargeError: It has more, or does not fit into memory.
        OSError: It cannot be read.
    """
    check_size(size, largest)
    try:
        return _read(fd, size)
    except (MemoryError, OverflowError):  # the latter for more bytes than a process can address
        reason = f"it has {size} bytes, which do not fit into memory"
        raise TooLargeError(errno.ENOMEM, f"{reason}. {_TO_DO}") from None


def _read(fd: int, size: int) -> bytes:
    data = os.read(fd, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    while data:
        parts.append(data := os.read(fd, 1 << 20))
    return b"".join(parts)


def write(fd: int, data: bytes) -> None:
    """Write all of a message."""
    done = os.write(fd, data)
    while done < len(data):
        done += os.write(fd, memoryview(data)[done:])


def sync(fds: Sequence[int]) -> None:
    """Bring files to the disk. Several are begun together, since they wait for the same disk."""
    if len(fds) > 1 and sys.platform == "linux":
        for fd in fds:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # begins to write, without waiting
    for fd in fds:
        os.fsync(fd)


def handed_out(status: os.stat_result) -> int:
    """Return how often a message was handed out."""
    # A mark is a whole number of seconds. The time of a file that was written in 2000, by a wrong clock, rarely is.
    since = status.st_mtime_ns - _MARK * 10**9
    return since // _EACH if 0 <= since < _MARKS * _EACH and not since % _EACH else 0


def mark(file: int | str, times: int | None, directory: int | None = None) -> None:
    """Note how often a message was handed out; None for never. `file` is a descriptor, or a name in a directory.

    A file that is missing, and another user's in a shared directory, stay unmarked.
    """
    seconds = None if times is None else (_MARK + 2 * min(times, _MARKS - 1),) * 2
    try:  # `suppress` would cost each message some percent
        os.utime(file, seconds, dir_fd=directory)
    except (FileNotFoundError, PermissionError):
        return


def look(directory: int, filenames: Iterable[str], most_bytes: int) -> tuple[int, list[Seen]]:
    """Look at the files of these messages, until some 1 MiB was read.

    Args:
        directory: The descriptor of the directory.
        filenames: Their names.
        most_bytes: How many bytes of each to read.

    Returns:
        How many it has looked at, and what it has seen of those that are there.
    """
    seen: list[Seen] = []
    looked = size = 0
    for filename in filenames:
        if size >= MOST_READ:
            break
        looked += 1
        if (name := parse(filename)) is not None:
            with contextlib.suppress(FileNotFoundError):
                seen.append(_seen(directory, filename, name, most_bytes))
                size += len(seen[-1].start or b"")
    return looked, seen


def _seen(directory: int, filename: str, name: FileName, most_bytes: int) -> Seen:
    since = time_of(name.key) / 1000 if name.state == READY else None
    told = Seen(None, 0, id_of(name.key).encode(), since=since, due=name.expires / 1000 or None)
    try:
        with opened(filename, READ, directory) as fd:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return told._replace(error="it is not a file")
            with os.fdopen(fd, "rb", closefd=False) as file:
                start = file.read(min(most_bytes, status.st_size))
    except FileNotFoundError:
        raise
    except OSError as error:
        return told._replace(error=f"it cannot be read: {error.strerror or error}")
    return told._replace(start=start, size=status.st_size, attempts=handed_out(status))


def newest_noted(directory: int) -> int:
    """Return the newest key that was noted at a directory; -1 for none."""
    if sys.platform != "linux":  # Python has these attributes on Linux only
        return -1
    try:
        return int(os.getxattr(directory, _NEWEST))
    except (OSError, ValueError):  # none yet, or no such attributes here
        return -1


def note_newest(directory: int, key: int) -> None:
    """Note the newest key, unless a newer one is noted."""
    if sys.platform == "linux" and key > newest_noted(directory):
        with contextlib.suppress(OSError):
            os.setxattr(directory, _NEWEST, b"%d" % key)
