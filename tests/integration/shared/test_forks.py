"""Queue objects that were made before a fork, and are first used in the children: as with a server that preloads."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from apressure import AsyncQueue, EventQueue, TaskQueue
from tests import processes

# What does not depend on the server runs on one of them.
pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)

PUT = """
import sys
import apressure

kind, url, how = sys.argv[1:]
client = apressure.Client(url=url) if how == "shared" else None
queue = getattr(apressure, kind)("jobs", codec="text", **({"client": client} if client else {"url": url}))


async def run(name):
    async with client or queue:
        for number in range(50):
            await queue.put(f"{name}{number}")
"""


@pytest.mark.parametrize("kind", [AsyncQueue, EventQueue, TaskQueue])
@pytest.mark.parametrize("how", ["own", "shared"])
async def test_children_lose_nothing(url: str, kind: Any, how: str) -> None:
    async with kind("jobs", url=url, codec="text") as queue:
        await queue.create()
        done = processes.run(
            [sys.executable, "-c", PUT + processes.FORKING, kind.__name__, url, how],
            capture_output=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr.decode()
        found = await queue.get_many(200)
        assert sorted(found) == sorted(f"{name}{number}" for name in "AB" for number in range(50))
        await queue.delete()
