"""Renaming that never overwrites: `os.rename` does, silently, and a queue would lose a message."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from pathlib import Path
from typing import Any, Final

_NOREPLACE: Final = 1
_HERE: Final = -100
"""AT_FDCWD: the path is not relative to a descriptor."""

_UNKNOWN: Final = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM}


class Renaming:
    """Renames files by Linux's renameat2, or in two steps (link and unlink) if the file system does not have it.

    A client that dies between the two steps leaves a message under both names: it may be delivered twice. So does one
    whose second step fails because nothing can be deleted in the directory.

    Attributes:
        by_links: It has renamed in two steps, so files may have two names for a while.
    """

    def __init__(self) -> None:
        self._renameat2: Any = None
        self.by_links = False
        try:
            self._renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
        except (AttributeError, OSError):
            return
        self._renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)

    def __call__(self, source_fd: int, source: str, target_fd: int, target: str) -> bool:
        """Rename a file. False if it is missing.

        Raises:
            FileExistsError: There is a file of that name.
            OSError: Anything else.
        """
        try:
            if self._in_one_step(source_fd, source.encode(), target_fd, target.encode()):
                return True
        except FileNotFoundError:
            return False
        self.by_links = True
        return self._in_two_steps(source_fd, source, target_fd, target)

    def directory(self, source: Path, target: Path) -> None:
        """Rename a directory. (Without renameat2, it replaces an empty one that gets the name at the same moment.)

        Raises:
            FileExistsError: Something has that name.
            OSError: Anything else.
        """
        if self._in_one_step(_HERE, os.fsencode(source), _HERE, os.fsencode(target)):
            return
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(target))
        source.rename(target)

    def _in_one_step(self, source_fd: int, source: bytes, target_fd: int, target: bytes) -> bool:
        """Rename by renameat2. False if the file system does not have it."""
        if self._renameat2 is None:
            return False
        if not self._renameat2(source_fd, source, target_fd, target, _NOREPLACE):
            return True
        code = ctypes.get_errno()
        if code in _UNKNOWN:
            return False
        raise OSError(code, os.strerror(code), os.fsdecode(source), None, os.fsdecode(target))

    @staticmethod
    def _in_two_steps(source_fd: int, source: str, target_fd: int, target: str) -> bool:
        try:
            os.link(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        try:
            os.unlink(source, dir_fd=source_fd)
        except FileNotFoundError:  # of several clients that have linked it, the one that unlinks wins
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target, dir_fd=target_fd)
            return False
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(target, dir_fd=target_fd)
            raise
        return True
