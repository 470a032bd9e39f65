"""An outcome tells its one waiter at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apressure.events.server.outcomes import Outcome


async def test_the_callback_runs_at_once() -> None:
    outcome: Outcome[int] = Outcome()
    told: list[int] = []
    outcome.call_at_once(lambda one: told.append(one.result()))
    assert not outcome.done()
    outcome.finish(1)
    assert told == [1]
    outcome.finish(2)  # nobody waits any more
    assert (told, outcome.result(), outcome.exception()) == ([1], 1, None)


async def test_an_error_is_raised_to_the_one_that_asks() -> None:
    outcome: Outcome[int] = Outcome()
    outcome.finish(ValueError("no"))
    assert outcome.done()
    assert not outcome.cancelled()
    assert isinstance(outcome.exception(), ValueError)
    with pytest.raises(ValueError, match="no"):
        outcome.result()


async def test_a_callback_that_comes_late_runs_in_the_next_turn() -> None:
    outcome: Outcome[int] = Outcome()
    outcome.finish(1)
    told: list[int] = []
    outcome.call_at_once(lambda one: told.append(one.result()))
    assert not told
    await asyncio.sleep(0)
    assert told == [1]


async def test_a_callback_that_fails_is_reported_and_does_not_stop_the_one_that_tells() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    outcome: Outcome[int] = Outcome()
    outcome.call_at_once(lambda _: 1 / 0)
    outcome.finish(1)
    assert [type(one["exception"]) for one in reported] == [ZeroDivisionError]


async def test_cancelled_it_ignores_what_comes() -> None:
    outcome: Outcome[int] = Outcome()
    told: list[bool] = []
    outcome.call_at_once(lambda one: told.append(one.cancelled()))
    outcome.cancel()
    outcome.finish(1)
    assert told == [True]
    with pytest.raises(asyncio.CancelledError):
        outcome.result()


async def test_a_task_waits_for_it() -> None:
    async def wait(outcome: Outcome[int]) -> int:
        return await outcome

    known: Outcome[int] = Outcome()
    known.finish(1)
    assert await known == 1

    late: Outcome[int] = Outcome()
    task = asyncio.create_task(wait(late))
    await asyncio.sleep(0)
    late.finish(2)
    assert await task == 2

    unwanted: Outcome[int] = Outcome()
    task = asyncio.create_task(wait(unwanted))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert unwanted.cancelled()

    both: Outcome[int] = Outcome()
    task = asyncio.create_task(wait(both))
    await asyncio.sleep(0)
    both.finish(3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert both.result() == 3  # the one that cancelled can see what came, and give it back
