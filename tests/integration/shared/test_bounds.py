"""A bound that grows wakes those who wait for room: clients here do not look for themselves."""

from __future__ import annotations

import asyncio
import contextlib
from types import ModuleType
from typing import Any

import pytest

from apressure import AsyncQueue, EventQueue, TaskQueue
from apressure.events.engine import waits as event_waits
from apressure.pressure.engine import waits
from apressure.tasks.engine import waits as task_waits
from tests.integration.conftest import in_time
from tests.patience import be_patient

KINDS = {"queue": (AsyncQueue, waits), "events": (EventQueue, event_waits), "tasks": (TaskQueue, task_waits)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("later", [False, True], ids=["waiting", "delayed"])
@pytest.mark.parametrize("bound", [0, 50])
async def test_a_bound_that_grows_wakes_all_who_wait(
    url: str, kind: str, later: bool, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, module = KINDS[kind]
    patient(monkeypatch, module)
    async with contextlib.AsyncExitStack() as stack:

        async def opened() -> Any:
            return await stack.enter_async_context(made("jobs", url=url, codec="raw"))

        queue, *others = [await opened() for _ in range(5)]
        await queue.create(bound=1)
        await queue.put(b"0", delay=3600 if later else None)
        putting = [asyncio.ensure_future(other.put_many([b"1", b"2", b"3"])) for other in others]
        while sum([(await other.statistics()).waiting_putters for other in others]) < len(others):
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)  # until they block
        await queue.set_bound(bound)
        await in_time(asyncio.gather(*putting))
        assert await queue.qsize() == 12 + (not later)
        await queue.delete()


def patient(patch: pytest.MonkeyPatch, module: ModuleType) -> None:
    if module is task_waits:
        patch.setattr(task_waits, "POLL", 600.0)
    else:
        be_patient(patch, module)
