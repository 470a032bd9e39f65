"""For how long a caller waits for the outcome of several steps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apressure.concurrency.settle import Patience


def future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


async def waiting(patience: Patience, answer: asyncio.Future[Any]) -> asyncio.Task[bool]:
    """A task that waits for this answer."""
    task = asyncio.create_task(patience.wait(answer))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_a_caller_that_needs_the_outcome_waits_for_as_long_as_it_takes() -> None:
    patience, answer = Patience(0.0, hurry=False), future()
    task = await waiting(patience, answer)
    answer.set_result(1)
    assert await task


async def test_in_a_hurry_all_answers_together_get_the_timeout() -> None:
    assert not await Patience(0.0, hurry=True).wait(future())
    patience, answer = Patience(60.0, hurry=True), future()
    task = await waiting(patience, answer)
    answer.set_result(1)
    assert await task
    assert await patience.wait(answer)


async def test_a_cancellation_comes_out_when_the_answer_is_there_and_the_next_one_is_waited_for() -> None:
    patience, answer = Patience(60.0, hurry=False), future()
    task = await waiting(patience, answer)
    task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    answer.set_result(1)
    with pytest.raises(asyncio.CancelledError):
        await task
    task = await waiting(patience, last := future())
    last.set_result(1)
    assert await task


async def test_where_no_answer_came_after_a_cancellation_none_is_waited_for() -> None:
    patience = Patience(0.0, hurry=False)
    task = await waiting(patience, future())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    patience._settle_timeout = 3600.0  # nobody waits for so long
    assert not await patience.wait(future())
