"""A queue's directory as a place in the file system: opened, checked and listed, with errors that name it.

The rule of this module and of `directory`: every name is relative to a descriptor of the directory. So nothing leaves
it, whatever a name contains, and also when a directory above it is moved.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from apressure.exceptions import QueueDoesNotExistError, StorageError
from apressure.files.storage.messages.renaming import Renaming

READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
CREATE: Final = os.O_CREAT | os.O_EXCL | os.O_WRONLY
APPEND: Final = os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW
MODE: Final = 0o600
"""The mode of a message's file. vsqs 0.3 makes executable files."""


@contextlib.contextmanager
def opened(path: str | Path, flags: int = os.O_DIRECTORY, directory: int | None = None) -> Iterator[int]:
    """Open or create a file, or open a directory; the block gets the descriptor, and closes it at its end."""
    fd = os.open(path, flags, MODE, dir_fd=directory)
    try:
        yield fd
    finally:
        os.close(fd)


class Place:
    """The directory of one queue.

    Args:
        parent: The directory that it is in.
        name: Its name there.
        fsync: Sync files and directories before an operation returns.

    Attributes:
        path: The directory.
        name, fsync: As given.
        renaming: Renames files without overwriting others.
    """

    def __init__(self, parent: Path, name: str, fsync: bool) -> None:
        self.path = parent / name
        self.name = name
        self.fsync = fsync
        self.renaming = Renaming()
        self._fd = -1
        self._spelled = os.fspath(self.path)
        self._identity = (0, 0)

    def __del__(self) -> None:
        self.close()

    def open(self, create: bool) -> None:
        """Open it. With `create`, first make it, and the directories above it, for the owner only.

        Raises:
            QueueDoesNotExistError: It does not exist.
            StorageError: It cannot be opened or made, is no directory, or is a link.
        """
        self.close()
        with self.errors("open"):
            if create:
                try:
                    self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                except FileExistsError:
                    raise NotADirectoryError(errno.ENOTDIR, f"{self.path.parent} is no directory") from None
                with contextlib.suppress(FileExistsError):
                    self.path.mkdir(mode=0o700)
                    self.sync_parent()
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except FileNotFoundError:
                raise QueueDoesNotExistError(
                    f"the queue {self.name!r} does not exist: there is no directory {self.path}. create() makes it",
                    name=self.name,
                ) from None
            except NotADirectoryError:
                what = "a symbolic link: open what it leads to" if self.path.is_symlink() else "no directory"
                raise NotADirectoryError(errno.ENOTDIR, f"this is {what}") from None
            self._identity = _identity(os.fstat(self._fd))

    def sync_parent(self) -> None:
        """Bring the directory's name to the disk."""
        if self.fsync:
            with opened(self.path.parent) as fd:
                os.fsync(fd)

    def close(self) -> None:
        """Close it. Closing twice is allowed."""
        fd, self._fd = self._fd, -1
        if fd != -1:
            os.close(fd)

    def fileno(self) -> int:
        """Return the descriptor; -1 when it is not open."""
        return self._fd

    def exists(self) -> bool:
        """Return whether a directory has the name. If this one is open, return whether it still has its name."""
        if self._fd == -1:
            return self.path.is_dir() and not self.path.is_symlink()
        try:
            # While the descriptor is open, no other directory can get this identity.
            return self._identity == _identity(os.lstat(self._spelled))
        except OSError:
            return False

    def check(self) -> None:
        """Raise QueueDoesNotExistError if the open directory was deleted, or if another one has its name now."""
        if self._fd == -1 or not self.exists():
            raise QueueDoesNotExistError(
                f"the queue {self.name!r} does not exist any more: {self.path} was deleted or moved", name=self.name
            )

    def list(self) -> tuple[list[str], set[str]]:
        """Return the names of all regular files, and those of everything else: pipes, links, directories and the like.

        This takes as long as the directory is large.
        """
        files: list[str] = []
        others: set[str] = set()
        # Another descriptor, since the position in the listing belongs to the open file.
        with self.errors("list"), opened(".", directory=self._fd) as fd, os.scandir(fd) as entries:
            for entry in entries:
                (files.append if entry.is_file(follow_symlinks=False) else others.add)(entry.name)
        self.check()
        return files, others

    def status(self, filename: str) -> os.stat_result | None:
        """Return the status of what has this name, also if that is a link; None if nothing has."""
        try:
            return os.stat(filename, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def errors(self, doing: str, message: str = "") -> Refusal:
        """Return a block in which errors of the file system become a StorageError that says what was being done."""
        return Refusal(self, doing, message)

    def refused(self, doing: str, error: OSError, message: str = "") -> StorageError:
        """Return a StorageError that says what was being done, and with which message."""
        about = f" (message {message})" if message else ""
        reason = f"cannot {doing} the queue {self.name!r}{about} at {self.path}: {error.strerror or error}"
        return StorageError(reason, name=self.name, errno=error.errno or errno.EIO)


class Refusal:
    """A block of `Place.errors`. A generator would cost each put and receive some percent more."""

    __slots__ = ("_doing", "_message", "_place")

    def __init__(self, place: Place, doing: str, message: str) -> None:
        self._place = place
        self._doing = doing
        self._message = message

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, OSError) or isinstance(error, (FileExistsError, QueueDoesNotExistError, StorageError)):
            return
        if isinstance(error, FileNotFoundError) and self._place.fileno() != -1:
            self._place.check()
        raise self._place.refused(self._doing, error, self._message) from error


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_dev
