"""An item goes to the socket and back through few frames, each of which decides something: docs/internals/design.md."""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from typing import Any

from apressure.connection.wire.channel import RESPChannel
from tests.integration.conftest import Opener

MOST = 12


async def frames(operation: Awaitable[Any]) -> int:
    """Return how many functions of this package were on the stack at most, from the call to the socket and back."""
    codes = set()
    deepest = 0

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal deepest
        codes.add(frame.f_code)
        depth = 0
        while frame is not None:
            depth += frame.f_globals.get("__name__", "").startswith("apressure.")
            frame = frame.f_back
        deepest = max(deepest, depth)

    sys.setprofile(profile)
    try:
        await operation
    finally:
        sys.setprofile(None)
    assert codes >= {RESPChannel.call.__code__, RESPChannel.data_received.__code__}
    return deepest


async def test_a_put_needs_few_frames(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put(b"1")
    assert await frames(queue.put(b"2")) <= MOST


async def test_a_consumers_item_needs_few_frames(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2", b"3"])
    async with queue.consumer(prefetch=1) as consumer:
        await anext(consumer)
        assert await frames(anext(consumer)) <= MOST
