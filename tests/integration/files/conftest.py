"""Queues in directories, in every way in which they work."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from apressure import FileQueue
from apressure.files.storage.names import BLANK, WORKERS

MODES: dict[str, dict[str, Any]] = {
    "notified": {"fsync": False},
    "fsync": {"fsync": True},
    "threads": {"fsync": False, "threads": True},
    "listed": {"fsync": False, "notify": False, "poll_interval": 0.02},
}

USUAL_MODES = {
    "notified": None,
    "fsync": {"test_hazards", "test_messages"},
    "threads": {"test_closing", "test_consumers", "test_hazards", "test_leases", "test_races", "test_waiting"},
    "listed": {"test_consumers", "test_pause", "test_strangers", "test_waiting"},
}
"""The files whose tests a mode concerns; None is all. The contract runs in each mode."""

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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests in each mode. Those whose code does not depend on it are combinations: see tests/selection.py."""
    chosen = any("mode" in marker.args[0] for marker in metafunc.definition.iter_markers("parametrize"))
    if "mode" not in metafunc.fixturenames or chosen:
        return
    file = metafunc.module.__name__.rpartition(".")[2]
    marks = [() if files is None or file in files else pytest.mark.combination for files in USUAL_MODES.values()]
    modes = [pytest.param(MODES[name], id=name, marks=mark) for name, mark in zip(USUAL_MODES, marks, strict=True)]
    metafunc.parametrize("mode", modes)


@pytest.fixture
def mode() -> dict[str, Any]:
    """The arguments of the queue objects. Each test runs in several modes."""
    return MODES["notified"]


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
    """The names in a queue's directory, but for the file of which reserved names are links, and that of workers."""
    return [name for name in listing(queue.path) if name not in (BLANK, WORKERS)]


async def drain(queue: FileQueue[Any]) -> list[bytes]:
    """Receive and acknowledge all messages that wait."""
    got = []
    while (await queue.statistics()).length:
        message = await queue.receive(timeout=0)
        got.append(message.raw)
        await message.ack()
    return got
