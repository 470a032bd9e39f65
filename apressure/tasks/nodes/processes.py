"""Which processes of this host run, and since when: a number alone does not tell, since numbers are used again."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

SLACK: Final = 2.0
"""Seconds by which two readings of the same start may differ."""


@functools.cache
def host() -> str:
    """Return the name of this host as Blueque writes it. It may ask the network."""
    return socket.getfqdn()


async def listener_id() -> bytes:
    """Return the listener that this process is: `[hostname]_[pid]`."""
    name = host() if host.cache_info().currsize else await asyncio.to_thread(host)
    return f"{name}_{os.getpid()}".encode(errors="surrogateescape")


def parse(listener: str) -> tuple[str, int] | None:
    """Return the host and the process of a listener; None if the name has no number at its end."""
    name, _, pid = listener.rpartition("_")
    return (name, int(pid)) if name and pid.isascii() and pid.isdigit() and len(pid) < 10 else None


def running(pid: int) -> bool:
    """Whether there is such a process on this host; a zombie, which has ended, does not count."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    stat = _stat(pid)
    return stat is None or stat[0] != "Z"


def started_at(pid: int) -> float | None:
    """Return when a process of this host began, in seconds since 1970, to about a second.

    None if it does not run, or the system does not tell.
    """
    return _own_start(pid) if pid == os.getpid() else _started_at(pid)


def _started_at(pid: int) -> float | None:
    if sys.platform == "linux" and (stat := _stat(pid)) is not None:
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return booted + int(stat[19]) / os.sysconf("SC_CLK_TCK")
    if Path("/proc/self/stat").exists():
        return None
    try:
        elapsed = subprocess.run(
            ["/bin/ps", "-o", "etime=", "-p", str(pid)], capture_output=True, text=True, check=False, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    days, _, clock = elapsed.rpartition("-")
    parts = clock.split(":")
    if not elapsed or not all(part.isdigit() for part in parts):
        return None
    seconds: int = sum(int(part) * 60**power for power, part in enumerate(reversed(parts)))
    return time.time() - seconds - 86400 * int(days or 0)


_own_start = functools.lru_cache(maxsize=1)(_started_at)  # a fork has another number


def is_same(pid: int, began: float | None, seen: float | None) -> bool:
    """Whether the process that had this number still runs.

    Args:
        pid: Its number.
        began: When it began, in seconds since 1970; None if that is unknown.
        seen: When it certainly ran; one that began later is another one. None if that is unknown.
    """
    if not running(pid):
        return False
    now_began = started_at(pid)
    if now_began is None:
        return True
    if began is not None:
        return abs(now_began - began) <= SLACK
    return seen is None or now_began <= seen + SLACK


def _stat(pid: int) -> list[str] | None:
    """Return what Linux says of a process, from its state on; None elsewhere, or if it does not run."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
