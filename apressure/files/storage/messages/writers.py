"""Which process has a file open: tells a slow publisher from one that has died, for every kind of client.

The rule of this module: it changes no file.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from glob import iglob
from pathlib import Path


def lock(fd: int) -> bool:
    """Lock a message that is being written, until its file is closed. False if its publisher has the lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def has_died(fd: int, file: os.stat_result, *, ours: bool, local: bool, late: bool) -> bool:
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
