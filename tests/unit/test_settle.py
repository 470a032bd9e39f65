"""For how long a caller waits for the outcome of several steps."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest

from apressure.concurrency.settle import Ending, Patience, left_of, wait_shielded


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


async def test_at_the_end_of_a_service_all_waits_share_one_limit() -> None:
    ending = Ending()
    with ending.limiting():
        assert left_of(60.0) == 60.0, "a handler runs"
        ending.since = time.monotonic() - 50.0
        assert 0.0 < left_of(60.0) <= 10.0
        assert left_of(math.inf) == math.inf
        assert not await wait_shielded(future(), 50.0)
        assert not await Patience(50.0, hurry=True).wait(future())
        with ending.limiting():  # that of a pipe, and of its stage
            pass
        assert left_of(50.0) == 0.0
    assert ending.since is None, "tasks may still see it"
    assert left_of(60.0) == 60.0
