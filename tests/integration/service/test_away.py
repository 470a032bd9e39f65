"""A worker that gets SIGTERM while its server is dead or frozen ends before its supervisor loses patience."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apressure import AsyncQueue, EventQueue, TaskQueue, sync
from apressure.embedded import EmbeddedServer
from tests import processes
from tests.integration.commands import COMMAND, PATIENCE, environment, running

pytestmark = pytest.mark.slow

APP = """
import asyncio
from pathlib import Path

PLACE = Path(__file__).parent


def note(name, item):
    with (PLACE / name).open("a") as file:
        file.write(f"{item}\\n")


async def handle(item):
    note("begun", item)
    while not (PLACE / "release").exists():
        await asyncio.sleep(0.01)
    if "failing" in item:
        raise ValueError(item)
    note("handled", item)


async def recover(item):
    note("handled", item)
"""

ADDRESSES = {AsyncQueue: "orders", EventQueue: "events:orders", TaskQueue: "tasks:orders"}

ENDS = 25.0
"""Seconds after which the worker must have ended, on the busiest machine. It takes five, and took up to 45."""


@pytest.mark.parametrize("away", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
@pytest.mark.parametrize("state", ["handling", "failing", "idle"])
@pytest.mark.parametrize("kind", ADDRESSES)
def test_a_worker_ends_soon_while_its_server_is_away(
    tmp_path: Path, make_server: Callable[..., EmbeddedServer], kind: Any, state: str, away: signal.Signals
) -> None:
    server = make_server("valkey", directory=tmp_path / "data", config={"appendonly": "yes", "appendfsync": "always"})
    (tmp_path / "app.py").write_text(APP)
    items = [f"{state} {number}" for number in range(1 if state == "idle" else 10)]
    with sync.Queue(kind("orders", url=server.url, codec="text")) as queue:
        queue.create()
        queue.put_many(items)
    if state == "idle":
        (tmp_path / "release").touch()
    with running(worker("handle", kind, tmp_path), env=environment(server.url), stderr=subprocess.STDOUT) as process:
        wait(lambda: lines(tmp_path / "handled") == items if state == "idle" else len(lines(tmp_path / "begun")) == 3)
        os.kill(server.pid, away)
        process.send_signal(signal.SIGTERM)
        (tmp_path / "release").touch()
        output, _ = process.communicate(timeout=ENDS)
    assert process.returncode == 0, output
    assert state != "handling" or b"3 acknowledgements of the queue 'orders' may not have arrived" in output, output
    assert b"never retrieved" not in output
    if away == signal.SIGSTOP:
        os.kill(server.pid, signal.SIGCONT)
    else:
        server.stop()
        server.start()
    with sync.Queue(kind("orders", url=server.url, codec="text")) as queue:
        queue.close()
    again = processes.run(  # until the queue is drained
        worker("recover", kind, tmp_path),
        env=environment(server.url),
        capture_output=True,
        check=False,
        timeout=PATIENCE,
    )
    assert again.returncode == 0, again
    assert {*lines(tmp_path / "handled")} == {*items}, "nothing is lost"


def worker(handler: str, kind: Any, place: Path) -> list[str]:
    options = "--codec", "text", "--concurrency", "3", "--app-dir", str(place)
    return [*COMMAND, "worker", f"app:{handler}", ADDRESSES[kind], *options]


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def wait(condition: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)
