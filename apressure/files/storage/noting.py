"""A directory in which the reasons of failures are kept."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from apressure.files.storage.messages import reasons
from apressure.files.storage.messages.marks import handed_out
from apressure.files.storage.messages.reasons import Reason
from apressure.files.storage.names import id_of
from apressure.files.storage.place import Place


class Noting(Place):
    """The part of `Directory` that notes why messages failed. Nothing here raises: a reason is only for people."""

    def note(self, filename: str, key: int, error: bytes, attempt: int | None = None) -> bool:
        """Keep why a message failed. False if it is gone, or the file system refuses.

        Args:
            filename: Its present name.
            key: The message.
            error: The error, encoded.
            attempt: The attempt that failed; None for as often as it was handed out.
        """
        try:
            status = os.stat(filename, dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return False
        known = reasons.read(self._fd, id_of(key), status.st_ino) or Reason()
        known = known._replace(error=error, attempt=handed_out(status) if attempt is None else attempt)
        return reasons.write(self._fd, id_of(key), status.st_ino, known)

    def forget(self, key: int) -> None:
        """Delete what is known of a message that is gone."""
        reasons.forget(self._fd, id_of(key))

    def forget_orphans(self, keys: Iterable[int]) -> None:
        """Do the same for messages that seem to be gone; a listing may have missed one that came meanwhile."""
        for key in keys:
            with contextlib.suppress(OSError):
                if not self.has(id_of(key)):
                    reasons.forget(self._fd, id_of(key))

    def has(self, filename: str) -> bool:
        """Return whether there is a file of this name."""
        try:
            os.stat(filename, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True
