"""Renaming that never overwrites: what rename() does silently is how a queue would lose a message."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from typing import Any, Final

_NOREPLACE: Final = 1
_UNKNOWN: Final = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM}


class Renaming:
    """Renames files, by Linux's renameat2 where the file system has it, and otherwise in two steps, link and unlink.

    A client that dies between the two steps leaves a message under both of its names: it may be delivered twice.
    So does one whose second step fails in a directory where nothing can be deleted.
    """

    def __init__(self) -> None:
        self._renameat2: Any = None
        try:
            self._renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
        except (AttributeError, OSError):
            return
        self._renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)

    def __call__(self, source_fd: int, source: str, target_fd: int, target: str) -> bool:
        """Rename a file. False where it is not there.

        Raises:
            FileExistsError: There is a file of that name.
            OSError: Anything else.
        """
        if self._renameat2 is not None:
            if not self._renameat2(source_fd, os.fsencode(source), target_fd, os.fsencode(target), _NOREPLACE):
                return True
            code = ctypes.get_errno()
            if code == errno.ENOENT:
                return False
            if code not in _UNKNOWN:
                raise OSError(code, os.strerror(code), source, None, target)
        return self._in_two_steps(source_fd, source, target_fd, target)

    @staticmethod
    def _in_two_steps(source_fd: int, source: str, target_fd: int, target: str) -> bool:
        try:
            os.link(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        try:
            os.unlink(source, dir_fd=source_fd)
        except FileNotFoundError:  # of several that are here at the same time, the one that unlinks has won
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target, dir_fd=target_fd)
            return False
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(target, dir_fd=target_fd)
            raise
        return True
