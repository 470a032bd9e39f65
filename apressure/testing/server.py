"""The server of one test: where it is, queues on it, faults, and what the test leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from apressure.concurrency import background
from apressure.connection.client import Client
from apressure.events.queue import EventQueue
from apressure.exceptions import PressureError
from apressure.files.queue import FileQueue
from apressure.pressure.queue import AsyncQueue
from apressure.tasks.queue import TaskQueue
from apressure.testing.faults import Faults
from apressure.testing.leftovers import Kind, Leftover, in_flight, on_server, waiting
from apressure.testing.proxy import Proxy

Q = TypeVar("Q", AsyncQueue[Any], EventQueue[Any], TaskQueue[Any], FileQueue[Any])

GRACE = 5.0
"""Seconds in which what the test has let go of may still end."""


class PressureServer(Faults):
    """The server of one test, empty at first; the fixture `pressure_server`.

    Args:
        proxy: What clients connect to; None with fakeredis.
        ours: Whether the server belongs to this test run.
        fake: Makes a new client of fakeredis, for `redis=`; None with a real server.
        directory: Makes a new directory, for queues in files.
        allowed: The kinds of what the test may leave behind. `finish` does not wait for its end.

    Attributes:
        left: What `finish` found.
        finished: Whether `finish` has run.
    """

    def __init__(
        self,
        proxy: Proxy | None,
        ours: bool,
        fake: Callable[[], Any] | None,
        directory: Callable[[], Path],
        allowed: Collection[str],
    ) -> None:
        super().__init__(proxy, ours)
        self._fake = fake
        self._directory = directory
        self._allowed = allowed
        self._opened: list[Any] = []
        self._before: Collection[asyncio.Task[Any]] = ()
        self.left: list[Leftover] = []
        self.finished = False

    def __repr__(self) -> str:
        return (
            "<PressureServer of fakeredis>" if self._proxy is None else f"<PressureServer on port {self._proxy.port}>"
        )

    @property
    def url(self) -> str:
        """The server's address, for any client in any process: `redis://127.0.0.1:PORT/DB`.

        Raises:
            RuntimeError: It is fakeredis, which has no address.
        """
        if self._proxy is None:
            raise RuntimeError("fakeredis has no address: pass **pressure_server.options, or use a real server")
        return self._proxy.url

    @property
    def options(self) -> dict[str, Any]:
        """Arguments for a queue or a client, `AsyncQueue("orders", **pressure_server.options)`, on every server."""
        return {"redis": self._fake()} if self._fake is not None else {"url": self.url}

    async def queue(
        self, name: str = "queue", *, bound: int = 0, create: bool = True, **options: Any
    ) -> AsyncQueue[Any]:
        """Open an `AsyncQueue`, which the end of the test closes.

        Args:
            name: The queue's name.
            bound: The most items that may wait; 0 for no bound.
            create: Create the queue, if it does not exist.
            **options: Those of `AsyncQueue`, such as `codec="json"`.

        Cancelled, it is closed at the end of the test, too.
        """
        return await self._open(AsyncQueue(name, **{**self.options, **options}), bound, create)

    async def events(
        self, name: str = "events", *, bound: int = 0, create: bool = True, **options: Any
    ) -> EventQueue[Any]:
        """Open an `EventQueue`, as `queue` does."""
        return await self._open(EventQueue(name, **{**self.options, **options}), bound, create)

    async def tasks(
        self, name: str = "tasks", *, bound: int = 0, create: bool = True, **options: Any
    ) -> TaskQueue[Any]:
        """Open a `TaskQueue`, as `queue` does."""
        return await self._open(TaskQueue(name, **{**self.options, **options}), bound, create)

    async def files(self, *, bound: int = 0, create: bool = True, **options: Any) -> FileQueue[Any]:
        """Open a `FileQueue` in a new directory, as `queue` does. Open more objects with `FileQueue(queue.path)`."""
        return await self._open(FileQueue(self._directory() / "queue", **options), bound, create)

    def begin(self) -> None:
        """Remember the tasks that run before the test."""
        self._before = background.running()

    async def finish(self) -> None:
        """Note in `left` what the test left behind, then close its queues.

        Cancelled, some queues are open.
        """
        self.finished = True
        try:
            self.left += await self._after_grace(self._held)
        finally:
            for queue in self._opened:
                await queue.aclose()
        self.left += await self._after_grace(self._running)

    async def _open(self, queue: Q, bound: int, create: bool) -> Q:
        self._opened.append(queue)
        await queue.__aenter__()
        if create:
            await queue.create(bound, exist_ok=True)
        return queue

    async def _held(self) -> list[Leftover]:
        options = self.options if self._proxy is None else {"url": self._proxy.target}
        async with Client(**options) as client:
            found = await on_server(client)
        for queue in self._opened:
            with contextlib.suppress(PressureError):  # it was closed or deleted, or its line is down
                statistics = await queue.statistics()
                found += waiting(type(queue).__name__, statistics)
                if isinstance(queue, FileQueue):
                    found += in_flight("FileQueue", statistics)
        return found

    async def _after_grace(self, look: Callable[[], Awaitable[list[Leftover]]]) -> list[Leftover]:
        until = time.monotonic() + GRACE
        while True:
            found = await look()
            if all(one.kind in self._allowed for one in found) or time.monotonic() >= until:
                return found
            await asyncio.sleep(0.05)

    async def _running(self) -> list[Leftover]:
        tasks = background.running().difference(self._before)
        found = [
            Leftover("tasks", f"the asyncio task {task.get_name()!r} of apressure runs. Close what started it: use "
                     "`async with` for each queue and client, and await each task of yours.")
            for task in sorted(tasks, key=lambda task: task.get_name())
        ]  # fmt: skip
        if self._proxy is not None and (count := self._proxy.connections):
            what = f"{count} connection{'s are' if count > 1 else ' is'} open"
            todo = "Close each queue and client with `async with` or aclose(), and end the processes of the test"
            found.append(Leftover("connections", f"{what}. {todo}."))
        return found


def report(left: Collection[Leftover], allowed: Collection[str]) -> str:
    """Return what to tell the author of a test about what it left behind; nothing if all of it is allowed."""
    rest = [one for one in left if one.kind not in allowed]
    kinds: list[Kind] = list(dict.fromkeys(one.kind for one in rest))
    if not rest:
        return ""
    lines = "\n".join(f"  - {one.text}" for one in dict.fromkeys(rest))
    marker = f"@pytest.mark.pressure_leaves({', '.join(repr(kind) for kind in kinds)})"
    return f"the test left something behind:\n{lines}\nIf that is intended, mark the test with {marker}."
