"""Keeps the index current: by the kernel's notifications (inotify), or by full listings.

Notifications are read synchronously before each operation. They have every change that any process on this machine made
before the call. While a task waits, the event loop reads them, too.
"""

from __future__ import annotations

import asyncio
import os
import stat
import weakref
from collections.abc import Callable, Container
from pathlib import Path
from typing import Final

from apressure.files.storage import inotify
from apressure.files.storage.index import Index
from apressure.files.storage.inotify import DELETE, MOVED_FROM
from apressure.files.storage.names import NEW, parse
from apressure.files.storage.place import opened

_APPEARED: Final = (inotify.MOVED_TO, inotify.CREATE)
_GONE: Final = inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.UNMOUNT | inotify.IGNORED

_MOST_KEPT: Final = 1 << 16
"""The most changes that are kept while a directory is listed; after more, it is listed once more."""

Wake = weakref.WeakMethod[Callable[[bool], None]]

_REMOTE: Final = frozenset(
    {"9p", "afs", "ceph", "cifs", "coda", "glusterfs", "gfs2", "lustre", "nfs", "nfs4", "ocfs2", "prl_fs", "smb3",
     "smbfs", "vboxsf", "virtiofs"}
)  # fmt: skip
"""File systems that other machines change without this machine's kernel knowing. So do all of FUSE."""


class Watcher:
    """Keeps an index current. This one does nothing, since its directory is not open.

    Attributes:
        opened: Whether the directory is open.
        ordered: Whether changes come in the order in which they were made.
        stale: Whether the index needs a full listing.
        gone: Whether the directory may have been deleted or moved.
    """

    opened = ordered = stale = False
    gone = True

    def drain(self) -> None:
        """Bring every change that was made before this call into the index, unless it is stale."""

    def prepare(self) -> None:
        """A full listing is about to begin."""

    def begin(self) -> None:
        """The listing begins, in the thread."""

    def bring(self, listed: Index, others: set[str]) -> None:
        """Bring a listing into the index: that of its files, and the names of what is not a file."""

    def attend(self, wake: Wake | None) -> None:
        """Call `wake(False)` as soon as something has changed, if the kernel tells that; with None, no more."""

    def close(self) -> None:
        """Stop watching. Closing twice is allowed."""


class Notified(Watcher):
    """Changes as the kernel tells them (Linux), in the order in which they were made.

    A rename is two changes. Between them the message would have no name, and a full queue would seem to have room. So a
    name leaves the index only when the next change shows whether the message has another one.

    The kernel tells a name, and not its type. So each new name is checked: a pipe, a link or a socket is no message.

    It is made and used in its event loop, whose other queues share the kernel's notifications.

    Args:
        index: The index to keep current.
        directory: The descriptor of the directory.
        path: Its path.
        own: The keys of messages that this program is writing: their names are those of files.

    Raises:
        MissingExtraError: The package asyncinotify is not installed.
        OSError: The kernel cannot watch the directory.
    """

    opened = ordered = stale = True
    gone = False

    def __init__(self, index: Index, directory: int, path: Path, own: Container[int]) -> None:
        self._index = index
        self._own = own
        self._directory = directory
        self._leaving: str | None = None
        """The old name of a rename whose new name has not come yet."""
        self._renaming = 0
        """The number of that rename. Its new name comes with the same number."""
        self._strangers: set[str] = set()
        """Names of what is not a file, or is not known to be one."""
        self._kept: list[tuple[int, int, str, float]] | None = None
        """Changes since a listing began, as `change` takes them; None if there is none, or if some are missing."""
        self._wake: Wake | None = None
        self._instance = inotify.instance_of(asyncio.get_running_loop())
        self._number = self._instance.watch(directory, path, self)

    def close(self) -> None:
        self.stale = True
        if self._number != -1:
            self._instance.unwatch(self._number, self)
            self._number = -1

    def attend(self, wake: Wake | None) -> None:
        if (wake is None) != (self._wake is None) and self._number != -1:
            (self._instance.leave if wake is None else self._instance.attend)(self)
        self._wake = wake

    def wake(self) -> None:
        """Let tasks that wait look at what has changed."""
        if self._wake is not None and (call := self._wake()) is not None:
            call(False)

    def drain(self) -> None:
        self._instance.read(self)
        while (leaving := self._leaving) is not None and not self.stale:
            self._wait_for_renames()
            self._instance.read(self)
            if self._leaving is leaving:
                self._left(leaving)  # it was moved out of the directory

    def _wait_for_renames(self) -> None:
        # A rename holds the directory's lock until the kernel has told both of its changes. A listing takes that lock.
        try:
            with opened(".", directory=self._directory) as fd, os.scandir(fd) as entries:
                next(entries, None)
        except OSError:  # too many files are open; the listing that follows raises that
            self.stale = True

    def lose(self) -> None:
        """Note that the kernel has dropped changes: the directory must be listed, or listed once more."""
        self.stale = True
        self._kept = None

    def change(self, mask: int, renaming: int, filename: str, now: float) -> None:
        """Bring a change into the index. If it is stale, the change counts only while the directory is listed.

        Args:
            mask: What happened, as in linux/inotify.h.
            renaming: The number that both changes of a rename have; 0 for other changes.
            filename: The name; empty for the directory itself.
            now: When the change was read, by `time.monotonic`.
        """
        if self.stale:
            if self._kept is not None:
                self._kept.append((mask, renaming, filename, now))
                if len(self._kept) > _MOST_KEPT:
                    self.lose()
            return
        leaving, was_file = self._leaving, False
        if leaving is not None:  # this change is its new name, or it has none
            was_file = renaming == self._renaming and leaving not in self._strangers
            self._left(leaving)
        # The mask of a directory in this one has another bit.
        if mask == MOVED_FROM:
            self._leaving, self._renaming = filename, renaming
        elif mask == DELETE:
            self._left(filename)
        elif mask in _APPEARED:
            if was_file or self._is_message(filename):
                self._index.add(filename, now)
            else:
                self._index.discard(filename)  # it may have replaced a message
        elif mask & _GONE:
            self.gone = self.stale = True  # the index keeps what was in the directory

    def _left(self, filename: str) -> None:
        self._index.discard(filename)
        self._strangers.discard(filename)
        self._leaving = None

    def _is_message(self, filename: str) -> bool:
        if (name := parse(filename)) is not None and name.state == NEW and name.key in self._own:
            return True
        try:
            mode = os.stat(filename, dir_fd=self._directory, follow_symlinks=False).st_mode
            is_file: bool | None = stat.S_ISREG(mode)
        except OSError:  # it was renamed or deleted; the next changes tell
            is_file = None
        (self._strangers.discard if is_file else self._strangers.add)(filename)
        return is_file is not False

    def prepare(self) -> None:
        self._instance.read(self)  # the listing has these changes
        self._kept = []

    def bring(self, listed: Index, others: set[str]) -> None:
        self._instance.read(self)
        self._index.become(listed)
        self._strangers = others
        self._leaving = None
        kept, self._kept = self._kept, None
        if kept is None or self._number == -1:
            return  # changes are missing: it stays stale
        self.stale = False
        for change in kept:  # the listing may have them already
            self.change(*change)
        self.drain()


class Listed(Watcher):
    """Full listings, which are slow and work on every file system. Tasks that wait look again after a time."""

    opened = stale = True
    gone = False

    def __init__(self, index: Index) -> None:
        self._index = index
        self._asked = self._answers = 0

    def drain(self) -> None:
        self._asked += 1
        self.stale = True  # until a listing has begun after this call

    def begin(self) -> None:
        self._answers = self._asked

    def bring(self, listed: Index, others: set[str]) -> None:  # noqa: ARG002
        self._index.become(listed)
        self.stale = self._answers < self._asked


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
