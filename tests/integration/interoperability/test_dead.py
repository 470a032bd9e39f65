"""A dead client of one kind leaves things behind, and the other kind gets past them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from apressure import AsyncQueue, QueueAlreadyExistsError
from apressure.pressure.engine.keys import Keys
from tests import processes
from tests.integration.conftest import blocking, eventually
from tests.integration.interoperability.both import (
    NAME,
    PATIENCE,
    PREFIX,
    ROOT,
    SOON,
    a_queue,
    in_thread,
    nothing_left,
    open_queue,
    outcome_of,
)
from tests.reference import STRINGS, ReferenceQueue, snapshot


class Died(Exception):
    """What a hook raises for a client that dies there."""


def steps_of(db: redis.Redis, work: Callable[[ReferenceQueue], Any]) -> list[str]:
    """The names of the steps that an operation takes."""
    seen: list[str] = []
    work(ReferenceQueue(db, NAME, hook=seen.append))
    return seen


def die(db: redis.Redis, work: Callable[[ReferenceQueue], Any], number: int) -> None:
    """Do some work, but die before the step of that number."""
    left = iter(range(number))

    def hook(step: str) -> None:
        if next(left, None) is None:
            raise Died(step)

    with pytest.raises(Died):
        work(ReferenceQueue(db, NAME, hook=hook))


async def must_be_new(url: str, db: redis.Redis, queue: AsyncQueue[bytes]) -> None:
    """The queue just created is as good as any."""
    nothing: dict[str, Any] = {"messages": [], **dict.fromkeys(STRINGS)}
    new = nothing | {":bound": b"2", ":producer_free": 1, ":consumer_free": 1, ":not_full": 1, ":closed": 0}
    # A wait for a role that was cancelled before, or ended by its timeout, may take a moment to return it.
    await eventually(lambda: snapshot(db, PREFIX, NAME) == new)
    assert snapshot(db, PREFIX, NAME) == new
    await queue.put(b"1", timeout=PATIENCE)
    assert await in_thread(url, lambda one: one.get(PATIENCE)) == b"1"
    await queue.delete(timeout=PATIENCE)
    assert nothing_left(db)


async def test_creating_what_a_dead_client_has_half_deleted(url: str, db: redis.Redis, scripting: bool) -> None:
    async with open_queue(url, scripting=scripting) as queue:

        def live() -> ReferenceQueue:
            reference = ReferenceQueue(db, NAME)
            reference.create(1)
            reference.put(b"1")
            return reference

        live()
        steps = steps_of(db, ReferenceQueue.delete)
        existed = steps.index("delete DEL :bound")
        for number in range(existed + 1, len(steps)):
            live()
            die(db, ReferenceQueue.delete, number)
            await queue.create(2)
            await must_be_new(url, db, queue)


async def test_creating_what_a_dead_client_has_half_created(url: str, db: redis.Redis, scripting: bool) -> None:
    """By its `:bound` it exists, which is all that the specification says. Deleting it finds its roles taken."""

    def create(reference: ReferenceQueue) -> None:
        reference.create(1)

    async with open_queue(url, scripting=scripting) as queue:
        steps = steps_of(db, create)
        await queue.delete(timeout=PATIENCE)
        for number in range(1, len(steps)):
            die(db, create, number)
            with pytest.raises(QueueAlreadyExistsError):
                await queue.create(2)
            assert await queue.create(2, exist_ok=True) is False
            whole = "create LPUSH :consumer_free" in steps[:number]
            assert await outcome_of(queue.delete(timeout=SOON)) == (None if whole else "QueueInUseError")
            await queue.create(2)
            await must_be_new(url, db, queue)


DIES_WITH_A_LEASE = """
import asyncio, os, sys
from apressure import AsyncQueue

async def main():
    async with AsyncQueue(sys.argv[2], url=sys.argv[1], prefix=sys.argv[3]) as queue:
        await queue.receive(lease=0.2)
        os._exit(0)

asyncio.run(main())
"""


async def die_with_a_lease(url: str) -> None:
    """A client of ours in another process receives a message, and ends without a word."""
    command = [sys.executable, "-c", DIES_WITH_A_LEASE, url, NAME, PREFIX]
    await asyncio.to_thread(processes.run, command, cwd=ROOT, check=True)


LIMIT = Keys(PREFIX, NAME).claim("consumer") + b"_until"
"""Until when a claim is waited for, in milliseconds since the epoch."""


def leave_a_claim(db: redis.Redis, until: int = 1) -> None:
    """The server gave the consumer's role to a wait of ours whose client had died; by default its time is over."""
    keys = Keys(PREFIX, NAME)
    assert db.rpop(keys.free("consumer")) is not None
    db.lpush(keys.claim("consumer"), 1)
    db.set(LIMIT, until)


async def until_done(task: asyncio.Task[Any], step: Callable[[], Awaitable[Any]]) -> Any:
    """Let steps of ours come by until somebody else's wait ends. Returns what that gave."""
    async with asyncio.timeout(PATIENCE):
        while not task.done():
            await outcome_of(step())
            await asyncio.sleep(0.05)
    return await task


@pytest.mark.parametrize("held_by", ["lease", "claim"])
async def test_the_reference_gets_past_a_dead_client_of_ours(url: str, db: redis.Redis, held_by: str) -> None:
    """Any step of ours, here a put, heals the consumer's role; what was in flight is first in line again."""
    async with a_queue(url) as queue:
        await queue.put_many([b"1", b"2"])
        if held_by == "lease":
            await die_with_a_lease(url)
        else:
            leave_a_claim(db)

        def get_three(reference: ReferenceQueue) -> list[bytes]:
            return [reference.get(PATIENCE) for _ in range(3)]

        getting = await blocking(db, in_thread(url, get_three))
        got = await until_done(getting, lambda: queue.put(b"3"))
        assert got == [b"1", b"2", b"3"]
    assert nothing_left(db)


@pytest.mark.parametrize("held_by", ["lease", "claim"])
async def test_a_foreign_delete_gets_past_a_dead_client_of_ours(url: str, db: redis.Redis, held_by: str) -> None:
    """The queue heals although its `:bound` is gone: whatever step of ours comes by sees to it."""
    async with open_queue(url) as queue:
        await queue.create()
        await queue.put(b"1")
        if held_by == "lease":
            await die_with_a_lease(url)
        else:
            leave_a_claim(db)
        deleting = await blocking(db, outcome_of(in_thread(url, lambda one: one.delete(PATIENCE / 2))))
        assert await until_done(deleting, queue.get_nowait) is None
    assert nothing_left(db)


async def test_the_producer_does_not_put_off_the_end_of_a_consumer_claim(url: str, db: redis.Redis) -> None:
    """Or the renewals of a busy producer would keep a dead client's claim alive for ever."""
    async with a_queue(url) as queue:
        far = 1 << 50
        leave_a_claim(db, until=far)
        limits = []
        async with queue.producer(close=False, exclusive=True) as producer:
            await producer.put(b"1")
            limits.append(db.get(LIMIT))
        limits.append(db.get(LIMIT))
        await queue.put(b"2")
        limits.append(db.get(LIMIT))
        await queue.close()
        limits.append(db.get(LIMIT))
        # The first step shortens a claim that is too long. (A machine that stands still for seconds heals it.)
        assert len({limit for limit in limits if limit is not None}) == 1
        db.set(LIMIT, 1)
    assert nothing_left(db)
