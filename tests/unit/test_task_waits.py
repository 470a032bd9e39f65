"""The channels of tasks: what a client keeps of them."""

from __future__ import annotations

import asyncio

from apressure import TaskClient
from apressure.core.waiting import moment
from apressure.tasks.engine.waits import channels_of


async def test_nothing_is_left_of_a_channel_that_nobody_listens_to() -> None:
    """A client with so few connections has none for messages; it tries again from time to time."""
    channels = channels_of(TaskClient(url="redis://127.0.0.1:1", max_connections=2))
    for task_id in (b"a", b"b"):
        await channels.wait(task_id, moment(), 0.001)
    await asyncio.sleep(0)
    assert not channels._parked
