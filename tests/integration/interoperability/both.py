"""Both ends of a queue: apressure, and clients that follow the specification step by step."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import redis

from apressure import AsyncQueue
from apressure.exceptions import PressureError
from tests.reference import ProtocolError, ReferenceQueue, connect, own_keys

PREFIX = "__pressure__"
NAME = "jobs"
BOUNDS = (0, 1, 2, 5)
PATIENCE = 10.0
"""Seconds after which a wait that should have ended has failed."""
SOON = 0.02
"""Seconds for a wait that is to end by its timeout."""

ROOT = Path(__file__).parents[3]
KINDS: dict[str, dict[str, Any]] = {"prose": {}, "literal": {"literal": True}, "v01": {"v01": True}}
"""The clients that one meets in the wild."""


def open_queue(url: str, name: str = NAME, **settings: Any) -> AsyncQueue[bytes]:
    return AsyncQueue(name, url=url, prefix=PREFIX, **settings)


async def in_thread(url: str, work: Callable[[ReferenceQueue], Any], **settings: Any) -> Any:
    """Do blocking work with a reference client on a connection of its own."""

    def run() -> Any:
        with connect(url) as client:
            return work(ReferenceQueue(client, NAME, **settings))

    return await asyncio.to_thread(run)


async def outcome_of(awaitable: Awaitable[Any]) -> Any:
    """What an operation gave, or the name of its error: the two clients call theirs by the specification's names."""
    try:
        return await awaitable
    except (PressureError, ProtocolError) as error:
        return type(error).__name__


async def eventually(condition: Callable[[], bool]) -> bool:
    """Whether a condition comes true; it may need the end of somebody's wait."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.01)
    return condition()


def blocked_clients(db: redis.Redis) -> int:
    return int(db.info("clients")["blocked_clients"])


def nothing_left(db: redis.Redis) -> bool:
    """Whether no key is left but those of ours that go away by themselves."""
    return set(db.keys()) == set(own_keys(db)) and not own_keys(db, lasting=True)
