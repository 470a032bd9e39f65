"""The base of all topologies: servers that are started, killed, asked and stopped together."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

import pytest
import redis

from apressure.embedded import EmbeddedServer
from tests.servers import CannotRun, admin, binary_of, keys_left_behind

PATIENCE: Final = 30.0
"""Seconds after which something that should have come about will not."""

HOST: Final = "127.0.0.1"

QUICK: Final[dict[str, Any]] = {
    "repl-diskless-sync": "yes",
    "repl-diskless-sync-delay": 0,  # five seconds, otherwise
    "repl-ping-replica-period": 1,
}


class Group(ABC):
    """Servers that are started together, killed one by one, and stopped at the end."""

    def __init__(self, kind: str) -> None:
        try:
            self._binary = binary_of(kind)
        except CannotRun as missing:
            pytest.skip(str(missing))
        self.kind = kind
        self.servers: list[EmbeddedServer] = []
        self._stack = contextlib.ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="apressure-")))

    @property
    def software(self) -> str:
        """As `EmbeddedServer.software`."""
        return self.servers[0].software

    def start(self, **arguments: Any) -> EmbeddedServer:
        """Start a server that ends with the group."""
        server = EmbeddedServer(**{"binary": self._binary, "tcp": True, **arguments})
        server.start()
        self._stack.callback(_end, server)
        return server

    def kill(self, server: EmbeddedServer) -> None:
        """SIGKILL."""
        os.kill(server.pid, signal.SIGKILL)
        server.stop()

    @abstractmethod
    def build(self) -> None:
        """Start everything, and wait until it works together."""

    def __enter__(self) -> Self:
        try:
            self.build()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _end(server: EmbeddedServer) -> None:
    if server.running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGCONT)
            os.kill(server.pid, signal.SIGKILL)  # its data is not needed
    server.stop()


def until(come_about: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    """Wait until something has come about; a server that cannot be asked just now is asked again."""
    deadline = time.monotonic() + patience
    seen: object = None
    while time.monotonic() < deadline:
        try:
            if seen := come_about():
                return
        except redis.RedisError as error:
            seen = error
        time.sleep(0.02)
    raise AssertionError(f"not within {patience:g} seconds: {what} ({seen!r})")


def ask(server: EmbeddedServer, *command: object) -> Any:
    """Send one command to a server, and return its reply without the conversions of redis-py."""
    connection = redis.UnixDomainSocketConnection(path=os.fspath(server.socket_path), socket_timeout=10, protocol=2)
    try:
        connection.send_command(*command)
        return connection.read_response()
    finally:
        connection.disconnect()


def must_be_empty(*servers: EmbeddedServer) -> None:
    """Delete all keys, and fail if a test has left some that do not expire."""
    left = [key for server in servers for key in keys_left_behind(server)]
    for server in servers:
        ask(server, "FLUSHALL")
    assert not left


def information(server: EmbeddedServer) -> dict[str, Any]:
    """The section Replication of a server's INFO."""
    with admin(server) as client:
        found: dict[str, Any] = client.info("replication")
        return found


def follows(replica: EmbeddedServer) -> bool:
    return information(replica).get("master_link_status") == "up"


def heard(primary: EmbeddedServer, replicas: int) -> None:
    """Wait until so many replicas have what the primary has now; clients may go on writing.

    (A WAIT on a connection that has not written anything waits for nothing. And a replica whose link is up hears of
    nothing before it has acknowledged its first copy, up to a second later: where nothing has been sent yet, this waits
    for the primary's ping.)
    """
    wanted = max(1, information(primary)["master_repl_offset"])

    def have() -> bool:
        seen = information(primary)
        offsets = [seen[f"slave{i}"]["offset"] for i in range(seen["connected_slaves"])]
        return len(offsets) == replicas and all(offset >= wanted for offset in offsets)

    until(have, "the replicas have everything")
