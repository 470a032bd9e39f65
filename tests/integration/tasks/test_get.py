"""`get` of a task: it is complete before its parameters are returned, and what a cancellation leaves waits again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apressure import QueueEmptyError, TaskQueue
from tests.integration.conftest import in_time


async def test_a_task_that_was_got_is_complete(url: str) -> None:
    async with TaskQueue[Any]("jobs", url=url, max_attempts=3) as queue:
        task_id = await queue.put({"file": "a.mov"})
        assert await in_time(queue.get()) == {"file": "a.mov"}
        (task,) = [task async for task in queue.tasks()]
        assert (task.id, task.status, task.attempts) == (task_id, "complete", 1)
        assert (await queue.statistics()).complete == 1
        await queue.delete()


@pytest.mark.parametrize("many", [False, True])
async def test_a_get_that_is_cancelled_anywhere_loses_nothing(url: str, many: bool) -> None:
    async with TaskQueue[str]("jobs", url=url, codec="text") as queue:
        await queue.put_many(["a", "b"])
        completed = turns = 0
        while completed < 5 or turns < 300:
            getting: asyncio.Task[Any] = asyncio.ensure_future(queue.get_many(2) if many else queue.get())
            await asyncio.sleep(turns % 60 * 0.0001)
            getting.cancel()
            await asyncio.wait((getting,))
            turns += 1
            if not getting.cancelled():
                completed += 1
                assert getting.result() == (["a", "b"] if many else "a")
                await queue.purge()
                await queue.put_many(["a", "b"])
            waiting = [task async for task in queue.tasks("pending")]
            assert [(task.parameters, task.attempts) for task in waiting] == [("a", 0), ("b", 0)], turns
        await queue.delete()


async def test_a_task_whose_lease_ended_is_not_got(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with TaskQueue[str]("jobs", url=url, codec="text", lease=0.1) as queue:
        await queue.put("0")
        take = queue.steps.take

        async def slowly(*arguments: Any) -> str:
            async with TaskQueue[str]("jobs", url=url, codec="text") as other:
                delivery = await in_time(other.receive())  # when the lease has ended
                await delivery.ack()
            monkeypatch.setattr(queue.steps, "take", take)
            return await take(*arguments)

        monkeypatch.setattr(queue.steps, "take", slowly)
        with pytest.raises(QueueEmptyError):
            await in_time(queue.get(timeout=0))
        await queue.delete()
