"""redis-py and redis-cli connect as they are."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis
from redis.asyncio import Redis

from tests import processes
from tests.integration.event_server.conftest import Serve, Served

T = TypeVar("T")

DOCS = Path(__file__).parents[3] / "docs"
PROMPT = "127.0.0.1:4777> "


async def in_thread(function: Callable[[], T]) -> T:
    return await asyncio.to_thread(function)


@pytest.mark.parametrize("protocol", [2, 3])
async def test_redis_py(serve: Serve, protocol: int) -> None:
    served: Served = await serve(password="secret")

    def use() -> None:
        with redis.Redis(
            port=served.address.port, password="secret", protocol=protocol, client_name="worker"
        ) as client:
            assert client.ping()
            assert client.execute_command("QLPUSH", "foo", "1", b"x\0y") in (True, b"OK")
            assert client.execute_command("QLPEEK", "foo") == [b"1", b"x\0y"]
            with client.pipeline(transaction=False) as pipe:
                for number in range(2, 100):
                    pipe.execute_command("QLPUSH", "foo", number, "x")
                assert len(pipe.execute()) == 98
            assert client.execute_command("QREGISTER", "foo") in (True, b"OK")
            assert client.execute_command("QNOTIFY", 1) == b"foo"
            assert client.execute_command("QSTATUS") == [[b"foo", 99, 0, 1]]
            assert client.execute_command("QRPOP", "foo", "EX", 10) == [b"1", b"x\0y"]
            assert client.execute_command("QACK", "foo", "1") == 1
            assert client.execute_command("QRPOP", "none") is None
            with pytest.raises(redis.ResponseError, match="duplicate event 2"):
                client.execute_command("QLPUSH", "foo", 2, "x")
            assert client.client_getname() in ("worker", b"worker")

    await in_thread(use)


async def test_redis_py_with_asyncio(okq: Served) -> None:
    async with Redis(port=okq.address.port) as client:
        waiting = asyncio.create_task(_command(client, "QRPOP", "foo", "WAIT", 60))
        assert await _command(client, "QLPUSH", "foo", 1, "x") in (True, b"OK")
        assert await waiting == [b"1", b"x"]
        assert await _command(client, "QACK", "foo", 1) == 1


async def _command(client: Any, *arguments: object) -> object:
    return await client.execute_command(*arguments)


@pytest.mark.parametrize("options", [[], ["-3"]])
async def test_redis_cli(serve: Serve, options: list[str]) -> None:
    program = shutil.which("redis-cli") or shutil.which("valkey-cli")
    if program is None:
        pytest.skip("redis-cli (not installed: apt-get install redis-tools)")
    served: Served = await serve(password="secret")

    def use(*words: str, input: str | None = None) -> str:
        done = processes.run(
            [program, *options, "-p", str(served.address.port), *words],
            env={"REDISCLI_AUTH": "secret"}, input=input, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return done.stdout

    lines = "QLPUSH foo 1 testevent\nQLPEEK foo\nQRPOP foo\nQACK foo 1\nQRPOP foo\nQINFO foo\nnosuch\n"
    shown = await in_thread(lambda: use("--no-raw", input=lines))
    assert shown.splitlines() == [
        "OK", '1) "1"', '2) "testevent"', '1) "1"', '2) "testevent"', "(integer) 1", "(nil)",
        '1) "foo  total: 0  processing: 0  consumers: 0"', '(error) ERR unknown command "nosuch"',
    ]  # fmt: skip
    assert await in_thread(lambda: use("PING")) == "PONG\n"


async def test_redis_cli_pipes_a_file_of_commands(okq: Served) -> None:
    program = shutil.which("redis-cli") or shutil.which("valkey-cli")
    if program is None:
        pytest.skip("redis-cli (not installed: apt-get install redis-tools)")
    lines = b"".join(b"QLPUSH foo %d x\r\n" % n for n in range(5000))
    done = await in_thread(
        lambda: processes.run(
            [program, "-p", str(okq.address.port), "--pipe"], input=lines, capture_output=True, timeout=60, check=False
        )
    )
    assert b"errors: 0, replies: 5000" in done.stdout, done
    assert (await (await okq.connect())("QSTATUS", "foo"))[0][1] == 5000


async def test_the_terminal_of_the_docs(okq: Served) -> None:
    program = shutil.which("redis-cli") or shutil.which("valkey-cli")
    if program is None:
        pytest.skip("redis-cli (not installed: apt-get install redis-tools)")
    (shown,) = re.findall(
        r"```\n\$ redis-cli -p 4777\n(.*?)```", (DOCS / "do" / "events-server.md").read_text(), re.DOTALL
    )
    lines = [line.removeprefix(PROMPT) for line in shown.splitlines() if line.startswith(PROMPT)]
    shown_by_cli = await asyncio.to_thread(
        processes.run,
        [program, "--no-raw", "-p", str(okq.address.port)],
        input="\n".join(lines), text=True, timeout=60, check=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert shown_by_cli.stdout == "".join(f"{line}\n" for line in shown.splitlines() if not line.startswith(PROMPT))


async def test_the_consumer_of_the_docs(okq: Served, db: redis.Redis) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "do" / "events-server.md").read_text(), re.DOTALL)
    wire = await okq.connect()
    assert await wire("QLPUSH", "foo", "1", "one", "2", "two") == b"OK"
    handled: list[bytes] = []

    def handle(contents: bytes) -> None:
        if len(handled) == 1:
            raise StopIteration  # the second event is not acknowledged
        handled.append(contents)

    def consume() -> None:
        with pytest.raises(StopIteration):
            exec(code.replace("port=4777", f"port={okq.address.port}"), {"handle": handle})

    await in_thread(consume)
    assert handled == [b"one"]
    assert await wire("QSTATUS", "foo") == [[b"foo", 1, 1, 0]]
