"""Why messages failed: a small file beside each message that did, which other clients ignore.

The rules of this module: it raises nothing, and no operation depends on it. A file that is missing, damaged or not a
file means that nothing is known. Each names the inode of its message, so it says nothing of a later message of that id.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import Final, NamedTuple

from apressure.files.storage.names import REASON
from apressure.files.storage.place import CREATE, READ, opened

_MOST: Final = 1000
"""The most bytes in such a file."""

_LINE: Final = re.compile(rb"([0-9]{1,20}) ([0-9]{1,9}) ([0-9]{1,9}) ([0-9]{1,16}) (.*)", re.ASCII | re.DOTALL)


class Reason(NamedTuple):
    """What is known of a message that failed.

    Attributes:
        error: The latest error, as `apressure.dead_letters.encode` returns it.
        attempt: The attempt that ended with it; 0 if none did.
        attempts: How often a dead letter was delivered; 0 for a message that is no dead letter.
        when: When it became a dead letter, in microseconds since 1970.
    """

    error: bytes = b""
    attempt: int = 0
    attempts: int = 0
    when: int = 0


def write(directory: int, message_id: str, inode: int, reason: Reason) -> bool:
    """Keep a reason in place of an earlier one. False if the file system refuses.

    Args:
        directory: The descriptor of the directory that the message is in.
        message_id: The message.
        inode: The inode of the message's file.
        reason: What is known of it.
    """
    try:
        forget(directory, message_id)
        # Never through a link, or into another file: in a shared directory, another user may have made it.
        with opened(REASON + message_id, CREATE, directory) as fd:
            os.write(fd, b"%d %d %d %d %b" % (inode, reason.attempt, reason.attempts, reason.when, reason.error))
    except OSError:
        return False
    return True


def read(directory: int, message_id: str, inode: int) -> Reason:
    """Return what is known of a message, which may be nothing. For the arguments see `write`."""
    data = b""
    with contextlib.suppress(OSError), opened(REASON + message_id, READ, directory) as fd:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            data = os.read(fd, _MOST + 1)
    matched = _LINE.fullmatch(data)
    if matched is None or len(data) > _MOST or int(matched[1]) != inode:
        return Reason()
    attempt, attempts, when = map(int, matched.groups()[1:4])
    return Reason(matched[5], attempt, attempts, when)


def follow(directory: int, before: str, after: str) -> None:
    """Keep what is known of a message that has another id now."""
    with contextlib.suppress(OSError):
        os.rename(REASON + before, REASON + after, src_dir_fd=directory, dst_dir_fd=directory)


def forget(directory: int, message_id: str) -> None:
    """Delete what is known of a message."""
    with contextlib.suppress(OSError):
        os.unlink(REASON + message_id, dir_fd=directory)
