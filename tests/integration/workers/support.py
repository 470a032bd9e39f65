"""Registrations of workers that are none."""

from __future__ import annotations

import asyncio
from typing import Any

from apressure.core import registration
from apressure.core.workers import Letter, encode
from tests.integration.conftest import in_time


def record_of(**more: Any) -> dict[str, Any]:
    doing = registration.Doing(3, 2, 1)._asdict()
    about = {"kind": "serve", "handler": "handle", "host": "far", "pid": 7, "version": "1", "age": 60.5}
    return {**about, **doing, **more}


async def beat(queue: Any, name: bytes, record: bytes, letter: bytes = Letter.WORKS, lasts: float = 60) -> Any:
    answers: asyncio.Queue[Any] = asyncio.Queue()
    queue.registry.beat(name, letter, record, lasts, answers.put_nowait)
    return await in_time(answers.get())


async def registers(queue: Any) -> None:
    """Do all that a worker, and an operator, may do there."""
    assert await beat(queue, b"mine/1", encode(record_of())) == 0
    assert [worker.id for worker in (await queue.statistics()).workers] == ["mine"]
    assert await queue.drain("mine") == 1
    assert await beat(queue, b"mine/1", encode(record_of())) == 1
    queue.registry.leave(b"mine/1")
    while (await queue.statistics()).workers:  # nobody waits for a leave
        await asyncio.sleep(0.01)
