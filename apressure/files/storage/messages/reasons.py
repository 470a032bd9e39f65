"""Why messages failed, and when they expire: a small file beside each such message, which other clients ignore.

A file that is missing, damaged or not a file means that nothing is known. Each names the inode of its message, so it
says nothing of a later message of that id. Only `put` raises anything: why a message failed is for people, and no
operation depends on it.
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

_LINE: Final = re.compile(
    rb"([0-9]{1,20}) ([0-9]{1,9}) ([0-9]{1,9}) ([0-9]{1,16})(?:!([0-9]{1,17}))? (.*)", re.ASCII | re.DOTALL
)
"""Versions before expiry do not understand a line with the part behind `!`, and know nothing of its message."""


class Reason(NamedTuple):
    """What is known of a message.

    Attributes:
        error: The latest error, as `apressure.dead_letters.encode` returns it.
        attempt: The attempt that ended with it; 0 if none did.
        attempts: How often a dead letter was delivered; 0 for a message that is no dead letter.
        when: When it became a dead letter, in microseconds since 1970; 0 for a message that is none.
        expires: When it expires, in microseconds since 1970; 0 for never.
    """

    error: bytes = b""
    attempt: int = 0
    attempts: int = 0
    when: int = 0
    expires: int = 0

    def encode(self, inode: int) -> bytes:
        """Return the content of its file."""
        end = b"!%d" % self.expires if self.expires else b""
        return b"%d %d %d %d%b %b" % (inode, self.attempt, self.attempts, self.when, end, self.error)


def put(directory: int, message_id: str, inode: int, reason: Reason, fsync: bool = False) -> None:
    """Keep what is known of a message in place of what was.

    Args:
        directory: The descriptor of the directory that the message is in.
        message_id: The message.
        inode: The inode of the message's file.
        reason: What is known of it.
        fsync: Bring it to the disk.

    Raises:
        OSError: The file system refuses.
    """
    forget(directory, message_id)
    # Never through a link, or into another file: in a shared directory, another user may have made it.
    with opened(REASON + message_id, CREATE, directory) as fd:
        os.write(fd, reason.encode(inode))
        if fsync:
            os.fsync(fd)


def read(directory: int, message_id: str, inode: int) -> Reason:
    """Return what is known of a message, which may be nothing. For the arguments see `put`."""
    data = b""
    with contextlib.suppress(OSError), opened(REASON + message_id, READ, directory) as fd:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            data = os.read(fd, _MOST + 1)
    matched = _LINE.fullmatch(data)
    if matched is None or len(data) > _MOST or int(matched[1]) != inode:
        return Reason()
    attempt, attempts, when = map(int, matched.groups()[1:4])
    return Reason(matched[6], attempt, attempts, when, int(matched[5] or 0))


def precede(directory: int, before: str, after: str) -> bool:
    """Keep what is known of a message under the id that it gets next, too: another client may take it at once.

    Returns:
        Whether it is; not on a file system without links.
    """
    try:
        os.link(REASON + before, REASON + after, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return True


def follow(directory: int, before: str, after: str) -> None:
    """Keep what is known of a message that has another id now."""
    with contextlib.suppress(OSError):
        os.rename(REASON + before, REASON + after, src_dir_fd=directory, dst_dir_fd=directory)
    forget(directory, before)  # a rename between two links to one file does nothing


def forget(directory: int, message_id: str) -> None:
    """Delete what is known of a message."""
    with contextlib.suppress(OSError):
        os.unlink(REASON + message_id, dir_fd=directory)
