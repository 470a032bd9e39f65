"""A directory into which messages are written: reserved, written, committed, and swept where a publisher died."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from apressure.exceptions import StorageError
from apressure.files.storage.messages import contents
from apressure.files.storage.messages.renaming import Renaming
from apressure.files.storage.messages.writers import has_died, lock
from apressure.files.storage.names import id_of, new_name
from apressure.files.storage.place import CREATE, MODE, READ, Place


@dataclasses.dataclass(slots=True, eq=False)
class Reservation:
    """A message that is being written.

    Attributes:
        key: The message.
        fd: Its file, open for writing; -1 when it is closed.
        data: What the file will contain.
    """

    key: int
    fd: int
    data: bytes

    def close(self) -> None:
        """Close its file. Closing twice is allowed, also when the first time failed: the descriptor is closed then."""
        fd, self.fd = self.fd, -1
        if fd != -1:
            os.close(fd)


class Writing(Place):
    """The part of `Directory` that writes messages, and removes files."""

    def __init__(self, parent: Path, name: str, fsync: bool) -> None:
        super().__init__(parent, name, fsync)
        self._renaming = Renaming()

    def reserve(self, key: int, data: bytes) -> Reservation | None:
        """Begin to write a message (specification: New). None if another one of that name is being written."""
        with self.errors("put into"):
            try:
                fd = os.open(new_name(key), CREATE, MODE, dir_fd=self._fd)
            except FileExistsError:
                return None
        lock(fd)
        return Reservation(key, fd, data)

    def abandon(self, reservations: Sequence[Reservation]) -> None:
        """Delete the files of messages that will not be written. A file that cannot be deleted is swept later."""
        for reservation in reservations:
            with contextlib.suppress(OSError):  # its data is not needed
                reservation.close()
            with contextlib.suppress(OSError):
                self.remove(new_name(reservation.key))

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
                if (early and not ours) or not has_died(fd, status, ours=ours, local=local, late=late):
                    return False
                self.remove(filename)
            return True
        except OSError:  # another user's, in a shared directory: it may not be deleted
            return False
        finally:
            if fd != -1:
                os.close(fd)

    def commit(self, reservations: Sequence[Reservation]) -> tuple[int, StorageError | None]:
        """Write messages and make them ready to be received, in order.

        Returns:
            How many are ready, and the error of the next one. The others are abandoned. There is no error if the next
            one needs another name: its file was swept, or another message has its name.
        """
        written = 0
        done = 0
        error: StorageError | None = None
        try:
            with self.errors("put into"):
                for reservation in reservations:
                    contents.write(reservation.fd, reservation.data)
                    written += 1
        except StorageError as refused:
            error = refused
        try:
            with self.errors("put into"):
                if self.fsync:
                    contents.sync([reservation.fd for reservation in reservations[:written]])
                for reservation in reservations[:written]:
                    reservation.close()  # NFS reports a full disk only here
                    if not self._rename(new_name(reservation.key), id_of(reservation.key)):
                        error = None
                        break
                    done += 1
                if self.fsync and done:
                    os.fsync(self._fd)
        except FileExistsError:  # named by a client whose clock is wrong
            error = None
        except StorageError as refused:
            error = refused
        self.abandon(reservations[done:])
        return done, error

    def remove(self, filename: str) -> bool:
        """Delete a file. False if it is gone, or is not a file: that is left alone."""
        with self.errors("delete from"):
            status = self.status(filename)
            if status is None or not stat.S_ISREG(status.st_mode):
                return False
            try:
                os.unlink(filename, dir_fd=self._fd)
            except FileNotFoundError:
                return False
        return True

    def _rename(self, before: str, after: str) -> bool:
        return self._renaming(self._fd, before, self._fd, after)
