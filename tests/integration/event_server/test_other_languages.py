"""Clients in other languages connect as they are: ioredis (JavaScript) and go-redis (Go)."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import processes
from tests.integration.commands import PATIENCE
from tests.integration.event_server.conftest import Serve, Served

CLIENTS = Path(__file__).parent / "clients"
IOREDIS = "ioredis@6"
GO_PATH = Path("/usr/share/gocode")
"""Where Debian's packages put the sources of Go libraries."""


async def use(command: Sequence[str | Path], **environment: str) -> None:
    """Run a client, which checks the replies itself."""
    done = await asyncio.to_thread(
        processes.run, command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.fixture(scope="module")
def ioredis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where ioredis is installed."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("ioredis (Node.js with npm is not installed: apt-get install nodejs npm)")
    folder = tmp_path_factory.mktemp("ioredis")
    options = ("--prefix", folder, "--no-audit", "--no-fund", "--ignore-scripts")
    done = processes.run(
        [npm, "install", *options, IOREDIS], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if done.returncode:
        pytest.skip(f"ioredis (npm cannot install it: {done.stderr.strip().splitlines()[:1]})")
    return folder / "node_modules"


@pytest.mark.parametrize("protocol", [2, 3])
async def test_ioredis(serve: Serve, ioredis: Path, protocol: int) -> None:
    served: Served = await serve(password="secret")
    program = ["node", CLIENTS / "ioredis.js", str(served.address.port), "secret", str(protocol)]
    await use(program, NODE_PATH=os.fspath(ioredis))


@pytest.fixture(scope="module")
def go_redis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that uses go-redis, compiled with the library of Debian's package."""
    go = shutil.which("go")
    if go is None or not (GO_PATH / "src/gopkg.in/redis.v5").is_dir():
        pytest.skip("go-redis (not installed: apt-get install golang-go golang-gopkg-redis.v5-dev)")
    folder = tmp_path_factory.mktemp("go")
    environment = {"GO111MODULE": "off", "GOPATH": os.fspath(GO_PATH), "GOCACHE": os.fspath(folder / "cache")}
    processes.run(
        [go, "build", "-o", folder / "client", CLIENTS / "go_redis.go"],
        env={**os.environ, **environment, "CGO_ENABLED": "0"}, check=True, timeout=PATIENCE,
    )  # fmt: skip
    return folder / "client"


async def test_go_redis(serve: Serve, go_redis: Path) -> None:
    served: Served = await serve(password="secret")
    await use([go_redis, str(served.address.port), "secret"])
