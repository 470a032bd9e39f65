"""Both ends of a queue: apressure, and clients that follow the specification step by step."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import redis

from apressure import AsyncQueue
from apressure.exceptions import PressureError
from tests.reference import ProtocolError, ReferenceQueue, connect, own_keys

PREFIX = "__pressure__"
NAME = "jobs"
BOUNDS = (0, 1, 2, 5)
PATIENCE = 30.0
"""Seconds after which a wait that should have ended has failed."""
SOON = 0.02
"""Seconds for a wait that is to end by its timeout."""

ROOT = Path(__file__).parents[3]
KINDS: dict[str, dict[str, Any]] = {"prose": {}, "literal": {"literal": True}, "v01": {"v01": True}}
"""The clients that one meets in the wild."""


def open_queue(url: str, name: str = NAME, **settings: Any) -> AsyncQueue[bytes]:
    return AsyncQueue(name, url=url, prefix=PREFIX, **settings)


@contextlib.asynccontextmanager
async def a_queue(url: str, bound: int = 0, **settings: Any) -> AsyncIterator[AsyncQueue[bytes]]:
    """Create a queue, and delete it at the end."""
    async with open_queue(url, **settings) as queue:
        await queue.create(bound)
        yield queue
        await queue.delete(timeout=PATIENCE)


async def in_thread(url: str, work: Callable[[ReferenceQueue], Any], **settings: Any) -> Any:
    """Do blocking work with a reference client on a connection of its own."""

    def run() -> Any:
        with connect(url) as client:
            return work(ReferenceQueue(client, NAME, **settings))

    return await asyncio.to_thread(run)


async def outcome_of(awaitable: Awaitable[Any]) -> Any:
    """Return the result of an operation, or the name of its error, which is the specification's for both clients."""
    try:
        return await awaitable
    except (PressureError, ProtocolError) as error:
        return type(error).__name__


def nothing_left(db: redis.Redis) -> bool:
    """Whether no key is left but those of ours that go away by themselves."""
    return set(db.keys()) == set(own_keys(db)) and not own_keys(db, lasting=True)
