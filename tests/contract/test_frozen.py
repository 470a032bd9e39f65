"""`deadline=` of every verb holds while the server, or the disk, answers nothing; and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apressure import AsyncQueue, DeadlineError, EventQueue, FileQueue, PressureError, TaskQueue
from apressure.embedded import EmbeddedServer
from apressure.testing.contract import PATIENCE, drained, in_time
from tests.chaos.support import no_complaints
from tests.contract.matrix import GAPS, KINDS, VERBS
from tests.integration.deadlines import ENDLESS, SOON
from tests.integration.events.remote.conftest import serving
from tests.servers import frozen

LOOKS = {
    "exists",
    "qsize",
    "bound",
    "closed",
    "paused",
    "statistics",
    "wait_closed",
    "peek",
    "peek_newest",
    "dead_letters",
}
KNOWN = {"FileQueue": LOOKS}
"""What a kind may know without asking: the kernel tells a FileQueue of changes."""
ENDS = {"create", "close", "delete", "purge"}
"""Verbs that would disturb the others."""
NEEDS: dict[str, dict[str, Any]] = {
    "put": {"item": b"put"}, "put_nowait": {"item": b"put_nowait"}, "put_many": {"items": [b"put_many"]},
    "get_many": {"max_items": 5}, "receive_many": {"max_items": 5}, "create": {"exist_ok": True},
}  # fmt: skip


class Bench:
    """A queue with one item, on a server or a disk that can be frozen."""

    def __init__(self, kind: str, stack: contextlib.AsyncExitStack, server: EmbeddedServer | None, path: Path) -> None:
        self.kind = kind
        self._stack = stack
        self._server = server
        self._path = path
        self._address = "" if server is None else server.url
        self.queue: Any = None

    async def start(self) -> None:
        if self.kind == "RemoteEventQueue":
            self._address = await self._stack.enter_async_context(serving(self._address))
        owner = await self.open(owner=True)
        await owner.create()
        self.queue = await self.open(**({"threads": True} if self.kind == "FileQueue" else ENDLESS))
        await self.queue.put(b"0")

    async def open(self, owner: bool = False, **options: Any) -> Any:
        made: Any
        if self.kind == "FileQueue":
            made = FileQueue(self._path / "jobs", **options)
        else:
            assert self._server is not None
            options["url"] = self._server.url if owner else self._address
            if self.kind == "TaskQueue":
                options["codec"] = "raw"
            kinds = {"AsyncQueue": AsyncQueue, "TaskQueue": TaskQueue}
            made = kinds.get(self.kind, EventQueue)("jobs", **options)
        return await self._stack.enter_async_context(made)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Nothing answers in this block."""
        if self._server is not None:
            with frozen(self._server):
                yield
            return
        thawed = threading.Event()
        self.queue._store.worker._jobs.put(thawed.wait)
        try:
            yield
        finally:
            thawed.set()

    async def ask(self, verbs: set[str]) -> dict[str, Any]:
        """Run all these verbs at a time, each with a deadline. Returns what came of them."""
        missing = {verb for kind, verb in GAPS if kind == self.kind}
        chosen = [verb for verb in VERBS if verb in verbs - missing and "deadline" in VERBS[verb]]
        running = [getattr(self.queue, verb)(deadline=SOON, **NEEDS.get(verb, {})) for verb in chosen]
        return dict(zip(chosen, await in_time(asyncio.gather(*running, return_exceptions=True)), strict=True))


@pytest.fixture(params=KINDS)
async def bench(
    request: pytest.FixtureRequest, make_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> AsyncIterator[Bench]:
    server = None if request.param == "FileQueue" else make_server("valkey")
    async with no_complaints(), contextlib.AsyncExitStack() as stack:
        bench = Bench(request.param, stack, server, tmp_path)
        await bench.start()
        yield bench


async def test_every_verb_ends_in_time_and_nothing_is_lost(bench: Bench) -> None:
    with bench.frozen():
        came = await bench.ask({*VERBS} - ENDS)
    for verb, outcome in came.items():
        if verb in KNOWN.get(bench.kind, ()) and not isinstance(outcome, Exception):
            continue
        assert isinstance(outcome, DeadlineError), (verb, outcome)
        assert verb not in LOOKS or type(outcome) is DeadlineError, verb
    await in_time(bench.queue.qsize())  # what came too late has been settled
    owner = await bench.open(owner=True)
    await in_time(owner.resume())
    await in_time(bench.queue.aclose())
    items = await drained(owner)
    certain = [verb.encode() for verb in ("put", "put_nowait", "put_many") if type(came.get(verb)) is DeadlineError]
    assert items.count(b"0") == 1, items
    assert len(items) == len({*items}) <= 4
    assert not {*certain} & {*items}


async def test_every_end_ends_in_time(bench: Bench) -> None:
    with bench.frozen():
        came = await bench.ask(ENDS)
    for verb, outcome in came.items():
        assert isinstance(outcome, DeadlineError), (verb, outcome)
    owner = await bench.open(owner=True)
    async with asyncio.timeout(PATIENCE):  # the late answers end the queue, or leave it closed
        while True:
            with contextlib.suppress(PressureError):
                await owner.create(exist_ok=True)
                await owner.delete()
                break
