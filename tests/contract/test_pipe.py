"""`pipe` keeps its promises between all kinds of queues, whether it is exactly once or at least once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import apressure
from apressure import (
    AsyncQueue,
    Backoff,
    EventQueue,
    ExactlyOnceError,
    FileQueue,
    Many,
    Piped,
    QueueClosedError,
    QueueDoesNotExistError,
    TaskQueue,
)
from apressure.testing import MemoryQueue, MemoryServer
from apressure.testing.contract import ITEMS, begun, drained, fails, in_time

KINDS = ("files", "events", "server", "plain")
"""A directory, events, a server, and another database of it by plain commands, which can only be a destination."""

PAIRS = (
    *itertools.product(KINDS[:3], KINDS),
    ("tasks", "files"), ("files", "tasks"), ("tasks", "tasks"),
    ("memory", "server"), ("events", "memory"), ("memory", "memory"),
)  # fmt: skip
"""Queues of tasks and in memory do what `pipe` does with any source and destination: a few pairs will do."""
ATOMIC = (("server", "server"), ("events", "events"))
"""Between these, a move is one step."""

USUAL = {
    *(("files", destination, "alone") for destination in ("events", "server", "tasks")),
    ("events", "files", "alone"),
    ("events", "events", "alone"),
    ("server", "plain", "alone"),
    ("server", "server", "alone"),
    ("server", "server", "shared"),
    ("server", "files", "shared"),
    ("tasks", "tasks", "alone"),
    ("memory", "server", "alone"),
    ("memory", "memory", "alone"),
}
"""What differs in code: each source, each destination, both moves of one step, and a shared source of the only kind
that may also be read alone. The others are combinations of these."""

CASES = [
    pytest.param(
        (*pair, how), id=f"{how}-{'-to-'.join(pair)}", marks=() if (*pair, how) in USUAL else pytest.mark.combination
    )
    for pair in PAIRS
    for how in ("alone", "shared")
]

Open = Callable[..., Awaitable[Any]]
Pipe = Callable[..., Coroutine[Any, Any, Piped]]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, str, str]:
    """The kinds of the source and the destination, and how the source is used."""
    found: tuple[str, str, str] = request.param
    return found


@pytest.fixture
def pipe(case: tuple[str, str, str]) -> Pipe:
    """`pipe`, as the only stage of its source, or as one that shares it."""
    return functools.partial(apressure.pipe, shared=case[2] == "shared")


@pytest.fixture
def kinds(case: tuple[str, str, str]) -> tuple[str, str]:
    return case[0], case[1]


@pytest.fixture
async def open_queue(kinds: tuple[str, str], url: str, tmp_path: Path) -> AsyncIterator[Open]:
    """Open the source and the destination: `await open_queue("in", bound=2)`. A second call opens another object."""
    async with contextlib.AsyncExitStack() as stack:
        made, memory = [], MemoryServer()

        async def opener(name: str, bound: int = 0, **options: Any) -> Any:
            kind = kinds[0 if name.startswith("in") else 1]
            if kind == "files":
                queue: Any = FileQueue(tmp_path / name.replace(":dead", ".dead"), **options)
            elif kind == "events":
                queue = EventQueue(name, url=url, **options)
            elif kind == "tasks":
                queue = TaskQueue(name, url=url, codec="raw", **options)
            elif kind == "memory":
                queue = MemoryQueue(name, server=memory, **options)
            else:
                queue = AsyncQueue(name, url=url, scripting=kind == "server", **options)
            await stack.enter_async_context(queue)
            await queue.create(bound, exist_ok=True)
            made.append(queue)
            return queue

        yield opener
        for queue in made:
            with contextlib.suppress(QueueDoesNotExistError):
                await queue.delete()
        async with AsyncQueue("in:dead", url=url) as dead:
            with contextlib.suppress(QueueDoesNotExistError):
                await dead.delete()


async def same(item: Any) -> Any:
    return item


async def contents(queue: Any) -> list[bytes]:
    """Everything that waits in a queue."""
    if isinstance(queue, AsyncQueue):
        return [await queue.get() for _ in range(await queue.qsize())]
    return await drained(queue)


async def fed(open_queue: Open, closed: bool = True, **options: Any) -> Any:
    source = await open_queue("in", **options)
    await source.put_many(ITEMS)
    if closed:
        await source.close()
    return source


async def test_everything_arrives_in_order_and_once(pipe: Pipe, kinds: tuple[str, str], open_queue: Open) -> None:
    source, destination = await fed(open_queue), await open_queue("out")
    done = await in_time(pipe(source, same, destination, close=True))
    assert (done.handled, done.put, done.failed) == (10, 10, 0)
    assert done.exactly_once == (kinds in ATOMIC)
    assert await destination.closed()
    assert await contents(destination) == ITEMS
    assert (await source.statistics()).in_flight == 0
    again = await in_time(pipe(source, same, destination, close=True))
    assert (again.handled, again.put) == (0, 0)


async def test_what_cannot_be_had_is_refused(pipe: Pipe, kinds: tuple[str, str], open_queue: Open) -> None:
    source, destination = await fed(open_queue), await open_queue("out")
    work = pipe(source, same, destination, exactly_once=True)
    if kinds in ATOMIC:
        await in_time(work)
    else:
        await fails(ExactlyOnceError, work)
        assert await source.qsize() == 10


async def test_none_one_and_many_results(pipe: Pipe, open_queue: Open) -> None:
    source, destination = await fed(open_queue), await open_queue("out")

    async def transform(item: bytes) -> Any:
        return Many([item] * int(item)) if int(item) < 4 else None

    done = await in_time(pipe(source, transform, destination))
    assert (done.handled, done.put) == (10, 6)
    assert await contents(destination) == [b"1", b"2", b"2", b"3", b"3", b"3"]
    assert (await source.statistics()).in_flight == 0


@pytest.mark.parametrize("options", [{"batch": 3}, {"concurrency": 3}, {"batch": 2, "concurrency": 3}], ids=str)
async def test_batches_and_parallel_transforms(pipe: Pipe, open_queue: Open, options: dict[str, Any]) -> None:
    source, destination = await fed(open_queue), await open_queue("out")

    async def transform(item: Any) -> Any:
        await asyncio.sleep(0.001)
        return item

    await in_time(pipe(source, transform, destination, **options))
    assert sorted(await contents(destination)) == ITEMS


async def test_it_waits_for_room(pipe: Pipe, open_queue: Open) -> None:
    source, destination = await fed(open_queue), await open_queue("out", bound=2)
    task = await begun(pipe(source, same, destination))
    got: list[bytes] = []
    while len(got) < 10:
        assert await destination.qsize() <= 2
        got += await contents(destination)
        await asyncio.sleep(0.005)
    await in_time(task)
    assert got == ITEMS


async def test_what_fails_is_tried_again_and_then_a_dead_letter(pipe: Pipe, open_queue: Open) -> None:
    source, destination = await fed(open_queue, max_attempts=2), await open_queue("out")
    failures = {b"3": 9, b"7": 1}

    async def transform(item: bytes) -> bytes:
        if failures.get(item):
            failures[item] -= 1
            raise ValueError(item)
        return item

    done = await in_time(pipe(source, transform, destination, retry=Backoff(0)))
    assert (done.handled, done.failed) == (9, 3)
    assert sorted(await contents(destination)) == sorted(set(ITEMS) - {b"3"})


async def test_a_result_that_cannot_be_put_fails_alone(pipe: Pipe, open_queue: Open) -> None:
    source, destination = await fed(open_queue, max_attempts=1), await open_queue("out")

    async def transform(item: bytes) -> Any:
        return 5 if item == b"3" else item

    done = await in_time(pipe(source, transform, destination, retry=Backoff(0)))
    assert (done.handled, done.failed) == (9, 1)
    assert sorted(set(await contents(destination))) == sorted(set(ITEMS) - {b"3"})


async def test_a_closed_destination_gives_everything_back(pipe: Pipe, open_queue: Open) -> None:
    source, destination = await fed(open_queue, closed=False), await open_queue("out")
    await destination.close()
    await fails(QueueClosedError, pipe(source, same, destination))
    assert (await source.statistics()).in_flight == 0
    assert await contents(source) == ITEMS


async def test_a_cancelled_pipe_gives_back_what_it_has_not_moved(pipe: Pipe, open_queue: Open) -> None:
    source, destination = await fed(open_queue), await open_queue("out", bound=4)
    task = await begun(pipe(source, same, destination))
    while await destination.qsize() < 4:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(task)
    assert (await source.statistics()).in_flight == 0
    assert sorted({*await contents(destination), *await contents(source)}) == ITEMS


async def test_stages_that_share_a_source_end_together(open_queue: Open) -> None:
    """One has an item in hand: the other one neither ends nor closes the destination before it."""
    sources = [await fed(open_queue), await open_queue("in")]
    destinations = [await open_queue("out"), await open_queue("out")]
    held, go = asyncio.Event(), asyncio.Event()

    async def hold(item: bytes) -> bytes:
        held.set()
        await go.wait()
        return item

    first = await begun(apressure.pipe(sources[0], hold, destinations[0], close=True, shared=True))
    await in_time(held.wait())
    second = await begun(apressure.pipe(sources[1], same, destinations[1], close=True, shared=True))
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert not second.done()
    assert not await destinations[0].closed()
    go.set()
    done = [await in_time(first), await in_time(second)]
    assert sum(one.put for one in done) == 10
    assert await destinations[0].closed()
    assert sorted(await contents(destinations[0])) == ITEMS
    assert (await sources[0].statistics()).in_flight == 0
