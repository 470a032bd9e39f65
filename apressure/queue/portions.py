"""How many items become steps: the size of a portion, and portions of what an asynchronous iterable yields."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")

MAX_MESSAGES: Final = 2000
"""The most messages in one step, so that it does not hold up the server for more than a few milliseconds."""

MAX_BYTES: Final = 1 << 20
"""The most bytes in one step of several messages."""


async def stream(
    items: AsyncIterable[T], encode: Callable[[T], bytes], put: Callable[[list[bytes]], Awaitable[None]]
) -> None:
    """Put what an asynchronous iterable yields as it comes: what arrives during one step leaves with the next."""
    gathered: list[bytes] = []
    size = 0
    sender: asyncio.Task[None] | None = None
    before = _cancellations()

    async def send() -> None:
        nonlocal gathered, size
        while gathered:
            portion, gathered, size = gathered, [], 0
            await put(portion)

    try:
        # A group, since a put that fails has to end the wait for an item that may never come.
        async with asyncio.TaskGroup() as group:
            async for item in items:
                gathered.append(encode(item))
                size += len(gathered[-1])
                if sender is None or sender.done():
                    sender = group.create_task(send())
                elif len(gathered) >= MAX_MESSAGES or size >= MAX_BYTES:
                    await sender
    except BaseExceptionGroup as errors:
        if _cancellations() > before:
            # A group forgets a cancellation that comes beside a failure. anyio's comes again while the task waits, with
            # the exception that its scope knows; asyncio's does not.
            await asyncio.sleep(0.001)
            raise asyncio.CancelledError from errors.exceptions[0]
        raise errors.exceptions[0] from None


def _cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
