"""`awake_timeout`: the time for which the process stood still does not count."""

from __future__ import annotations

import asyncio
import time

import pytest

from apressure.concurrency.awake import awake_timeout


async def test_it_ends_the_block() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with awake_timeout(0.1):
            await asyncio.sleep(3600)
    assert time.monotonic() - began >= 0.09


async def test_an_answer_that_came_while_the_loop_stood_still_counts() -> None:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str] = loop.create_future()
    async with awake_timeout(0.2):
        await asyncio.sleep(0)
        loop.call_later(0.3, answer.set_result, "here")
        time.sleep(0.5)  # both are due when the loop turns again
        assert await answer == "here"


async def test_nothing_comes_after_the_block() -> None:
    async with awake_timeout(0.01):
        pass
    await asyncio.sleep(0.05)
    with pytest.raises(ValueError, match="no timeout"):
        async with awake_timeout(0.01):
            raise ValueError("no timeout")
    await asyncio.sleep(0.05)


async def test_a_cancellation_is_one() -> None:
    async def wait() -> None:
        async with awake_timeout(10):
            await asyncio.sleep(3600)

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
