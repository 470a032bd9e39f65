"""What tells the index of changes: the kernel, or a full listing where it does not.

The kernel's queue of events (inotify) is read synchronously, before each operation: every change that was made before
the call, by whatever process on this machine, is in it. While a task waits the descriptor is in the event loop, too.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from apressure.exceptions import MissingExtraError, StorageError
from apressure.files.index import Index

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
"""File systems that other machines change, of which this machine's kernel then knows nothing. And all of FUSE."""


class Notified:
    """Changes as the kernel tells them (Linux), in the order in which they were made.

    A rename is two of them, and whoever reads in between would not find the message under either name: a full queue
    would seem to have room. So a name goes when it is known what became of it.

    Args:
        index: What is told of them.
        directory: The descriptor of the directory.
        path: Its path.
        name: The queue's name, for errors.

    Raises:
        MissingExtraError: The package asyncinotify is not installed.
        StorageError: The user's watches, or instances, are used up.

    Attributes:
        ordered: It tells of changes in the order in which they were made.
        stale: The index needs a full listing before it can be believed.
        gone: The directory may have been deleted or moved.
    """

    ordered = True

    def __init__(self, index: Index, directory: int, path: Path, name: str) -> None:
        try:
            import asyncinotify
        except ImportError as error:
            raise MissingExtraError(
                "a FileQueue is told of changes by the package asyncinotify: pip install 'apressure[files]', "
                "or open the queue with notify=False, which looks again and again",
                extra="files",
            ) from error
        self._index = index
        self._directory = directory
        self._leaving: str | None = None
        """A name that went by a rename, as the last thing that was told."""
        self.stale = True
        self.gone = False
        self._inotify: Any = None
        # By the descriptor, since another directory may have the path by now.
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
        """Return a descriptor that is readable when there is something to tell; -1 for none."""
        return self._fd

    def close(self) -> None:
        """Stop watching."""
        if self._inotify is not None:
            self._inotify.close()

    def drain(self) -> None:
        """Tell of every change that was made before this call, unless the index is stale."""
        self._read()
        while (leaving := self._leaving) is not None:
            self._wait_for_renames()
            self._read()
            if self._leaving is leaving:
                self._left()  # it went out of the directory

    def _wait_for_renames(self) -> None:
        # Renaming holds the directory's lock until both of its changes are told, and reading it takes that lock.
        fd = -1
        try:
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._directory)
            with os.scandir(fd) as entries:  # this takes another descriptor
                next(entries, None)
        except OSError:  # too many files are open: whoever lists says so
            self.stale = True
        finally:
            if fd != -1:
                os.close(fd)

    def _read(self) -> None:
        while not self.stale:
            try:
                data = os.read(self._fd, _BUFFER)
            except BlockingIOError:
                return
            self._tell(data)
            if len(data) <= _BUFFER - _LARGEST:
                return  # another one would have fitted

    def _tell(self, data: bytes) -> None:
        index, now = self._index, time.monotonic()
        position, end = 0, len(data)
        while position < end:
            _, mask, _, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size + length
            self._left()  # this is the name that it has now, or it has none
            if mask & (_APPEARED | _WENT) and not mask & _ISDIR:
                filename = data[position - length : position].rstrip(b"\0").decode("ascii", "replace")
                if mask & _APPEARED:
                    index.add(filename, now)
                elif mask & _MOVED_FROM:
                    self._leaving = filename
                else:
                    index.discard(filename)
            elif mask & _OVERFLOW:
                self.stale = True  # what comes now is of no use before a listing
            elif mask & _GONE:
                self.gone = True

    def _left(self) -> None:
        if self._leaving is not None:
            self._index.discard(self._leaving)
            self._leaving = None

    def listed(self, list_all: Callable[[], list[str]]) -> Callable[[], None]:
        """Make a full listing, in any thread, while nothing else asks. Returns what brings it into the index."""
        # What was told before the listing begins is in it. After an overflow, nothing else may come of it.
        try:
            while True:
                os.read(self._fd, _BUFFER)
        except BlockingIOError:
            pass
        found = Index.of(list_all(), time.monotonic())

        def bring() -> None:
            self._index.become(found)
            self._leaving = None
            self.stale = False
            self.drain()  # what changed meanwhile; the listing may have it already, or not

        return bring


class Listed:
    """Changes as full listings show them: slow, and right on every file system. Like `Notified`.

    Args:
        index: What is told of them.
    """

    ordered = False
    gone = False

    def __init__(self, index: Index) -> None:
        self._index = index
        self._asked = 1
        self._answered = 0

    @property
    def stale(self) -> bool:
        """Somebody has asked since the last listing began."""
        return self._answered < self._asked

    def drain(self) -> None:
        self._asked += 1

    def listed(self, list_all: Callable[[], list[str]]) -> Callable[[], None]:
        answers = self._asked
        found = Index.of(list_all(), time.monotonic())

        def bring() -> None:
            self._index.become(found)
            self._answered = answers

        return bring

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        """There is nothing to stop."""


def watch(index: Index, directory: int, path: Path, name: str, notify: bool | None) -> Notified | Listed:
    """Return what tells of changes in a directory; for `notify` see `FileQueue`. Errors are those of `Notified`."""
    if notify or (notify is None and sys.platform == "linux" and not is_remote(directory)):
        return Notified(index, directory, path, name)
    return Listed(index)


def is_remote(directory: int) -> bool:
    """Say whether a directory is on a file system that other machines change, too."""
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
