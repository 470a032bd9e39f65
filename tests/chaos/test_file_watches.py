"""Queues in directories are opened, used and closed over and over, by several processes of one user."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from apressure import FileQueue
from tests import processes
from tests.chaos.support import PATIENCE, often
from tests.integration.files import watching

ROOT = Path(__file__).parents[2]
TURNS = often(200, 50)
"""How often each process opens a queue: 10,000 times in the long form."""

pytestmark = pytest.mark.timeout(often(300, 20))


@pytest.mark.parametrize("way", ["one event loop", "event loops"])
async def test_processes_that_open_and_close_queues_all_the_time(tmp_path: Path, way: str) -> None:
    """As a web application that opens one in each request, or runs an event loop for each."""
    command = [sys.executable, "-m", __name__, str(tmp_path), way]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [await processes.start(*command, str(number), cwd=ROOT, env=environment) for number in range(4)]
    assert [await process.wait() for process in running] == [0] * 4


async def turn(place: Path, number: int) -> None:
    """Open a queue, use it, and close it."""
    async with FileQueue(place / f"queue{number % 7}", fsync=False) as queue:
        receiving = asyncio.create_task(queue.receive(timeout=PATIENCE))
        await queue.put(b"%d" % number)
        assert (await receiving).raw == b"%d" % number
        assert (await queue.statistics()).notified
        await (await receiving).ack() if number % 3 else await queue.delete()


def work(place: Path, way: str) -> None:
    """Do it `TURNS` times, and look at what this process holds."""
    warnings = watching.Warnings()

    async def turns() -> None:
        for number in range(TURNS):
            await turn(place, number)

    if way == "event loops":
        for number in range(TURNS):
            asyncio.run(turn(place, number))
    else:
        asyncio.run(turns())
    assert len(watching.instances()) <= 1
    assert watching.watches() == 0
    assert [record.getMessage() for record in warnings.records] == []


if __name__ == "__main__":
    work(Path(sys.argv[1]) / sys.argv[3], sys.argv[2])
