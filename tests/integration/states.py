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
    deadline = time.monotonic() + 10
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


@contextlib.contextmanager
def out_of_memory(server: EmbeddedServer) -> Iterator[None]:
    with admin(server) as db:
        db.config_set("maxmemory", "1mb")
        yield
        db.config_set("maxmemory", 0)


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


@contextlib.contextmanager
def without_replicas(server: EmbeddedServer) -> Iterator[None]:
    with admin(server) as db:
        db.config_set("min-replicas-to-write", 1)
        yield
        db.config_set("min-replicas-to-write", 0)


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
    with admin(server) as db:
        db.config_set("replica-serve-stale-data", "no")
        with read_only(server):
            yield
        db.config_set("replica-serve-stale-data", "yes")


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
def no_rights(server: EmbeddedServer) -> Iterator[None]:
    with admin(server) as db:
        db.execute_command("ACL", "SETUSER", USER, "-@write")
        yield
        db.execute_command("ACL", "SETUSER", USER, "+@all")


@contextlib.contextmanager
def no_keys(server: EmbeddedServer) -> Iterator[None]:
    with admin(server) as db:
        db.execute_command("ACL", "SETUSER", USER, "resetkeys")
        yield
        db.execute_command("ACL", "SETUSER", USER, "~*")


@contextlib.contextmanager
def another_password(server: EmbeddedServer) -> Iterator[None]:
    with admin(server) as db:
        db.execute_command("ACL", "SETUSER", USER, f"<{PASSWORD}", ">another")
        db.client_kill_filter(_type="normal", skipme=True)
        yield
        db.execute_command("ACL", "SETUSER", USER, f">{PASSWORD}")
