"""Processes of tests that are killed, and bad lines: the same for every kind of queue."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import redis

from apressure.testing.proxy import Trouble
from tests import processes

ROOT = Path(__file__).parents[2]

each_trouble = pytest.mark.parametrize(
    "trouble",
    [Trouble(lose=0.05, silence=0.001), Trouble(cut=0.05), Trouble(twice=0.06)],
    ids=["lost replies", "cuts", "replies twice"],
)


class Worker:
    """A process of a module `workers`, and the lines that it has written."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            if line.endswith(b"\n"):
                self.lines.append(line.decode().strip())

    async def ready(self) -> None:
        async with asyncio.timeout(90):
            while not self.lines:
                await asyncio.sleep(0.01)

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        assert await self.process.wait() in (-signal.SIGKILL, 0)
        await self._reading

    def noted(self, word: str) -> list[str]:
        return [line.split()[1] for line in self.lines if line.startswith(f"{word} ")]


@contextlib.asynccontextmanager
async def workers() -> AsyncIterator[dict[str, Worker]]:
    running: dict[str, Worker] = {}
    try:
        yield running
    finally:
        for worker in running.values():
            if worker.process.returncode is None:
                await worker.kill()


async def start(kind: str, url: str, tag: str, room: str) -> Worker:
    """Start a worker of `tests.integration.ROOM.workers`."""
    process = await processes.start(
        sys.executable, "-m", f"tests.integration.{room}.workers", kind, url, tag,
        stdout=asyncio.subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    return Worker(process)


async def killed_at_random(
    kinds: tuple[str, str], count: int, url: str, room: str, look: Callable[[], None] = lambda: None
) -> list[Worker]:
    """Start as many workers, of each kind in turn; kill them at random times, and look meanwhile."""
    chosen = random.Random()
    dead: list[Worker] = []
    async with workers() as running:
        for number in range(count):
            running[str(number)] = await start(kinds[number % 2], url, str(number), room)
            await running[str(number)].ready()
            if len(running) > 3:
                await asyncio.sleep(chosen.uniform(0, 0.1))
                victim = running.pop(chosen.choice(list(running)))
                await victim.kill()
                dead.append(victim)
            look()
        for worker in running.values():
            await worker.kill()
            dead.append(worker)
    return dead


def url_of(db: redis.Redis) -> str:
    return f"redis://127.0.0.1:{db.config_get('port')['port']}/0"
