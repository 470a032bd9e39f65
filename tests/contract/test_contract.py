"""Every kind of queue keeps the contract."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest

from apressure import AsyncQueue, EventQueue, FileQueue, QueueDoesNotExistError, TaskQueue
from apressure.testing import MemoryQueue, MemoryServer
from apressure.testing.contract import (
    AddedLetterContract,
    BackpressureContract,
    BoundContract,
    BrowseContract,
    CostContract,
    DeadLetterContract,
    DedupContract,
    DedupUntilDoneContract,
    DelayContract,
    ExpiryContract,
    HistoryContract,
    KeyContract,
    LimitContract,
    MovedLetterContract,
    Opener,
    PauseContract,
    QueueContract,
    RequestContract,
    ScheduleContract,
    SpendContract,
    WorkersContract,
)
from tests.integration.files.conftest import MODES


class Limited(
    QueueContract, DeadLetterContract, PauseContract, LimitContract, DelayContract, ScheduleContract, SpendContract,
    HistoryContract, WorkersContract, BackpressureContract, BoundContract, BrowseContract, AddedLetterContract,
    MovedLetterContract,
):  # fmt: skip
    """What all kinds of queue on a server keep."""


class WithoutIds(Limited, DedupContract):
    """The same, for a kind whose format keeps nothing beside a message."""


class WithIds(Limited, ExpiryContract, DedupUntilDoneContract, KeyContract, RequestContract, CostContract):
    """The same, for kinds whose messages have ids."""


class TestAsyncQueue(WithoutIds):
    @pytest.fixture
    async def open_queue(self, url: str) -> AsyncIterator[Opener]:
        async with contextlib.AsyncExitStack() as stack:

            async def open_queue(**options: Any) -> AsyncQueue[bytes]:
                return await stack.enter_async_context(AsyncQueue("jobs", url=url, **options))

            yield open_queue
        for name in ("jobs", "jobs:dead"):
            async with AsyncQueue(name, url=url) as queue:
                with contextlib.suppress(QueueDoesNotExistError):
                    await queue.delete()


class Together(AsyncQueue[bytes]):
    """A queue whose consumers share the role."""

    def consumer(self, *arguments: Any, **options: Any) -> Any:
        return super().consumer(*arguments, **{"shared": True, **options})


class TestSharedConsumer(WithoutIds):
    @pytest.fixture
    async def open_queue(self, url: str) -> AsyncIterator[Opener]:
        async with contextlib.AsyncExitStack() as stack:

            async def open_queue(**options: Any) -> Together:
                return await stack.enter_async_context(Together("jobs", url=url, **options))

            yield open_queue
        for name in ("jobs", "jobs:dead"):
            async with AsyncQueue(name, url=url) as queue:
                with contextlib.suppress(QueueDoesNotExistError):
                    await queue.delete()


class WithoutScripts:
    """A queue of which some objects use no scripts.

    Attributes:
        scripted: Whether the first object that a test opens uses them; the others are the other way round.
    """

    scripted: bool

    @pytest.fixture
    async def open_queue(self, url: str) -> AsyncIterator[Opener]:
        async with contextlib.AsyncExitStack() as stack:
            opened = 0

            async def open_queue(**options: Any) -> AsyncQueue[bytes]:
                nonlocal opened
                opened += 1
                scripting = self.scripted == (opened == 1)
                return await stack.enter_async_context(AsyncQueue("jobs", url=url, scripting=scripting, **options))

            yield open_queue
        async with AsyncQueue("jobs", url=url) as queue:
            await queue.delete()


class TestWorkersSeenWithoutScripts(WithoutScripts, WorkersContract):
    """Only those that work need scripts."""

    scripted = False


class TestProducersWithoutScripts(WithoutScripts, BackpressureContract):
    """A put of theirs that waits holds the producer role meanwhile."""

    scripted = True
    together = False


class TestEventQueue(WithIds):
    @pytest.fixture
    async def open_queue(self, url: str) -> AsyncIterator[Opener]:
        async with contextlib.AsyncExitStack() as stack:

            async def open_queue(**options: Any) -> EventQueue[bytes]:
                return await stack.enter_async_context(EventQueue("jobs", url=url, **options))

            yield open_queue
        async with EventQueue("jobs", url=url) as queue:
            with contextlib.suppress(QueueDoesNotExistError):
                await queue.delete()


class TestFakeRedis(WithoutIds):
    @pytest.fixture
    async def open_queue(self) -> AsyncIterator[Opener]:
        server = fakeredis.FakeServer()
        async with contextlib.AsyncExitStack() as stack:

            async def open_queue(**options: Any) -> AsyncQueue[bytes]:
                client = fakeredis.FakeAsyncRedis(server=server)
                return await stack.enter_async_context(AsyncQueue("jobs", redis=client, **options))

            yield open_queue


class TestFakeRedisEvents(WithIds):
    @pytest.fixture
    async def open_queue(self) -> AsyncIterator[Opener]:
        server = fakeredis.FakeServer()
        async with contextlib.AsyncExitStack() as stack:

            async def open_queue(**options: Any) -> EventQueue[bytes]:
                client = fakeredis.FakeAsyncRedis(server=server)
                return await stack.enter_async_context(EventQueue("jobs", redis=client, **options))

            yield open_queue


class TestTaskQueue(WithIds):
    @pytest.fixture
    async def open_queue(self, url: str) -> AsyncIterator[Opener]:
        async with contextlib.AsyncExitStack() as stack:

            async def open_queue(**options: Any) -> TaskQueue[bytes]:
                return await stack.enter_async_context(TaskQueue("jobs", url=url, **{"codec": "raw", **options}))

            yield open_queue
        async with TaskQueue("jobs", url=url) as queue:
            with contextlib.suppress(QueueDoesNotExistError):
                await queue.delete()


class TestFakeRedisTasks(WithIds):
    @pytest.fixture
    async def open_queue(self) -> AsyncIterator[Opener]:
        server = fakeredis.FakeServer()
        async with contextlib.AsyncExitStack() as stack:

            async def open_queue(**options: Any) -> TaskQueue[bytes]:
                client = fakeredis.FakeAsyncRedis(server=server)
                return await stack.enter_async_context(TaskQueue("jobs", redis=client, **{"codec": "raw", **options}))

            yield open_queue


class TestFileQueue(
    QueueContract,
    DeadLetterContract,
    AddedLetterContract,
    MovedLetterContract,
    PauseContract,
    DelayContract,
    ExpiryContract,
    ScheduleContract,
    HistoryContract,
    BoundContract,
    WorkersContract,
    BackpressureContract,
    BrowseContract,
):
    @pytest.fixture(params=MODES)
    async def open_queue(self, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Opener]:
        async with contextlib.AsyncExitStack() as stack:

            async def open_queue(**options: Any) -> FileQueue[bytes]:
                mode = MODES[request.param]
                return await stack.enter_async_context(FileQueue(tmp_path / "jobs", **mode, **options))

            yield open_queue


class TestMemoryQueue(WithIds):
    @pytest.fixture
    async def open_queue(self) -> AsyncIterator[Opener]:
        server = MemoryServer()
        async with contextlib.AsyncExitStack() as stack:

            async def open_queue(**options: Any) -> MemoryQueue[bytes]:
                return await stack.enter_async_context(MemoryQueue("jobs", server=server, **options))

            yield open_queue
