"""One waits, the other ends its wait: a put, a get, a close, a delete, a role that is given back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from apressure import QueueInUseError
from tests.integration.conftest import blocking, eventually
from tests.integration.interoperability.both import (
    KINDS,
    NAME,
    PATIENCE,
    PREFIX,
    SOON,
    a_queue,
    in_thread,
    nothing_left,
    open_queue,
    outcome_of,
)
from tests.reference import ReferenceQueue, snapshot


@pytest.mark.parametrize("kind", ["prose", "v01"])
@pytest.mark.parametrize(("end", "expected"), [("close", "QueueClosedError"), ("delete", "QueueDoesNotExistError")])
async def test_reference_get_blocked_while_we_end_the_queue(
    url: str, db: redis.Redis, scripting: bool, kind: str, end: str, expected: str
) -> None:
    async with open_queue(url, scripting=scripting) as queue:
        await queue.create()
        blocked = await blocking(db, outcome_of(in_thread(url, lambda one: one.get(PATIENCE), **KINDS[kind])))
        await getattr(queue, end)(timeout=PATIENCE)
        assert await blocked == expected
        if end == "close":
            await queue.delete(timeout=PATIENCE)
    assert nothing_left(db)


async def test_reference_put_blocked_while_we_end_the_queue(url: str, db: redis.Redis, scripting: bool) -> None:
    """It holds the producer's role while it waits for room: a close must wait for it, a delete wakes it."""
    async with open_queue(url, scripting=scripting) as queue:
        await queue.create(1)
        await queue.put(b"1")
        blocked = asyncio.create_task(outcome_of(in_thread(url, lambda one: one.put(b"2", PATIENCE))))
        await eventually(lambda: snapshot(db, PREFIX, NAME)[":producer"] == b"reference")
        with pytest.raises(QueueInUseError) as caught:
            await queue.close(timeout=SOON)
        assert (caught.value.role, caught.value.holder) == ("producer", "reference")
        closing = asyncio.create_task(queue.close(timeout=PATIENCE))
        assert await queue.get(timeout=PATIENCE) == b"1"
        assert await blocked is None
        await closing
        assert await queue.get(timeout=PATIENCE) == b"2"
        await queue.delete(timeout=PATIENCE)

        await queue.create(1)
        await queue.put(b"1")
        blocked = asyncio.create_task(outcome_of(in_thread(url, lambda one: one.put(b"2", PATIENCE))))
        # It has looked at `:closed` by then; a delete that came before would look like a close to it.
        await eventually(lambda: any(one["cmd"] == "brpop" and "b" in one["flags"] for one in db.client_list()))
        await queue.delete(timeout=PATIENCE)
        assert await blocked == "QueueDoesNotExistError"
    assert nothing_left(db)


@pytest.mark.parametrize("operation", ["put", "get"])
@pytest.mark.parametrize(("end", "expected"), [("close", "QueueClosedError"), ("delete", "QueueDoesNotExistError")])
async def test_we_are_blocked_while_the_reference_ends_the_queue(
    url: str, db: redis.Redis, scripting: bool, operation: str, end: str, expected: str
) -> None:
    """Our waiting put holds no role, so that a close need not wait; a plain client's would have to."""
    if operation == "put" and end == "close" and not scripting:
        expected_of_close: str | None = "QueueInUseError"
    else:
        expected_of_close = None
    async with open_queue(url, scripting=scripting) as queue:
        await queue.create(1)
        if operation == "put":
            await queue.put(b"1")
        wait = queue.put(b"2", timeout=PATIENCE) if operation == "put" else queue.get(timeout=PATIENCE)
        blocked = await blocking(db, outcome_of(wait))
        patience = SOON if expected_of_close else PATIENCE
        assert await outcome_of(in_thread(url, lambda one: getattr(one, end)(patience))) == expected_of_close
        if expected_of_close:
            assert await queue.get(timeout=PATIENCE) == b"1"
            assert await blocked is None
        else:
            assert await blocked == expected
        if end == "close":
            await queue.delete(timeout=PATIENCE)
    await eventually(lambda: nothing_left(db))


@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_we_wait_for_a_role_that_the_reference_holds(
    url: str, db: redis.Redis, scripting: bool, role: str
) -> None:
    """Stopped in the middle of its operation, it has the role; when it goes on, we are next."""
    reached, go_on = threading.Event(), threading.Event()

    def hook(step: str) -> None:
        if step in {"put SET :producer", "get SET :consumer"}:
            reached.set()
            go_on.wait(PATIENCE)

    async with a_queue(url, scripting=scripting) as queue:
        await queue.put(b"first")
        work: Callable[[ReferenceQueue], Any] = lambda one: one.put(b"theirs") if role == "producer" else one.get()  # noqa: E731
        theirs = asyncio.create_task(in_thread(url, work, hook=hook))
        await asyncio.to_thread(reached.wait, PATIENCE)
        with pytest.raises(QueueInUseError) as caught:
            await (queue.put_nowait(b"no") if role == "producer" else queue.get_nowait())
        assert caught.value.role == role
        ours = await blocking(db, queue.put(b"ours") if role == "producer" else queue.get())
        go_on.set()
        if role == "producer":
            await asyncio.gather(theirs, ours)
            assert [await queue.get() for _ in range(3)] == [b"first", b"theirs", b"ours"]
        else:
            await queue.put(b"second")
            assert (await theirs, await ours) == (b"first", b"second")
    assert nothing_left(db)


async def test_the_reference_waits_for_a_role_that_our_block_holds(url: str, db: redis.Redis) -> None:
    async with a_queue(url) as queue:
        async with queue.producer(close=False, exclusive=True) as producer:
            await producer.put(b"1")
            theirs = await blocking(db, in_thread(url, lambda one: one.put(b"3", PATIENCE)))
            await producer.put(b"2")
        await theirs
        await queue.close()
        async with queue.consumer() as consumer:
            waiting = asyncio.create_task(outcome_of(in_thread(url, lambda one: one.get(PATIENCE))))
            assert [message async for message in consumer] == [b"1", b"2", b"3"]
        assert await waiting == "QueueClosedError"
    assert nothing_left(db)


@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_we_wait_for_a_role_while_the_reference_deletes_the_queue(
    url: str, db: redis.Redis, scripting: bool, role: str
) -> None:
    """First in line for the role, we get it of a queue that is no more, and leave it to the one who deletes."""
    async with open_queue(url, scripting=scripting) as queue:
        await queue.create()
        free = f"{PREFIX}:{NAME}:{role}_free"
        assert db.rpop(free) is not None
        wait = queue.put(b"1", timeout=PATIENCE) if role == "producer" else queue.get(timeout=PATIENCE)
        ours = await blocking(db, outcome_of(wait))
        theirs = await blocking(db, outcome_of(in_thread(url, lambda one: one.delete(PATIENCE))), 2)
        db.lpush(free, 1)
        assert (await ours, await theirs) == ("QueueDoesNotExistError", None)
    await eventually(lambda: nothing_left(db))
