"""`apressure events serve` and `apressure events health`, as processes."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests import processes
from tests.integration.commands import COMMAND, PATIENCE, Commands, environment


@contextlib.contextmanager
def serving(
    *options: str, env: dict[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """Run a server, and give its process and what it says when it is ready."""
    process = processes.Popen(
        [*COMMAND, "events", "serve", "--json", *options],
        env={**environment(), **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.communicate(timeout=PATIENCE)[1].decode())
        yield process, json.loads(line)
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


def ended(process: subprocess.Popen[bytes], signum: int = signal.SIGTERM) -> list[dict[str, Any]]:
    """End a server in an orderly way, and return its log."""
    process.send_signal(signum)
    log = process.communicate(timeout=PATIENCE)[1].decode()
    assert process.returncode == 0, log
    return [json.loads(line) for line in log.splitlines()]


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    """A service manager's end of NOTIFY_SOCKET."""
    # The address of a socket is short; tmp_path may be long.
    with tempfile.TemporaryDirectory(prefix="ap-") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(f"{folder}/notify")
        made.settimeout(PATIENCE)
        yield made


def test_the_first_example_with_a_server_of_its_own(manager: socket.socket) -> None:
    options = ("--redis-addr", "embedded://", "--listen-addr", "127.0.0.1:0")
    with serving(*options, env={"NOTIFY_SOCKET": manager.getsockname()}) as (process, ready):
        port = ready["port"]
        assert (ready["ready"], ready["host"]) == (True, "127.0.0.1")
        assert manager.recv(1000) == f"READY=1\nSTATUS=listening on 127.0.0.1:{port}".encode()
        with redis.Redis(port=port) as client:
            assert client.execute_command("QLPUSH", "foo", "1", "testevent") in (True, b"OK")
            assert client.execute_command("QLPEEK", "foo") == [b"1", b"testevent"]
        healthy = Commands("").json("events", "health", "--addr", f"127.0.0.1:{port}")
        assert (healthy["healthy"], healthy["address"]) == (True, f"127.0.0.1:{port}")
        log = ended(process)
        assert manager.recv(1000) == b"STOPPING=1"
    assert [one["message"] for one in log] == [
        "listening",
        f"only this machine can connect; --listen-addr :{port} opens the server to others",
        "stopping",
        "stopped",
    ]
    assert (log[0]["address"], log[0]["level"], log[0]["tls"]) == (f"127.0.0.1:{port}", "info", False)


def test_options_win_over_the_environment_and_that_over_the_file(url: str, tmp_path: Path) -> None:
    file = tmp_path / "okq.conf"
    example = Commands(url)("events", "serve", "--example").stdout.decode()
    assert "\n# How many NOBLOCK pushes may be under way.\nbg-push-pool-size: 128\n" in example
    text = example.replace("listen-addr: 127.0.0.1:4777", "listen-addr: 127.0.0.3:0")
    text = text.replace("#redis-addr:", f"redis-addr: {url.removeprefix('redis://').removesuffix('/0')}")
    text = text.replace("max-connections: 10000", "max-connections: 1").replace(
        "bg-push-pool-size: 128", "bg-push-pool-size: 0"
    )
    file.write_text(text)
    env = {"OKQ_LISTEN_ADDR": "127.0.0.2:0", "OKQ_PASSWORD": "from the environment", "OKQ_MAX_CONNECTIONS": "2"}
    with serving("--config", str(file), "--max-connections", "3", env=env) as (process, ready):
        assert ready["host"] == "127.0.0.2"
        with contextlib.ExitStack() as stack:
            clients = [
                stack.enter_context(
                    redis.Redis(
                        "127.0.0.2", ready["port"], password="from the environment", single_connection_client=True
                    )
                )
                for _ in range(3)
            ]
            for client in clients:
                assert client.ping()
            with pytest.raises(redis.RedisError, match=r"max number of clients|Connection"):
                redis.Redis("127.0.0.2", ready["port"], password="from the environment").ping()
            with pytest.raises(redis.ResponseError, match="too busy"):
                clients[0].execute_command("QLPUSH", "foo", "1", "x", "NOBLOCK")
        log = ended(process, signal.SIGINT)
    assert "from the environment" not in json.dumps(log)


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ("listen-addr: x\nlisten-adr: y\n", "line 2: there is no setting 'listen-adr' (--example shows all)"),
        ("# comment\n\nlisten-addr x\n", "line 3: write 'key: value', not 'listen-addr x'"),
        ("debug: true\ndebug: false\n", "line 2: 'debug' is set twice"),
        ("max-connections: many\n", "Invalid value for '--max-connections'"),
    ],
)
def test_a_wrong_configuration_file_is_refused(tmp_path: Path, lines: str, error: str) -> None:
    file = tmp_path / "okq.conf"
    file.write_text(lines)
    done = Commands("")("events", "serve", "--config", str(file), code=2)
    assert error in done.stderr.decode()


@pytest.mark.parametrize(
    ("options", "code", "error"),
    [
        (["--listen-addr", "x:y"], 2, "the address to listen on must be host:port or :port, not 'x:y'"),
        (["--tls-key", "x"], 2, "--tls-key and --tls-client-ca need --tls-cert"),
        (["--redis-addr", "127.0.0.1:1"], 7, "cannot reach the server at 127.0.0.1:1"),
        (["--redis-addr", "rediss://x", "--redis-cluster"], 2, "Give a redis+cluster:// URL instead"),
    ],
)
def test_wrong_options_are_refused(options: list[str], code: int, error: str) -> None:
    done = Commands("")("events", "serve", "--listen-addr", "127.0.0.1:0", *options, code=code)
    assert error in done.stderr.decode()


def test_an_address_in_use_is_refused(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = Commands(url)("events", "serve", "--redis-addr", url, "--listen-addr", address, code=1)
    error = f"apressure: cannot listen on {address}: Address already in use. Choose another --listen-addr\n"
    assert done.stderr.decode() == error


def test_health_of_a_server_that_is_not_there() -> None:
    done = Commands("")("events", "health", "--addr", "127.0.0.1:1", "--json", code=7)
    assert json.loads(done.stderr)["error"] == "ServerUnavailableError"
    assert "Is it running, and is the address right?" in json.loads(done.stderr)["message"]


def test_health_of_a_server_with_a_password() -> None:
    options = ("--redis-addr", "embedded://", "--listen-addr", "127.0.0.1:0", "--drain-timeout", "1000")
    with serving(*options, env={"OKQ_PASSWORD": "secret"}) as (process, ready):
        done = Commands("")("events", "health", "--addr", f"127.0.0.1:{ready['port']}", code=7)
        assert b"NOAUTH" in done.stderr
        address = ("events", "health", "--addr", f"127.0.0.1:{ready['port']}")
        assert b"healthy" in Commands("")(*address, env={"OKQ_PASSWORD": "secret"}).stdout
        log = ended(process)
        assert log[-1]["message"] == "stopped"
