"""A directory into which messages are written: reserved, written, committed, and swept where a publisher died.

Which process has a file open tells a slow publisher from one that has died, for every kind of client.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import signal
import stat
import sys
import time
from collections.abc import Sequence
from glob import iglob
from pathlib import Path

from apressure.exceptions import StorageError
from apressure.files.storage.messages import contents, reasons
from apressure.files.storage.messages.reasons import Reason
from apressure.files.storage.names import BLANK, id_of, new_name
from apressure.files.storage.place import CREATE, MODE, READ, Place

_FRESH = 10.0
"""Seconds: a reserved name looks no older than this, so others can tell by its time that it was not left behind."""


@dataclasses.dataclass(slots=True, eq=False)
class Reservation:
    """A message that is being written.

    Attributes:
        key: The message.
        fd: Its file, open for writing; -1 when it is closed.
        data: What the file will contain.
        reason: What is known of it, such as when it expires; None for nothing.
        name: Its name when it is written; empty for its id.
    """

    key: int
    fd: int
    data: bytes
    reason: Reason | None = None
    name: str = ""

    def close(self) -> None:
        """Close its file. Closing twice is allowed, also when the first time failed: the descriptor is closed then."""
        fd, self.fd = self.fd, -1
        if fd != -1:
            os.close(fd)


class Writing(Place):
    """The part of `Directory` that writes messages, and removes files."""

    def reserve(self, key: int, data: bytes, reason: Reason | None = None) -> Reservation | None:
        """Begin to write a message (specification: New). None if another one of that name is being written.

        Args:
            key: The message.
            data: What its file will contain.
            reason: What is known of it; None for nothing.
        """
        with self.errors("put into"):
            try:
                fd = os.open(new_name(key), CREATE, MODE, dir_fd=self._fd)
            except FileExistsError:
                return None
        lock(fd)
        return Reservation(key, fd, data, reason)

    def reserve_name(self, key: int, linked: bool) -> Reservation | None:
        """Reserve a name for a message that is moved into this directory. None if one of that name is being written.

        It is a link, which costs a tenth of a new file. To others it is a file whose publisher has died: they delete
        it after a while. On a file system without links, or beside another user's file, it is a new file.

        Args:
            key: The message.
            linked: What `has_blank` has returned.
        """
        if linked:
            try:
                os.link(BLANK, new_name(key), src_dir_fd=self._fd, dst_dir_fd=self._fd)
                return Reservation(key, -1, b"")
            except FileExistsError:
                return None
            except OSError:
                pass
        return self.reserve(key, b"")

    def has_blank(self) -> bool:
        """Return whether the blank file is there, for links, and is fresh enough; make it so if possible."""
        try:
            status = self.status(BLANK)
            if status is None:
                os.close(os.open(BLANK, CREATE, MODE, dir_fd=self._fd))
            elif not stat.S_ISREG(status.st_mode):
                return False
            elif abs(time.time() - status.st_mtime) > _FRESH:
                os.utime(BLANK, dir_fd=self._fd)
        except FileExistsError:
            pass  # another client has just made it
        except OSError:
            return False
        return True

    def abandon(self, reservations: Sequence[Reservation]) -> None:
        """Delete the files of messages that will not be written. A file that cannot be deleted is swept later."""
        for reservation in reservations:
            with contextlib.suppress(OSError):  # its data is not needed
                reservation.close()
            with contextlib.suppress(OSError):
                self.remove(new_name(reservation.key), look=False)
            if reservation.reason is not None:
                reasons.forget(self._fd, id_of(reservation.key))

    def sweep(self, filename: str, local: bool, late: bool, early: bool) -> bool:
        """Delete the `.new` file of a publisher that has died. False if the publisher lives, or may live.

        Args:
            filename: The file.
            local: Only processes on this machine write into this directory.
            late: Also delete it if nothing shows whether its publisher lives.
            early: Only delete it if FileQueue writes it. If that one is still alive, it tries again under another name.
        """
        fd = -1
        with contextlib.suppress(OSError):  # it is gone, or may not be read
            fd = os.open(filename, READ, dir_fd=self._fd)
        try:
            if status := self.status(filename):
                ours = stat.S_IMODE(status.st_mode) == MODE
                if (early and not ours) or not _has_died(fd, status, ours=ours, local=local, late=late):
                    return False
                self.remove(filename)
            return True
        except OSError:  # another user's, in a shared directory: it may not be deleted
            return False
        finally:
            if fd != -1:
                os.close(fd)

    def commit(self, reservations: Sequence[Reservation]) -> tuple[int, StorageError | None]:
        """Write messages and make them ready to be received, or delayed, in order.

        Returns:
            How many are ready, and the error of the next one. The others are abandoned. There is no error if the next
            one needs another name: its file was swept, or another message has its name.
        """
        written = done = 0
        error: StorageError | None = None
        try:
            with self.errors("put into"):
                for reservation in reservations:
                    contents.write(reservation.fd, reservation.data)
                    if reservation.reason is not None:
                        inode = os.fstat(reservation.fd).st_ino
                        reasons.put(self._fd, id_of(reservation.key), inode, reservation.reason, self.fsync)
                    written += 1
        except StorageError as refused:
            error = refused
        try:
            with self.errors("put into"):
                if self.fsync:
                    contents.sync([reservation.fd for reservation in reservations[:written]])
                for reservation in reservations[:written]:
                    reservation.close()  # NFS reports a full disk only here
                    try:
                        renamed = self._rename(new_name(reservation.key), reservation.name or id_of(reservation.key))
                    except FileExistsError:  # named by a client whose clock is wrong
                        renamed = False
                    if not renamed:
                        error = None
                        break
                    done += 1
                if self.fsync and done:
                    os.fsync(self._fd)
        except StorageError as refused:
            error = refused
        self.abandon(reservations[done:])
        return done, error

    def remove(self, filename: str, look: bool = True) -> bool:
        """Delete a file. False if it is gone. With `look`, also if it is not a file: that is left alone."""
        with self.errors("delete from"):
            if look and ((status := self.status(filename)) is None or not stat.S_ISREG(status.st_mode)):
                return False
            try:
                os.unlink(filename, dir_fd=self._fd)
            except (FileNotFoundError, IsADirectoryError):
                return False
        return True

    def _rename(self, before: str, after: str) -> bool:
        return self.renaming(self._fd, before, self._fd, after)


def lock(fd: int, *, surely: bool = False) -> bool:
    """Lock a file, until it is closed. False if another process has the lock.

    On a file system without locks, it raises OSError if it is to lock `surely`.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        if surely:
            raise
    return True


def lock_patiently(fd: int, name: str, what: str, patience: float, *, surely: bool = True) -> None:
    """Lock a file of a queue until it is closed. A killed process loses the lock.

    Args:
        fd: The file.
        name: The queue's name.
        what: What of the queue the lock is for.
        patience: Seconds to wait for another process that has the lock.
        surely: Refuse a file system without locks; see `lock`.

    Raises:
        StorageError: Another process holds the lock for longer.
    """
    until = time.monotonic() + patience
    while not lock(fd, surely=surely):
        if time.monotonic() > until:
            raise StorageError(
                f"another process holds the lock of the {what} of the queue {name!r} for more than {patience:g} "
                "seconds: is it stopped? Nothing was changed. Have it go on or end it, and try again",
                name=name,
                errno=errno.EAGAIN,
            )
        time.sleep(0.005)


def _has_died(fd: int, file: os.stat_result, *, ours: bool, local: bool, late: bool) -> bool:
    """Return whether the publisher of a file has died, and is not only slow.

    Args:
        fd: The file, open for reading only; -1 if it may not be read.
        file: Its status.
        ours: Its publisher locks its files, and publishes again under another name if one is deleted.
        local: Only processes on this machine write into its directory.
        late: The answer if locks and the kernel do not show it, unless a process has the file open.
    """
    if fd != -1 and not lock(fd):
        return False
    written = _is_written(fd) if fd != -1 and local else None
    if written is not None:
        return not written
    return (ours and fd != -1) or (late and not _has_writer(file))


def _is_written(fd: int) -> bool | None:
    """Return whether any process on this machine has a file open for writing; None if the kernel does not say.

    The kernel grants a lease for reading only if no process has. Closing the file ends the lease. Only the file's owner
    and root get one, and it is reliable only on file systems of this machine.
    """
    if sys.platform != "linux":
        return None
    try:
        # If another process opens the file meanwhile, the kernel sends this one a signal. The default one would end it.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _has_writer(file: os.stat_result) -> bool:
    """Return whether a process of the same user (for root: any) has a file open for writing.

    It checks every open file of every process, which takes a while.
    """
    for descriptor in iglob("/proc/[0-9]*/fd/*"):  # noqa: PTH207 (it goes on when a process ends meanwhile)
        try:
            if not os.path.samestat(Path(descriptor).stat(), file):
                continue
            told = Path(descriptor.replace("/fd/", "/fdinfo/")).read_text()
        except OSError:  # it was closed, or is another user's
            continue
        flags = next(line for line in told.splitlines() if line.startswith("flags:"))
        if int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY:
            return True
    return False
