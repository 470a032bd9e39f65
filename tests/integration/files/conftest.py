"""Queues in directories, in every way in which they work."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from apressure import FileQueue

MODES: dict[str, dict[str, Any]] = {
    "notified": {"fsync": False},
    "fsync": {"fsync": True},
    "threads": {"fsync": False, "threads": True},
    "listed": {"fsync": False, "notify": False, "poll_interval": 0.02},
}

Make = Callable[..., FileQueue[Any]]


class Clock:
    """A clock that can be set."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> dict[str, Any]:
    return MODES[request.param]


@pytest.fixture
async def make(tmp_path: Path, mode: dict[str, Any]) -> AsyncIterator[Make]:
    """Make queue objects of one directory, or of others; they are closed after the test."""
    async with contextlib.AsyncExitStack() as stack:

        def make(name: str = "orders", **options: Any) -> FileQueue[Any]:
            queue: FileQueue[Any] = FileQueue(tmp_path / name, **{**mode, **options})
            stack.push_async_callback(queue.aclose)
            return queue

        yield make


@pytest.fixture
def queue(make: Make) -> FileQueue[bytes]:
    return make()


def listing(directory: Path) -> list[str]:
    """The names in a directory."""
    return sorted(entry.name for entry in directory.iterdir())


def files(queue: FileQueue[Any]) -> list[str]:
    """The names in a queue's directory."""
    return listing(queue.path)


async def drain(queue: FileQueue[Any]) -> list[bytes]:
    """Receive and acknowledge all messages that wait."""
    got = []
    while (await queue.statistics()).length:
        message = await queue.receive(timeout=0)
        got.append(message.raw)
        await message.ack()
    return got
