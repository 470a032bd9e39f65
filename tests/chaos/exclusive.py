"""Work that must not run twice at the same time: a program for tasks, which notes when it begins and ends.

`python -I -S exclusive.py FOLDER SECONDS [stubborn]`: with `stubborn`, it ignores SIGTERM.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator


@contextlib.contextmanager
def exclusive(folder: str, task: str) -> Iterator[None]:
    """Hold the task's lock, and note the times: `begin TIME PID`, `end TIME PID`, or `overlap TIME PID`."""
    lock = os.open(f"{folder}/{task}.lock", os.O_RDWR | os.O_CREAT)
    log = os.open(f"{folder}/{task}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(word: str) -> None:
        os.write(log, f"{word} {time.clock_gettime(time.CLOCK_BOOTTIME)} {os.getpid()}\n".encode())

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note("overlap")
    note("begin")
    yield
    note("end")
    os.close(log)
    os.close(lock)


if __name__ == "__main__":
    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with exclusive(sys.argv[1], os.environ["APRESSURE_TASK_ID"]):
        time.sleep(float(sys.argv[2]))
