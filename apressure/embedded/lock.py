"""Locks the data directory of an embedded server with `flock`.

Watchdog and server inherit the open file, so the directory stays locked until both have ended, even if their owner
ended before.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from apressure.exceptions import ServerUnavailableError


def lock_directory(directory: Path, owner: int, url: str, patience: float) -> int:
    """Lock a directory, make it if it does not exist, and write the server's address into the lock.

    Args:
        directory: The directory.
        owner: The process that starts the server.
        url: The server's address.
        patience: Seconds to wait for the server of an owner that has died. If the owner lives, this waits for a second,
            because it may be stopping its server.

    Returns:
        The open file of the lock.

    Raises:
        ServerUnavailableError: Another server uses the directory, or it is not writable.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / "apressure.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ServerUnavailableError(f"an embedded server cannot keep its data in {directory}: {error}") from error
    try:
        _wait_for(lock, directory, patience)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{owner} {url}\n".encode(), 0)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _wait_for(lock: int, directory: Path, patience: float) -> None:
    began = time.monotonic()
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        owner, _, url = os.pread(lock, 4096, 0).decode().strip().partition(" ")
        # A zombie counts as alive, so wait a moment for every owner.
        if time.monotonic() - began > (1.0 if _is_alive(owner) else patience):
            raise ServerUnavailableError(
                f"the directory {directory} is in use by the embedded server of process {owner or '?'}. "
                f"Connect to it with url={url!r}, or use another directory"
            )
        time.sleep(0.02)


def _is_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        return True
    except (ProcessLookupError, ValueError):
        return False
    return True
