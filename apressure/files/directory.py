"""One queue's directory: every state transition of the specification, each an atomic operation of the file system.

The rule of this module: it knows no order, no index and no waiting. Everything is relative to a descriptor of the
directory, so nothing leaves it, whatever names say and whoever moves what is above it. That a file is not there any
more is a race that somebody else has won, and an answer, not an error.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from apressure.exceptions import QueueDoesNotExistError, StorageError
from apressure.files.marks import handed_out, mark
from apressure.files.names import id_of, new_name
from apressure.files.renaming import Renaming

_OPEN: Final = os.O_CLOEXEC | os.O_NOFOLLOW


class Reservation:
    """A message that is being written.

    Attributes:
        key: Which one.
        fd: Its file, open for writing; -1 when it is closed.
        data: What is to be in it.
    """

    __slots__ = ("data", "fd", "key")

    def __init__(self, key: int, fd: int, data: bytes) -> None:
        self.key = key
        self.fd = fd
        self.data = data

    def close(self) -> None:
        """Close its file. Closing twice is allowed, also where the first time has failed: it is closed then, too."""
        fd, self.fd = self.fd, -1
        if fd != -1:
            os.close(fd)


class Taken(NamedTuple):
    """A message that was taken.

    Attributes:
        data: What is in it.
        before: How often it was handed out before.
    """

    data: bytes
    before: int


class NotAMessageError(Exception):
    """What has a message's name is a directory, a link, a pipe or the like, and not ours to move."""


class Directory:
    """The directory of one queue.

    Args:
        parent: The directory that it is in.
        name: Its name there.
        largest: How large a message may be, in bytes.
        fsync: What is written is on the disk before it counts as written.
    """

    def __init__(self, parent: Path, name: str, largest: int, fsync: bool) -> None:
        self.path = parent / name
        self.name = name
        self._parent = parent
        self._spelled = os.fspath(self.path)
        self._largest = largest
        self._fsync = fsync
        self._fd = -1
        self._rename = Renaming()

    def __del__(self) -> None:
        self.close()

    def open(self, create: bool) -> None:
        """Open it, made with everything above it where it is missing and `create` says so; for its owner alone.

        Raises:
            QueueDoesNotExistError: It is not there.
            StorageError: It cannot be opened or made, is no directory, or is a link.
        """
        self.close()
        with self._told("open"):
            if create:
                try:
                    self._parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                except FileExistsError:
                    raise NotADirectoryError(errno.ENOTDIR, f"{self._parent} is no directory") from None
                with contextlib.suppress(FileExistsError):
                    self.path.mkdir(mode=0o700)
                    self._sync_parent()
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
            except FileNotFoundError:
                raise QueueDoesNotExistError(
                    f"the queue {self.name!r} does not exist: there is no directory {self.path}", name=self.name
                ) from None
            except NotADirectoryError:
                what = "a symbolic link: open what it leads to" if self.path.is_symlink() else "no directory"
                raise NotADirectoryError(errno.ENOTDIR, f"this is {what}") from None

    def _sync_parent(self) -> None:
        if self._fsync:
            fd = os.open(self._parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def close(self) -> None:
        """Close it. Closing twice is allowed."""
        fd, self._fd = self._fd, -1
        if fd != -1:
            os.close(fd)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def check(self) -> None:
        """Raise where the directory was deleted, or another one has its name now.

        Raises:
            QueueDoesNotExistError: So it is.
        """
        ours = os.fstat(self._fd)
        try:
            theirs = os.lstat(self._spelled)
        except OSError:
            pass
        else:
            if ours.st_nlink and (ours.st_ino, ours.st_dev) == (theirs.st_ino, theirs.st_dev):
                return
        raise QueueDoesNotExistError(
            f"the queue {self.name!r} does not exist any more: {self.path} was deleted or moved", name=self.name
        )

    def list(self) -> list[str]:
        """Return the names of everything that could be a message. This is as slow as the directory is long."""
        with self._told("list"):
            # A descriptor of its own, since the position in the directory belongs to the open file.
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)
            try:
                with os.scandir(fd) as entries:
                    found = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
            finally:
                os.close(fd)
        self.check()
        return found

    def reserve(self, key: int, data: bytes) -> Reservation | None:
        """Begin to write a message (specification: New). None where another one of that name is being written."""
        with self._told("publish to"):
            try:
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | _OPEN
                fd = os.open(new_name(key), flags, 0o600, dir_fd=self._fd)
            except FileExistsError:
                return None
            except FileNotFoundError:
                self.check()
                raise
        _lock(fd)
        return Reservation(key, fd, data)

    def abandon(self, reservations: Sequence[Reservation]) -> None:
        """Leave messages unwritten. What cannot be deleted is swept later."""
        for reservation in reservations:
            with contextlib.suppress(OSError):  # nobody wants what could not be written
                reservation.close()
            with contextlib.suppress(OSError):
                self.remove(new_name(reservation.key))

    def sweep(self, filename: str) -> bool:
        """Delete what a publisher has left. False where it lives: until it has written, it holds a lock on its file."""
        fd = -1
        with contextlib.suppress(OSError):  # not there any more, or nothing that one could read
            fd = os.open(filename, os.O_RDONLY | os.O_NONBLOCK | _OPEN, dir_fd=self._fd)
        try:
            if fd != -1 and not _lock(fd):
                return False
            self.remove(filename)
            return True
        finally:
            if fd != -1:
                os.close(fd)

    def commit(self, reservations: Sequence[Reservation]) -> tuple[int, StorageError | None]:
        """Write messages, and let them be received, in order.

        Returns:
            How many were written and dropped their extension, and what went wrong with the next one. There is no error
            where somebody has taken its file for one of a crashed publisher: that message wants another name. The
            others are abandoned.
        """
        written = 0
        done = 0
        error: StorageError | None = None
        try:
            with self._told("publish to"):
                for reservation in reservations:
                    _write(reservation.fd, reservation.data)
                    written += 1
        except StorageError as refused:
            error = refused
        try:
            with self._told("publish to"):
                if self._fsync:
                    _sync([reservation.fd for reservation in reservations[:written]])
                for reservation in reservations[:written]:
                    reservation.close()  # NFS says only now that it has no room
                    if not self._rename(self._fd, new_name(reservation.key), self._fd, id_of(reservation.key)):
                        error = None
                        break
                    done += 1
                if self._fsync and done:
                    os.fsync(self._fd)
        except FileExistsError:  # somebody's clock: it wants another name, too
            error = None
        except StorageError as refused:
            error = refused
        self.abandon(reservations[done:])
        return done, error

    def take(self, key: int, filename: str, most: int | None) -> Taken | None:
        """Take a message that waits (specification: Ready). None where somebody else has.

        Args:
            key: Which one.
            filename: What to call it from now on.
            most: How often it may be handed out. One that has been is taken, and neither read nor marked.

        Raises:
            NotAMessageError: It is none. It was left alone.
            StorageError: It cannot be read, or is too large. It stays where it is.
        """
        ready = id_of(key)
        with self._told("receive from", ready):
            try:
                # It is looked at before it is moved: what is not ours stays where it is.
                status = os.stat(ready, dir_fd=self._fd, follow_symlinks=False)
            except FileNotFoundError:
                return None
            if not stat.S_ISREG(status.st_mode):
                raise NotAMessageError
            if status.st_size > self._largest:
                reason = f"it has {status.st_size} bytes, and at most {self._largest} are allowed"
                raise OSError(errno.EFBIG, f"{reason} (max_message_size)")
            try:
                if not self._rename(self._fd, ready, self._fd, filename):
                    return None
            except FileExistsError as error:
                raise self._refused("receive from", error, ready) from None
            try:
                return self._open_taken(filename, most)
            except FileNotFoundError:  # its time has run out already, and somebody has requeued it
                return None
            except OSError:
                with contextlib.suppress(FileExistsError):  # it comes again when its time runs out
                    self._rename(self._fd, filename, self._fd, ready)
                raise

    def _open_taken(self, filename: str, most: int | None) -> Taken:
        # Opened under the name that is ours alone: under the other one, it may have been another file.
        fd = os.open(filename, os.O_RDONLY | os.O_NONBLOCK | _OPEN, dir_fd=self._fd)
        try:
            status = os.fstat(fd)
            before = handed_out(status)
            if most is not None and before >= most:
                return Taken(b"", before)
            data = _read(fd, status.st_size)
            mark(fd, before + 1)
            return Taken(data, before)
        finally:
            os.close(fd)

    def rename(self, before: str, after: str) -> bool:
        """Rename a message that was taken. False where it is not there any more.

        Raises:
            FileExistsError: There is a message of that name.
        """
        with self._told("change"):
            return self._rename(self._fd, before, self._fd, after)

    def requeue(self, filename: str, key: int) -> bool | None:
        """Let a message be received again (specification: Requeuing), marked as handed out, whoever had it.

        Returns:
            Whether it was there; None where it is still, since another one has its name.
        """
        with self._told("requeue in"):
            try:
                status = os.stat(filename, dir_fd=self._fd, follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):
                    return None
                if not handed_out(status):
                    mark(filename, 1, self._fd)
                return self._rename(self._fd, filename, self._fd, id_of(key))
            except FileNotFoundError:
                return False
            except FileExistsError:
                return None

    def put_back(self, filename: str, key: int, before: int) -> None:
        """Undo a `take`, of which nobody has heard. What cannot be undone comes again when its time runs out."""
        with contextlib.suppress(OSError):
            mark(filename, before or None, self._fd)
            self._rename(self._fd, filename, self._fd, id_of(key))

    def remove(self, filename: str) -> bool:
        """Delete a file. False where it is not there any more, or is no file: that is not ours."""
        with self._told("delete from"):
            try:
                if not stat.S_ISREG(os.stat(filename, dir_fd=self._fd, follow_symlinks=False).st_mode):
                    return False
                os.unlink(filename, dir_fd=self._fd)
            except FileNotFoundError:
                return False
        return True

    def move(self, filename: str, target: Directory, name: str) -> bool:
        """Move a message into another queue, as one that was never handed out. False where it is not there any more.

        Raises:
            FileExistsError: There is a message of that name.
        """
        with self._told("move from"):
            if not self._rename(self._fd, filename, target.fileno(), name):
                return False
            with contextlib.suppress(FileNotFoundError):  # somebody was quick
                mark(name, None, target.fileno())
            return True

    @contextlib.contextmanager
    def _told(self, doing: str, message: str = "") -> Iterator[None]:
        """Tell errors of the file system in the words of queues."""
        try:
            yield
        except (FileExistsError, QueueDoesNotExistError):
            raise
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise self._refused(doing, error, message) from error

    def _refused(self, doing: str, error: OSError, message: str) -> StorageError:
        about = f" (message {message})" if message else ""
        reason = f"cannot {doing} the queue {self.name!r}{about} at {self.path}: {error.strerror or error}"
        return StorageError(reason, name=self.name, errno=error.errno or errno.EIO)


def _lock(fd: int) -> bool:
    """Lock a message that is being written, until it is closed. False where its publisher has."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _sync(fds: Sequence[int]) -> None:
    """Bring files to the disk. Several begin together: most of the waiting is for one and the same disk."""
    if len(fds) > 1 and hasattr(os, "posix_fadvise"):
        for fd in fds:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # Linux begins to write, and does not wait
    for fd in fds:
        os.fsync(fd)


def _read(fd: int, size: int) -> bytes:
    data = os.read(fd, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    while data:
        parts.append(data := os.read(fd, 1 << 20))
    return b"".join(parts)
