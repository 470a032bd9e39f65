"""Keeps the index current: by the kernel's notifications (inotify), or by full listings.

Notifications are read synchronously before each operation. They have every change that any process on this machine made
before the call. While a task waits, the event loop watches their descriptor, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from apressure.exceptions import MissingExtraError, StorageError
from apressure.files.storage.index import Index
from apressure.files.storage.place import Listing, opened

_EVENT: Final = struct.Struct("iIII")
_BUFFER: Final = 1 << 16
_LARGEST: Final = _EVENT.size + 256

# linux/inotify.h
_MOVED_FROM: Final = 0x40
_MOVED_TO: Final = 0x80
_CREATE: Final = 0x100
_DELETE: Final = 0x200
_DELETE_SELF: Final = 0x400
_MOVE_SELF: Final = 0x800
_UNMOUNT: Final = 0x2000
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_ISDIR: Final = 0x40000000
_APPEARED: Final = _CREATE | _MOVED_TO
_WENT: Final = _DELETE | _MOVED_FROM
_GONE: Final = _DELETE_SELF | _MOVE_SELF | _UNMOUNT | _IGNORED

_REMOTE: Final = frozenset(
    {"9p", "afs", "ceph", "cifs", "coda", "glusterfs", "gfs2", "lustre", "nfs", "nfs4", "ocfs2", "prl_fs", "smb3",
     "smbfs", "vboxsf", "virtiofs"}
)  # fmt: skip
"""File systems that other machines change without this machine's kernel knowing. So do all of FUSE."""


class Notified:
    """Changes as the kernel tells them (Linux), in the order in which they were made.

    A rename is two changes. Between them the message would have no name, and a full queue would seem to have room. So a
    name leaves the index only when the next change shows whether the message has another one.

    The kernel tells a name, and not its type. So each new name is checked: a pipe, a link or a socket is no message.

    Args:
        index: The index to keep current.
        directory: The descriptor of the directory.
        path: Its path.
        name: The queue's name, for errors.

    Raises:
        MissingExtraError: The package asyncinotify is not installed.
        StorageError: The user's watches, or instances, are used up.

    Attributes:
        ordered: Whether changes come in the order in which they were made.
        stale: Whether the index needs a full listing.
        gone: Whether the directory may have been deleted or moved.
    """

    ordered = True

    def __init__(self, index: Index, directory: int, path: Path, name: str) -> None:
        try:
            import asyncinotify
        except ImportError as error:
            raise MissingExtraError(
                "FileQueue needs the package asyncinotify to notice changes: pip install 'apressure[files]', or open "
                "the queue with notify=False, which lists the directory again and again",
                extra="files",
            ) from error
        self._index = index
        self._directory = directory
        self._leaving: str | None = None
        """The old name of a rename whose new name has not come yet."""
        self._renaming = 0
        """The number of that rename. Its new name comes with the same number."""
        self._strangers: set[str] = set()
        """Names of what is not a file, or is not known to be one."""
        self.stale = True
        self.gone = False
        self._inotify: Any = None
        # By the descriptor, since another directory may have the path now.
        known = Path(f"/proc/self/fd/{directory}")
        mask = asyncinotify.Mask.ONLYDIR | asyncinotify.Mask(_APPEARED | _WENT | _DELETE_SELF | _MOVE_SELF)
        try:
            self._inotify = asyncinotify.Inotify()
            self._inotify.add_watch(known if known.exists() else path, mask)
        except OSError as error:
            self.close()
            limit = {
                errno.EMFILE: ": too many open files, or more than fs.inotify.max_user_instances queues are open",
                errno.ENOSPC: ": more than fs.inotify.max_user_watches directories are watched",
            }.get(error.errno or 0, "")
            raise StorageError(
                f"cannot watch the queue {name!r} at {path}: {error.strerror}{limit}",
                name=name,
                errno=error.errno or errno.EIO,
            ) from error
        self._fd: int = self._inotify.fd
        os.set_blocking(self._fd, False)

    def fileno(self) -> int:
        """Return a descriptor that is readable after a change; -1 if there is none."""
        return self._fd

    def close(self) -> None:
        """Stop watching."""
        if self._inotify is not None:
            self._inotify.close()

    def drain(self) -> None:
        """Bring every change that was made before this call into the index, unless it is stale."""
        self._read()
        while (leaving := self._leaving) is not None:
            self._wait_for_renames()
            self._read()
            if self._leaving is leaving:
                self._left()  # it was moved out of the directory

    def _wait_for_renames(self) -> None:
        # A rename holds the directory's lock until the kernel has told both of its changes. A listing takes that lock.
        try:
            with opened(".", directory=self._directory) as fd, os.scandir(fd) as entries:
                next(entries, None)
        except OSError:  # too many files are open; the listing that follows raises that
            self.stale = True

    def _read(self) -> None:
        while not self.stale:
            try:
                data = os.read(self._fd, _BUFFER)
            except BlockingIOError:
                return
            self._tell(data)
            if len(data) <= _BUFFER - _LARGEST:
                return  # there is room for another one, so there is none

    def _tell(self, data: bytes) -> None:
        index, now = self._index, time.monotonic()
        position, end = 0, len(data)
        while position < end:
            _, mask, renaming, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size + length
            was_file = renaming != 0 and renaming == self._renaming and self._leaving not in self._strangers
            self._left()  # this change is its new name, or it has none
            if mask & (_APPEARED | _WENT) and not mask & _ISDIR:
                filename = data[position - length : position].rstrip(b"\0").decode("ascii", "replace")
                if mask & _APPEARED:
                    if was_file or self._is_message(filename):
                        index.add(filename, now)
                    else:
                        index.discard(filename)  # it may have replaced a message
                elif mask & _MOVED_FROM:
                    self._leaving, self._renaming = filename, renaming
                else:
                    index.discard(filename)
                    self._strangers.discard(filename)
            elif mask & _OVERFLOW:
                self.stale = True
            elif mask & _GONE:
                self.gone = self.stale = True
                return  # the index keeps what was in the directory

    def _left(self) -> None:
        if self._leaving is not None:
            self._index.discard(self._leaving)
            self._strangers.discard(self._leaving)
            self._leaving = None

    def _is_message(self, filename: str) -> bool:
        try:
            status = os.stat(filename, dir_fd=self._directory, follow_symlinks=False)
        except OSError:  # it was renamed or deleted; the next changes tell
            self._strangers.add(filename)
            return True
        if stat.S_ISREG(status.st_mode):
            self._strangers.discard(filename)
            return True
        self._strangers.add(filename)
        return False

    def listed(self, list_all: Callable[[], Listing]) -> Callable[[], None]:
        """Make a full listing, in any thread, while the index is not used. Returns what brings it into the index."""
        with contextlib.suppress(BlockingIOError):
            while True:
                os.read(self._fd, _BUFFER)  # the listing has these changes
        listing = list_all()
        found = Index.of(listing.files, time.monotonic())

        def bring() -> None:
            self._index.become(found)
            self._strangers = listing.others
            self._leaving = None
            self.stale = False
            self.drain()  # changes during the listing, which may have them already

        return bring


class Listed:
    """Full listings, which are slow and work on every file system. It has the methods of `Notified`."""

    ordered = False
    gone = False

    def __init__(self, index: Index) -> None:
        self._index = index
        self._asked = 1
        self._answered = 0

    @property
    def stale(self) -> bool:
        """Whether a task has called `drain` since the last listing began."""
        return self._answered < self._asked

    def drain(self) -> None:
        self._asked += 1

    def listed(self, list_all: Callable[[], Listing]) -> Callable[[], None]:
        answers = self._asked
        found = Index.of(list_all().files, time.monotonic())

        def bring() -> None:
            self._index.become(found)
            self._answered = answers

        return bring

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        """Do nothing."""


def watch(index: Index, directory: int, path: Path, name: str, notify: bool | None) -> Notified | Listed:
    """Return what keeps the index of a directory current. For `notify` see `FileQueue`, for errors `Notified`."""
    if notify or (notify is None and sys.platform == "linux" and not is_remote(directory)):
        return Notified(index, directory, path, name)
    return Listed(index)


def is_remote(directory: int) -> bool:
    """Return whether a directory is on a file system that other machines may change."""
    device = os.fstat(directory).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return False
    for line in mounts:
        head, _, tail = line.partition(" - ")
        if head.split()[2] == number:
            kind = tail.split()[0]
            return kind in _REMOTE or kind.startswith("fuse")
    return False
