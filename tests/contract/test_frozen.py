"""`deadline=` of every verb holds while the server, or the disk, answers nothing; and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from apressure.embedded import EmbeddedServer
from apressure.testing.contract import FrozenContract, Opener
from apressure.testing.contract.frozen import Frozen
from apressure.testing.contract.steps import fails, in_time
from apressure.testing.contract.verbs import LOOKS
from tests.chaos.support import no_complaints
from tests.contract.matrix import KINDS, SERVERLESS, Maker
from tests.integration.deadlines import ENDLESS
from tests.integration.events.remote.conftest import serving
from tests.servers import frozen

OPTIONS: dict[str, dict[str, Any]] = {"FileQueue": {"threads": True}, "MemoryQueue": {}}
"""Of the object that meets a frozen server. All others give up nothing for long."""
IMPATIENT = {**ENDLESS, "settle_timeout": 0.2}
"""Of an object that does so once it is cancelled."""


class Bench:
    """Opens objects of a queue of one kind, and freezes its server or its disk."""

    def __init__(self, make: Maker, server: EmbeddedServer | None, stack: contextlib.AsyncExitStack) -> None:
        self.kind = make.kind
        self._make = make
        self._server = server
        self._stack = stack
        self._first: Any = None

    async def open(self, options: Mapping[str, Any] = ENDLESS) -> Any:
        if self._first is None:
            self._first = await self._stack.enter_async_context(self._make(**OPTIONS.get(self.kind, options)))
            return self._first
        direct = {} if self._server is None else {"url": self._server.url}
        return await self._stack.enter_async_context(self._make(**direct))

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        if self._server is not None:
            with frozen(self._server):
                yield
        elif self.kind == "MemoryQueue":
            with self._make.memory.frozen():
                yield
        else:
            thawed, late = threading.Event(), threading.Event()
            jobs = self._first._store.worker._jobs
            jobs.put(thawed.wait)
            try:
                yield
            finally:
                thawed.set()
                jobs.put(late.set)  # a late pause must not come after what the test does next
                assert late.wait(60)


@pytest.fixture(params=KINDS)
async def bench(
    request: pytest.FixtureRequest, make_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> AsyncIterator[Bench]:
    server = None if request.param in SERVERLESS else make_server("valkey")
    url = "" if server is None else server.url
    async with no_complaints(), contextlib.AsyncExitStack() as stack:
        if request.param == "RemoteEventQueue":
            url = await stack.enter_async_context(serving(url))
        yield Bench(Maker(request.param, url, tmp_path), server, stack)


class TestFrozen(FrozenContract):
    @pytest.fixture
    def open_queue(self, bench: Bench) -> Opener:
        if bench.kind == "FileQueue":  # the kernel tells it of changes
            self.knows = (*LOOKS, "promote")  # nothing is delayed
        return bench.open

    @pytest.fixture
    def frozen(self, bench: Bench) -> Frozen:
        return bench.frozen


@pytest.mark.parametrize("how", ["cancelled", "failed"])
@pytest.mark.parametrize("bench", [kind for kind in KINDS if kind not in SERVERLESS], indirect=True)
async def test_a_consumer_that_is_cancelled_or_fails_ends_while_the_server_is_frozen(bench: Bench, how: str) -> None:
    """It waits for `settle_timeout`, and not for as long as retries would go on. What it has in hand comes again."""
    queue, owner = await bench.open(IMPATIENT), await bench.open()
    await owner.create()
    await owner.put_many([b"0", b"1", b"2"])
    handling, failing = asyncio.Event(), asyncio.Event()

    async def handle() -> None:
        async with queue.consumer(lease=2.0) as consumer:
            async for _ in consumer:
                handling.set()
                await failing.wait()
                raise KeyError

    work = asyncio.create_task(handle())
    await in_time(handling.wait())
    with bench.frozen():
        if how == "cancelled":
            work.cancel()
        else:
            failing.set()
        await fails(asyncio.CancelledError if how == "cancelled" else KeyError, work)
    assert sorted([await in_time(owner.get()) for _ in range(3)]) == [b"0", b"1", b"2"]
