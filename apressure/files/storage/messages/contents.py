"""The content of a message's file: written, brought to the disk, and read if it is small enough."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Final

_TO_DO: Final = "Call ack(id) to delete it, or set max_attempts= to dead-letter it after so many tries"


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
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def sync(fds: Sequence[int]) -> None:
    """Bring files to the disk. Several are begun together, since they wait for the same disk."""
    if len(fds) > 1 and sys.platform == "linux":
        for fd in fds:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # begins to write, without waiting
    for fd in fds:
        os.fsync(fd)
