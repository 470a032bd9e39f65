"""Queues of events for tests: what a queue has is checked, and deleted, at the end of each test."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import hashlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

import pytest
import redis

from apressure import EventQueue, QueueDoesNotExistError
from apressure.connection import sender
from apressure.connection.wire.script import Script
from apressure.events.engine import waits
from tests.okq import Okq

PATIENCE = 90.0
"""Seconds after which an operation that should have ended has failed."""


class Open(Protocol):
    """`await open_queue("jobs", bound=2)`: an open queue; each has a client of its own."""

    async def __call__(self, name: str = "jobs", *, bound: int | None = None, **options: Any) -> EventQueue[Any]: ...


@pytest.fixture
def db(url: str) -> Iterator[redis.Redis]:
    """A plain client, to look at the keys and to change them."""
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture
def okq(db: redis.Redis) -> Okq:
    return Okq(db)


@pytest.fixture
async def open_queue(url: str) -> AsyncIterator[Open]:
    names = set()
    async with contextlib.AsyncExitStack() as stack:

        async def opener(name: str = "jobs", *, bound: int | None = None, **options: Any) -> EventQueue[Any]:
            names.add(name)
            queue: EventQueue[Any] = EventQueue(name, **{"url": url, **options})
            await stack.enter_async_context(queue)
            if bound is not None:
                await queue.create(bound)
            return queue

        yield opener
    for name in names:
        async with EventQueue(name, url=url) as queue:
            with contextlib.suppress(QueueDoesNotExistError):
                await queue.delete()


@pytest.fixture
async def queue(open_queue: Open) -> EventQueue[bytes]:
    return await open_queue()


@pytest.fixture
def long_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that miss a wake-up look again after 10 minutes only: a test that passes has missed none."""
    monkeypatch.setattr(waits, "SLICE", 600)
    monkeypatch.setattr(waits.Waiter.__init__, "__defaults__", (600, None, False))
    original = sender.script

    @functools.cache
    def patient(room: str, name: str) -> Script:
        made = copy.copy(original(room, name))
        for number in (b"WATCH_MS = 6000", b"SCAN_MS = 10000"):
            assert b"%b " % number in made.source
            made.source = made.source.replace(b"%b " % number, b"%b000 " % number)
        made.sha = hashlib.sha1(made.source, usedforsecurity=False).hexdigest().encode()
        return made

    monkeypatch.setattr(sender, "script", patient)


async def in_time(operation: Any) -> Any:
    """Return the result of an operation that has to end."""
    async with asyncio.timeout(PATIENCE):
        return await operation


async def eventually(condition: Any) -> None:
    """Wait until a condition comes true."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def blocked(db: redis.Redis, clients: int = 1) -> None:
    """Wait until the server says that so many clients wait in a blocking command."""
    await eventually(lambda: db.info("clients")["blocked_clients"] >= clients)


def consistent(db: redis.Redis, name: str = "jobs") -> bool:
    """Whether each id has contents, each contents an id, each claim a lock or an entry in the index."""
    waiting = db.lrange(Okq.key(name), 0, -1)
    claimed = db.lrange(Okq.key(name, "claimed"), 0, -1)
    listed = [*waiting, *claimed]
    indexed = set(db.zrange(f"apressure:{Okq.key(name)}:expiry", 0, -1))
    return (
        len(set(listed)) == len(listed)
        and set(listed) == set(db.hkeys(Okq.key(name, "items")))
        and set(claimed) == indexed
    )
