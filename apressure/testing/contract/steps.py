"""What the tests of the contract have in common."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from apressure import serve
from apressure.exceptions import QueueClosedError, QueueEmptyError

Opener = Callable[..., Awaitable[Any]]

PATIENCE = 20.0
"""Seconds after which an operation that has not ended fails the test."""

QUICK = 0.1
"""Seconds from one beat to the next in tests that look at who works on a queue, or waits for room."""

ITEMS = [b"%d" % number for number in range(10)]


async def in_time(operation: Awaitable[Any]) -> Any:
    """Return the result of an operation that must end."""
    async with asyncio.timeout(PATIENCE):
        return await operation


async def fails(expected: type[BaseException], operation: Awaitable[Any]) -> BaseException:
    """Return the error of an operation that must fail."""
    try:
        result = await in_time(operation)
    except expected as error:
        return error
    raise AssertionError(f"expected {expected.__name__}, and it returned {result!r}")


async def unblocked(queue: Any, *operations: asyncio.Future[Any]) -> list[Any]:
    """Return the results and errors of operations that `unblock` ends, wherever each stands."""
    async with asyncio.timeout(PATIENCE):
        while not all(operation.done() for operation in operations):
            await queue.unblock()
            await asyncio.sleep(0.01)
    return await asyncio.gather(*operations, return_exceptions=True)


async def begun(operation: Awaitable[Any]) -> asyncio.Task[Any]:
    """Start an operation that will wait. On a slow machine it may not wait yet; then the test passes, too."""
    task = asyncio.ensure_future(operation)
    await asyncio.sleep(0.05)
    return task


async def seen(queue: Any, enough: Callable[[Any], object] = bool, figure: str = "workers") -> Any:
    """Wait until a figure of a queue's statistics is as it should be; returns it."""

    async def look() -> Any:
        while not enough(found := getattr(await queue.statistics(), figure)):  # noqa: ASYNC110 (others change it)
            await asyncio.sleep(QUICK / 4)
        return found

    return await in_time(look())


waiting = functools.partial(seen, figure="waiting_producers")
"""The same for producers that wait for room."""


async def drained(queue: Any) -> list[bytes]:
    """Receive and acknowledge everything that waits."""
    items: list[bytes] = []
    while True:
        try:
            deliveries = await in_time(queue.receive_many(100, timeout=0))
        except (QueueEmptyError, QueueClosedError):
            return items
        for delivery in deliveries:
            items.append(delivery.item)
            await in_time(delivery.ack())


async def comes_anew(queue: Any, raw: bytes) -> None:
    """Assert that a message comes as if it had never been delivered, and acknowledge it."""
    delivery = await in_time(queue.receive())
    assert (delivery.raw, delivery.attempts) == (raw, 1)
    await delivery.ack()


class Words:
    """Tests that look at the texts of errors, where they are those of the kinds of queue of apressure."""

    same_words: ClassVar[bool] = False
    """Errors have the same texts, too."""

    def says(self, error: BaseException, text: str) -> None:
        """Assert that an error begins with this text, a regular expression; `%r` is the name of its queue."""
        expected = text.replace("%r", re.escape(repr(getattr(error, "name", ""))))
        assert not self.same_words or re.match(expected, str(error)), (str(error), expected)


class Counting:
    """A handler that counts how many of its calls run at a time.

    Args:
        seconds: How long a call lasts.

    Attributes:
        most: The most calls that ran at a time.
        done: The items, in the order in which the calls ended.
    """

    def __init__(self, seconds: float) -> None:
        self.most = 0
        self.done: list[Any] = []
        self._seconds = seconds
        self._running = 0

    async def handle(self, item: Any) -> None:
        """Handle an item."""
        self._running += 1
        self.most = max(self.most, self._running)
        await asyncio.sleep(self._seconds)
        self._running -= 1
        self.done.append(item)


async def taken_by(queue: Any, way: str, got: list[bytes]) -> None:
    """Take items until the queue is closed and drained."""

    async def handle(item: bytes) -> None:
        got.append(item)

    if way == "serve":
        await serve(handle, queue, signals=())
    elif way == "consumer":
        async with queue.consumer() as consumer:
            async for item in consumer:
                got.append(item)  # noqa: PERF401 (one at a time)
    elif way == "manual":
        async with queue.consumer("manual") as consumer:
            async for delivery in consumer:
                got.append(delivery.raw)
                await delivery.ack()
    elif way == "iterate":
        async for item in queue:
            got.append(item)  # noqa: PERF401
    elif way.startswith("get"):
        while True:
            got += [await queue.get()] if way == "get" else await queue.get_many(5)
    else:
        while True:
            deliveries = [await queue.receive()] if way == "receive" else await queue.receive_many(5)
            for delivery in deliveries:
                got.append(delivery.raw)
                await delivery.ack()
