"""Two queues and what the tests of `pipe` do with them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

import apressure
from apressure import AsyncQueue, Piped
from tests.chaos.support import no_complaints
from tests.integration.conftest import Opener

Queue = AsyncQueue[Any]
Pair = Callable[..., Awaitable[tuple[Queue, Queue]]]
Pipe = Callable[..., Coroutine[Any, Any, Piped]]

IN, OUT = "__pressure__:in", "__pressure__:out"


async def same(item: Any) -> Any:
    return item


def items(number: int) -> list[bytes]:
    return [b"%d" % index for index in range(number)]


@pytest.fixture(autouse=True)
async def _no_complaints() -> AsyncIterator[None]:
    async with no_complaints():
        yield


@pytest.fixture(params=[False, True], ids=["alone", "shared"])
def pipe(request: pytest.FixtureRequest) -> Pipe:
    """`pipe`, as the only stage of its source, and as one that shares it."""
    return functools.partial(apressure.pipe, shared=request.param)


@pytest.fixture
def two(open_queue: Opener) -> Pair:
    """Open a source with messages and a destination: `await two(5, bound=2)`."""

    async def opener(messages: int = 0, bound: int = 0, closed: bool = True, **options: Any) -> tuple[Queue, Queue]:
        source = await open_queue("in", **options)
        destination = await open_queue("out", bound=bound)
        await source.put_many(items(messages))
        if closed:
            await source.close()
        return source, destination

    return opener


async def drained(queue: Queue) -> list[Any]:
    got: list[Any] = []
    while await queue.qsize():
        got += await queue.get_many(1000)
    return got


async def begun(work: Awaitable[Any]) -> asyncio.Task[Any]:
    return asyncio.ensure_future(work)


async def tidy(*queues: Queue) -> None:
    for queue in queues:
        seen = await queue.statistics()
        assert (seen.in_flight, seen.producer.state, seen.consumer.state) == (0, "free", "free")


class Held:
    """A transform that waits until the test lets it go."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.go = asyncio.Event()

    async def __call__(self, item: Any) -> Any:
        self.begun.append(item)
        await self.go.wait()
        return item
