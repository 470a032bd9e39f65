"""States in which a server refuses commands, brought about for real, and ended again."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import redis

from apressure.embedded import EmbeddedServer
from tests.servers import admin

CONFIG = {"enable-debug-command": "yes", "lua-time-limit": "5", "repl-diskless-sync-delay": "0"}
"""What the server needs for all of these states."""

USER, PASSWORD = "worker", "geh3im"


def user(server: EmbeddedServer) -> str:
    """Make the user whose rights change; returns the URL with it."""
    with admin(server) as db:
        db.execute_command("ACL", "SETUSER", USER, "reset", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    return server.url.replace("redis://", f"redis://{USER}:{PASSWORD}@")


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 30
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


@contextlib.contextmanager
def _configured(server: EmbeddedServer, name: str, value: object, back: object) -> Iterator[None]:
    """Set a directive, and set it back."""
    with admin(server) as db:
        db.config_set(name, value)
        yield
        db.config_set(name, back)


def out_of_memory(server: EmbeddedServer) -> contextlib.AbstractContextManager[None]:
    return _configured(server, "maxmemory", "1mb", back=0)


@contextlib.contextmanager
def cannot_save(server: EmbeddedServer) -> Iterator[None]:
    """MISCONF: there is a directory where the file with the data belongs."""
    in_the_way = server.socket_path.parent / "dump.rdb"
    with admin(server) as db:
        db.config_set("save", "36000 1000")
        in_the_way.mkdir()
        db.bgsave()
        wait_until(lambda: db.info("persistence")["rdb_last_bgsave_status"] != "ok")
        yield
        in_the_way.rmdir()
        db.config_set("save", "")


def without_replicas(server: EmbeddedServer) -> contextlib.AbstractContextManager[None]:
    return _configured(server, "min-replicas-to-write", 1, back=0)


def nobody_there() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def read_only(server: EmbeddedServer) -> Iterator[None]:
    with admin(server) as db:
        db.execute_command("REPLICAOF", "127.0.0.1", nobody_there())
        yield
        db.execute_command("REPLICAOF", "NO", "ONE")


@contextlib.contextmanager
def without_primary(server: EmbeddedServer) -> Iterator[None]:
    with _configured(server, "replica-serve-stale-data", "no", back="yes"), read_only(server):
        yield


@contextlib.contextmanager
def busy(server: EmbeddedServer) -> Iterator[None]:
    """Somebody's script runs and runs."""

    def run() -> None:
        with admin(server) as db, contextlib.suppress(redis.ResponseError):
            db.eval("while true do end", 0)

    thread = threading.Thread(target=run)
    thread.start()
    with admin(server) as db:
        wait_until(lambda: is_refused(db, "BUSY"))
        yield
        db.script_kill()
    thread.join()


@contextlib.contextmanager
def loading(server: EmbeddedServer) -> Iterator[None]:
    """The server reads its data from disk, slowly; it is ready after about a second."""
    with admin(server) as db:
        for number in range(100):
            db.set(f"filler:{number}", os.urandom(1024))
        db.config_set("loading-process-events-interval-bytes", 1024)  # how often it answers meanwhile
        db.config_set("key-load-delay", 10000)

        def run() -> None:
            with admin(server) as other:
                other.execute_command("DEBUG", "RELOAD")

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: db.info("persistence")["loading"])
        yield
        thread.join()
        db.config_set("key-load-delay", 0)
        db.delete(*(f"filler:{number}" for number in range(100)))


def is_refused(db: redis.Redis, code: str) -> bool:
    try:
        db.get("anything")
    except redis.RedisError as error:
        return str(error).startswith(code)
    return False


@contextlib.contextmanager
def _changed(server: EmbeddedServer, *change: str, back: str) -> Iterator[redis.Redis]:
    """Change the rules of the user, and change them back."""
    with admin(server) as db:
        db.execute_command("ACL", "SETUSER", USER, *change)
        yield db
        db.execute_command("ACL", "SETUSER", USER, back)


def no_rights(server: EmbeddedServer) -> contextlib.AbstractContextManager[object]:
    return _changed(server, "-@write", back="+@all")


def no_keys(server: EmbeddedServer) -> contextlib.AbstractContextManager[object]:
    return _changed(server, "resetkeys", back="~*")


@contextlib.contextmanager
def another_password(server: EmbeddedServer) -> Iterator[None]:
    with _changed(server, f"<{PASSWORD}", ">another", back=f">{PASSWORD}") as db:
        db.client_kill_filter(_type="normal", skipme=True)
        yield
