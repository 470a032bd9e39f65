"""The directory of a queue: each state transition of the specification is one atomic operation of the file system.

The rule of this module: it knows no order, no index and no waiting. A file that is missing is an answer, not an error:
another client was faster.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from apressure import logs
from apressure.core.due import EXPIRED
from apressure.exceptions import QueueDoesNotExistError, StorageError
from apressure.files.storage.messages import contents, reasons
from apressure.files.storage.messages.contents import handed_out, mark
from apressure.files.storage.messages.reasons import Reason
from apressure.files.storage.names import CLOSED, EXPIRED_COUNT, PAUSED, id_of
from apressure.files.storage.place import APPEND, CREATE, MODE, READ, opened
from apressure.files.storage.writing import Writing

logger = logging.getLogger("apressure")


class Taken(NamedTuple):
    """A message that was taken.

    Attributes:
        data: Its content; the beginning, for a preview in the log, if it is not to be handed out any more.
        before: How often it was handed out before.
        expires: When it expires, in microseconds since 1970; 0 for never.
    """

    data: bytes
    before: int
    expires: int = 0


class Back(NamedTuple):
    """A message that goes back.

    Attributes:
        filename: Its present name.
        key: The message.
        times: How often it counts as handed out.
        error: Why this attempt failed, encoded; None to keep no error.
    """

    filename: str
    key: int
    times: int
    error: bytes | None = None


class Letter(NamedTuple):
    """A dead letter.

    Attributes:
        data: Its content, or nothing.
        reason: What is known of it.
        refused: Why its content is not here: it is too large, or cannot be read.
    """

    data: bytes
    reason: Reason
    refused: StorageError | None


class NotAMessageError(Exception):
    """A directory, a link, a pipe or the like has a message's name. It is left alone."""


class Directory(Writing):
    """The messages in the directory of one queue.

    Methods raise StorageError if the file system refuses, and QueueDoesNotExistError if the directory was deleted or
    moved.

    Args:
        parent: The directory that it is in.
        name: Its name there.
        largest: The most bytes that a message may have.
        fsync: Sync files and directories before an operation returns.
    """

    def __init__(self, parent: Path, name: str, largest: int, fsync: bool) -> None:
        super().__init__(parent, name, fsync)
        self._largest = largest

    def take(self, key: int, filename: str, most: int | None, now: int = 0) -> Taken | None:
        """Take a message that waits (specification: Ready). None if another client has taken it.

        Args:
            key: The message.
            filename: Its name from now on.
            most: How often it may be handed out. Beyond that, it is taken with its beginning only, and not marked.
            now: The time in microseconds since 1970, if it may have expired. Such a message is taken in the same way.

        Raises:
            NotAMessageError: It is not a file. It was left alone.
            StorageError: It cannot be read, is too large, does not fit into memory, or has another name elsewhere. It
                stays where it is. If there is a `most`, one that is too large counts as handed out.
        """
        ready = id_of(key)
        with self.errors("receive from", ready):
            status = self.status(ready)  # look before renaming: only a message may be moved
            if status is None:
                return None
            if not stat.S_ISREG(status.st_mode):
                raise NotAMessageError
            if most is None:
                contents.check_size(status.st_size, self._largest)
            try:
                if not self._rename(ready, filename):
                    return None
            except FileExistsError as error:
                raise self.refused("receive from", error, ready) from None
            try:
                return self._open_taken(filename, most, now)
            except FileNotFoundError:  # the lease has ended already, and another client has requeued it
                return None
            except BaseException:
                with contextlib.suppress(FileExistsError):  # then it comes again when the lease ends
                    self._rename(filename, ready)
                raise

    def _open_taken(self, filename: str, most: int | None, now: int) -> Taken:
        # By the name that only this client uses: the file of the other name may have been replaced.
        fd = os.open(filename, READ, dir_fd=self._fd)
        try:  # `opened` would cost each message some percent
            status = os.fstat(fd)
            if self._is_linked(status):
                raise OSError(
                    errno.EMLINK,
                    f"its file has {status.st_nlink} names (hard links), and receiving it would change the others' "
                    "time. Remove the other names, or put a copy in its place",
                )
            before = handed_out(status)
            expires = reasons.read(self._fd, filename.partition(".")[0], status.st_ino).expires if now else 0
            if (most is not None and before >= most) or 0 < expires <= now:
                with contextlib.suppress(OSError):
                    return Taken(os.read(fd, logs.MOST_PREVIEW + 1), before, expires)
                return Taken(b"", before, expires)
            try:
                data = contents.read(fd, status.st_size, self._largest)
            except contents.TooLargeError:
                if most is not None:
                    mark(fd, before + 1)
                raise
            mark(fd, before + 1)
            return Taken(data, before, expires)
        finally:
            os.close(fd)

    def _is_linked(self, status: os.stat_result) -> bool:
        """Return whether a file has a name elsewhere. Then its time must not be changed."""
        # Renaming in two steps gives a second name for a moment; after a crash in between, for longer.
        return status.st_nlink > 1 and not self.renaming.by_links

    def read(self, filename: str) -> bytes | None:
        """Read a message without changing it. None if it is gone, or is not a file."""
        with self.errors("read from", filename):
            try:
                with opened(filename, READ, self._fd) as fd:
                    status = os.fstat(fd)
                    return contents.read(fd, status.st_size, self._largest) if stat.S_ISREG(status.st_mode) else None
            except FileNotFoundError:
                return None

    def rename(self, before: str, after: str) -> bool:
        """Rename a message in flight. False if it is gone; FileExistsError if another one has the name."""
        self.check()
        with self.errors("change"):
            return self._rename(before, after)

    def requeue(self, filename: str) -> bool | None:
        """Make a message in flight wait again (specification: Requeuing), marked as handed out.

        Returns:
            Whether it was there; None if it stays in flight, because another message has its name.
        """
        with self.errors("requeue in"):
            status = self.status(filename)
            if status is None:
                return False
            if not stat.S_ISREG(status.st_mode):
                return None
            if not handed_out(status) and not self._is_linked(status):
                mark(filename, 1, self._fd)
            try:
                return self._rename(filename, filename.partition(".")[0])
            except FileExistsError:
                return None

    def delay(self, before: str, after: str) -> bool:
        """Make a message in flight a delayed one, on the disk, too. The results are those of `rename`."""
        renamed = self.rename(before, after)
        if renamed and self.fsync:
            with self.errors("change"):
                os.fsync(self._fd)
        return renamed

    def promote(self, due: Sequence[tuple[str, int]], keys: Sequence[int], reasons_of: Container[int]) -> list[str]:
        """Make delayed messages wait in the queue, in order, until another client has been faster.

        Args:
            due: Their names and keys.
            keys: Reserved names, one for each.
            reasons_of: The keys for which a file says why their message failed, or when it expires.

        Returns:
            The names that are gone, or that no message has.
        """
        gone: list[str] = []
        with self.errors("receive from"):
            for (filename, before), key in zip(due, keys, strict=False):
                status = self.status(filename)
                is_message = status is not None and stat.S_ISREG(status.st_mode)
                ids = id_of(before), id_of(key)
                preceded = before in reasons_of and reasons.precede(self._fd, *ids)
                renamed = False
                try:
                    renamed = is_message and self._rename(filename, ids[1])
                    gone.append(filename)
                except FileExistsError:  # named by a client whose clock is wrong
                    pass
                if not renamed:  # what the other client has made due comes first: reserve later names
                    if preceded:
                        self.forget(key)
                    break
                if before in reasons_of:
                    reasons.follow(self._fd, *ids)
        return gone

    def put_back(self, taken: Sequence[Back]) -> None:
        """Give messages back. One that cannot be given back comes again when its lease ends.

        The oldest goes first: who looks at the directory meanwhile must not get a later one before it.
        """
        for filename, key, times, error in sorted(taken, key=lambda back: back.key):
            if error is not None:
                self.note(filename, key, error, times)
            self.count(filename, times)
            with contextlib.suppress(OSError):
                self._rename(filename, id_of(key))

    def count(self, filename: str, times: int) -> None:
        """Have a message count as handed out so often."""
        with contextlib.suppress(OSError):
            mark(filename, times or None, self._fd)

    def delete(self, filename: str) -> bool:
        """Delete a message (specification: Deleted). False if it is gone."""
        self.check()
        return self.remove(filename, look=False)  # only a file has such a name in the index, or as a delivery

    def restore(self, key: int, data: bytes, times: int, expires: int = 0) -> None:
        """Write a message again that was deleted, where it was in line. If that fails, it is logged, and lost.

        Args:
            key: The message.
            data: Its content.
            times: How often it counts as handed out.
            expires: When it expires, in microseconds since 1970; 0 for never.
        """
        reason: object = "another file has its name"
        try:
            reservation = self.reserve(key, data, Reason(expires=expires) if expires else None)
            if reservation is not None:
                done, error = self.commit([reservation])
                if done:
                    mark(id_of(key), times or None, self._fd)
                    return
                reason = error or reason
        except (OSError, QueueDoesNotExistError) as error:
            reason = error
        logger.error("the message %s, taken by a cancelled get, could not be put back: %s", id_of(key), reason)

    def move(self, filename: str, target: Directory, name: str) -> bool:
        """Move a message into another queue, as one that was never handed out. The results are those of `rename`."""
        with self.errors("move from"):
            if not self.renaming(self._fd, filename, target.fileno(), name):
                return False
            status = target.status(name)
            if status is not None and not self._is_linked(status):
                mark(name, None, target.fileno())
            return True

    def bury(
        self, filename: str, key: int, target: Directory, name: str, attempts: int, when: float, expired: bool
    ) -> bool:
        """Move a message to the dead letters, and then note why it is one. The results are those of `rename`.

        Killed in between, the reason is unknown, and one that has expired is not counted.

        Args:
            filename: Its present name.
            key: The message.
            target: The dead-letter queue.
            name: Its name there.
            attempts: How often it was handed out.
            when: The time, in seconds since 1970.
            expired: Whether it is one because it has expired.
        """
        if not self.move(filename, target, name):
            return False
        with contextlib.suppress(OSError):
            if status := target.status(name):  # otherwise another client has taken it
                known = reasons.read(self._fd, id_of(key), status.st_ino)
                if expired:
                    known = Reason(EXPIRED, attempts)
                known = known._replace(attempts=attempts, when=int(when * 1e6), expires=0)
                reasons.put(target.fileno(), name, status.st_ino, known)
        self.forget(key)
        if expired:
            self._count_expired()
        return True

    def _count_expired(self) -> None:
        """Count a message that has expired: the size of a file is their number."""
        with contextlib.suppress(OSError), opened(EXPIRED_COUNT, APPEND, self._fd) as fd:
            os.write(fd, b".")

    def expired(self) -> int:
        """Return how many messages have expired since the queue was created."""
        with self.errors("read from"):
            status = self.status(EXPIRED_COUNT)
        return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else 0

    def revive(self, filename: str, target: Directory, name: str) -> bool:
        """Move a dead letter into a queue, and forget why it was one. The results are those of `rename`."""
        moved = self.move(filename, target, name)
        if moved:
            reasons.forget(self._fd, filename)
        return moved

    def add_letter(self, key: int, data: bytes, reason: Reason | None) -> bool:
        """Write a dead letter, and why it is one, if that is known. False if another message has its name.

        Raises:
            StorageError: The file system refuses. There is no such dead letter.
        """
        reservation = self.reserve(key, data, reason)
        if reservation is None:
            return False
        done, error = self.commit([reservation])
        if error is not None:
            raise error
        return bool(done)

    def discard(self, filename: str) -> bool:
        """Delete a dead letter, and why it was one. False if it is gone."""
        removed = self.delete(filename)
        if removed:
            reasons.forget(self._fd, filename)
        return removed

    def letter(self, filename: str) -> Letter | None:
        """Read a dead letter without changing it. None if it is gone, or is not a file."""
        with self.errors("read from", filename):
            status = self.status(filename)
        if status is None or not stat.S_ISREG(status.st_mode):
            return None
        reason = reasons.read(self._fd, filename, status.st_ino)
        try:
            with opened(filename, READ, self._fd) as fd:
                return Letter(contents.read(fd, status.st_size, self._largest), reason, None)
        except FileNotFoundError:
            return None
        except OSError as error:  # the other dead letters can be shown
            return Letter(b"", reason, self.refused("read from", error, filename))

    def note(self, filename: str, key: int, error: bytes, attempt: int | None = None) -> bool:
        """Keep why a message failed. False if it is gone, or the file system refuses: a reason is only for people.

        Args:
            filename: Its present name.
            key: The message.
            error: The error, encoded.
            attempt: The attempt that failed; None for as often as it was handed out.
        """
        with contextlib.suppress(OSError):
            if status := self.status(filename):
                known = reasons.read(self._fd, id_of(key), status.st_ino)
                known = known._replace(error=error, attempt=handed_out(status) if attempt is None else attempt)
                reasons.put(self._fd, id_of(key), status.st_ino, known)
                return True
        return False

    def forget(self, key: int) -> None:
        """Delete what is known of a message that is gone."""
        reasons.forget(self._fd, id_of(key))

    def forget_orphans(self, keys: Iterable[int]) -> None:
        """Do the same for messages that seem to be gone; a listing may have missed one that came meanwhile."""
        for key in keys:
            with contextlib.suppress(OSError):
                if self.status(id_of(key)) is None:
                    self.forget(key)

    def close_queue(self) -> bool:
        """Note that the queue is closed. False if it was closed before."""
        return self._declare(CLOSED, "close")

    def pause(self) -> bool:
        """Note that the queue is paused. False if it was paused before."""
        return self._declare(PAUSED, "pause")

    def resume(self) -> bool:
        """Note that the queue is not paused. False if it was not."""
        self.check()
        with self.errors("resume"):
            resumed = self.remove(PAUSED)
            if resumed and self.fsync:
                os.fsync(self._fd)
        return resumed

    def _declare(self, filename: str, doing: str) -> bool:
        self.check()
        with self.errors(doing):
            try:
                os.close(os.open(filename, CREATE, MODE, dir_fd=self._fd))
            except FileExistsError:
                return False
            if self.fsync:
                os.fsync(self._fd)
        return True
