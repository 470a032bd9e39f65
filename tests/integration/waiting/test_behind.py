"""A step that stands behind a wait: the server runs it in the turn in which the wait ends, and never for nobody.

While these tests put, their event loop stands still: what is taken then, was taken by such a step.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import pytest
import redis

from apressure import AsyncQueue, EventQueue
from apressure.connection.waiting.waiter import FOLLOWING, Behind, Waiter
from apressure.connection.wire.script import Request
from apressure.testing.proxy import Proxy
from tests.integration.conftest import blocked, eventually

MESSAGES, LEASE = "__pressure__:jobs", "apressure:__pressure__:jobs:consumer_lease"
EVENTS, WATCH = "queue:{jobs}", "apressure:queue:{jobs}:watch"

Taken = tuple[bytes, int]
"""An item, and how often it has been delivered."""


class Taker(NamedTuple):
    """One who waits for messages.

    Attributes:
        take: Waits for the next one, and acknowledges it.
        put: Puts one while this event loop stands still.
        waiting: Returns how many wait.
        look: Returns when the server has carried out all steps that were sent before.
    """

    take: Callable[[], Awaitable[Taken]]
    put: Callable[[bytes], None]
    waiting: Callable[[], int]
    look: Callable[[], Awaitable[object]]


@contextlib.asynccontextmanager
async def taker(url: str, db: redis.Redis, how: str, line: str = "") -> AsyncIterator[Taker]:
    """One who has waited before, so that the connection of its waits is open; through a `line`, if there is one."""
    kind: type[Any] = AsyncQueue if how in ("consumer", "member") else EventQueue

    async def put_one(item: bytes) -> None:
        async with kind("jobs", url=url) as queue:
            await queue.put(item)

    def put(item: bytes) -> None:
        thread = threading.Thread(target=lambda: asyncio.run(put_one(item)))
        thread.start()
        thread.join()

    async with contextlib.AsyncExitStack() as stack:
        queue = await stack.enter_async_context(kind("jobs", url=line or url))
        await queue.create()
        stack.push_async_callback(queue.delete)
        deliver = queue.receive
        if how != "receive":
            consumer = queue.consumer(ack="manual", shared=True) if how == "member" else queue.consumer(ack="manual")
            deliver = (await stack.enter_async_context(consumer)).__anext__

        async def take() -> Taken:
            delivery = await deliver()
            await delivery.ack()
            return delivery.item, delivery.attempts

        waits = EVENTS if kind is EventQueue else MESSAGES
        one = Taker(take, put, lambda: db.llen(waits), queue.statistics)
        await meanwhile(blocked(db), one.take(), lambda: put(b"first"))
        yield one


async def meanwhile(condition: Awaitable[object], waits: Awaitable[Taken], act: Callable[[], object]) -> Taken:
    """Wait for a message, and do something as soon as a condition comes true."""

    async def then() -> None:
        await condition
        act()

    acting = asyncio.create_task(then())
    taken = await waits
    await acting
    return taken


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Behind]:
    """The steps that were sent behind waits."""
    steps: list[Behind] = []

    def follow(self: Waiter, behind: Behind, request: Request) -> None:
        steps.append(behind)
        follow_it(self, behind, request)

    follow_it = Waiter.follow
    monkeypatch.setattr(Waiter, "follow", follow)
    return steps


async def another(sent: list[Behind]) -> None:
    """Wait until one more step stands behind a wait."""
    before = len(sent)
    await eventually(lambda: len(sent) > before)
    await asyncio.sleep(0)  # it leaves in the next turn of the event loop


def stays(value: int, of: Callable[[], int]) -> None:
    """Check that a figure is this, and stays so while the server has time to change it."""
    for _ in range(10):
        assert of() == value
        time.sleep(0.01)


async def cancelled_wait(sent: list[Behind], one: Taker, act: Callable[[], object] = bool) -> None:
    """Wait until a step stands behind the wait; then cancel it in the turn in which something else happens."""
    with pytest.raises(asyncio.CancelledError):
        task = asyncio.current_task()
        assert task is not None

        def then() -> None:
            act()
            task.cancel()

        await meanwhile(another(sent), one.take(), then)
    task.uncancel()
    await one.look()


every_way = pytest.mark.parametrize("how", ["consumer", "member", "events", "receive"])


@every_way
async def test_the_server_takes_the_message_in_the_turn_in_which_it_ends_the_wait(
    url: str, db: redis.Redis, sent: list[Behind], how: str
) -> None:
    async with taker(url, db, how) as one:
        for item in (b"1", b"2"):

            def taken_at_once(item: bytes = item) -> None:
                one.put(item)
                assert one.waiting() == 0

            assert await meanwhile(another(sent), one.take(), taken_at_once) == (item, 1)


@every_way
async def test_a_wait_that_was_cancelled_takes_nothing(url: str, db: redis.Redis, sent: list[Behind], how: str) -> None:
    async with taker(url, db, how) as one:
        await cancelled_wait(sent, one)
        one.put(b"1")
        stays(1, one.waiting)
        assert await one.take() == (b"1", 1)


@every_way
async def test_what_was_taken_for_a_wait_that_is_cancelled_in_that_turn_comes_next(
    url: str, db: redis.Redis, sent: list[Behind], how: str
) -> None:
    async with taker(url, db, how) as one:

        def taken_at_once() -> None:
            one.put(b"1")
            assert one.waiting() == 0

        await cancelled_wait(sent, one, taken_at_once)
        one.put(b"2")
        assert [await one.take(), await one.take()] == [(b"1", 1), (b"2", 1)]


@every_way
async def test_cancelled_waits_do_not_pile_up(url: str, db: redis.Redis, sent: list[Behind], how: str) -> None:
    async with taker(url, db, how) as one:
        for _ in range(FOLLOWING + 2):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await one.take()
            await one.look()
        assert len(sent) <= FOLLOWING + 1  # and the one before
        one.put(b"1")
        stays(1, one.waiting)
        assert await one.take() == (b"1", 1)
        assert await meanwhile(blocked(db), one.take(), lambda: one.put(b"2")) == (b"2", 1)


@every_way
async def test_one_that_has_died_takes_nothing(url: str, db: redis.Redis, sent: list[Behind], how: str) -> None:
    """Its connection is still there, as when its machine has lost power; its lease or its watch has ended."""
    async with taker(url, db, how) as one:

        def die_and_put() -> None:
            if how in ("events", "receive"):
                db.hset(WATCH, "until", 1)
            elif how == "consumer":
                db.hset(LEASE, "deadline", 1)
            else:
                (member,) = (field for field in db.hkeys(LEASE) if b":" in field)
                db.hset(LEASE, member, b"1:" + db.hget(LEASE, member).partition(b":")[2])
            if how in ("events", "receive"):
                one.put(b"1")
            else:
                db.lpush(MESSAGES, b"1")  # a put of ours would end the lease
            stays(1, one.waiting)

        assert await meanwhile(another(sent), one.take(), die_and_put) == (b"1", 1)


@every_way
async def test_a_server_that_has_forgotten_the_scripts(url: str, db: redis.Redis, sent: list[Behind], how: str) -> None:
    async with taker(url, db, how) as one:

        def forget_and_put() -> None:
            db.script_flush()
            one.put(b"1")

        assert await meanwhile(another(sent), one.take(), forget_and_put) == (b"1", 1)


@every_way
async def test_a_connection_that_is_lost(url: str, db: redis.Redis, sent: list[Behind], how: str) -> None:
    async with taker(url, db, how) as one:

        def cut_and_put() -> None:
            for client in db.client_list():
                if "b" in client["flags"]:
                    db.client_kill_filter(_id=client["id"])
            one.put(b"1")
            stays(1, one.waiting)

        assert await meanwhile(another(sent), one.take(), cut_and_put) == (b"1", 1)


@every_way
@pytest.mark.parametrize("cancelled", [False, True], ids=["waiting", "cancelled"])
async def test_one_that_hears_neither_that_the_wait_has_ended_nor_what_was_taken(
    url: str, db: redis.Redis, sent: list[Behind], how: str, cancelled: bool
) -> None:
    """It comes at once all the same, and not when its lease ends."""
    with Proxy(url) as line:
        async with taker(url, db, how, line.url) as one:

            def put_and_lose_the_replies() -> None:
                line.trouble.lose_next = 1
                one.put(b"1")
                assert one.waiting() == 0

            if cancelled:
                await cancelled_wait(sent, one, put_and_lose_the_replies)
                assert await one.take() == (b"1", 1)
            else:
                assert await meanwhile(another(sent), one.take(), put_and_lose_the_replies) == (b"1", 1)
            assert line.cuts == 1
