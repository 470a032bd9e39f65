"""The part of the contract that is about requests and their replies: `ask`, `reply`, and `serve(reply=True)`."""

from __future__ import annotations

import asyncio
import contextlib
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from apressure import Backoff, serve
from apressure.exceptions import (
    ClientClosedError,
    DeadlineError,
    DeadlineOutcomeUnknownError,
    NoReplyError,
    OperationUnblockedError,
    PressureError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
    QueueInUseError,
    RequestFailedError,
)
from apressure.testing.contract.cancellation import everywhere
from apressure.testing.contract.steps import ITEMS, PATIENCE, Opener, begun, drained, fails, in_time, unblocked

SOON = Backoff(first=0.001, most=0.001)
LATER = 0.3
"""Seconds after which a request that nobody handles is given up."""


class RequestContract:
    """A program that asks gets what the handler of its message has returned, or learns that it will not."""

    @pytest.mark.parametrize(
        "value", [None, True, 0, -1.5, "", "text", "7", [1, "a"], {"deep": {"er": [None]}}, "ä\n\u2028"], ids=repr
    )
    async def test_a_reply_is_what_the_handler_has_returned(self, open_queue: Opener, value: Any) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()

        async def handle(item: bytes) -> Any:
            assert item == b"7"
            return value

        async with serving(handle, other):
            assert await in_time(queue.ask(b"7", PATIENCE)) == value
        assert (await queue.statistics()).length == (await queue.statistics()).in_flight == 0

    async def test_a_consumer_replies_by_hand(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        asking, delivery = await asked(queue, other)
        await delivery.reply({"got": delivery.item.decode()})
        assert delivery.settled
        assert await in_time(asking) == {"got": "1"}
        asking = await begun(queue.ask(b"2", PATIENCE))
        async with other.consumer("manual") as consumer:
            async for delivery in consumer:
                await delivery.reply(delivery.item.decode())
                break
        assert await in_time(asking) == "2"
        with pytest.raises(RuntimeError):
            await delivery.reply("again")

    async def test_what_nobody_has_asked_is_acknowledged(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put_many(ITEMS[:3])
        await (await in_time(queue.receive())).reply("nobody listens")
        await queue.close()
        handled = []

        async def handle(item: bytes) -> str:
            handled.append(item)
            return "nobody listens"

        await in_time(serve(handle, queue, reply=True, signals=()))
        assert handled == ITEMS[1:3]
        assert await drained(queue) == []

    async def test_each_of_many_gets_its_own(self, open_queue: Opener) -> None:
        queues = [await open_queue() for _ in range(3)]
        await queues[0].create(bound=10)

        async def handle(item: bytes) -> str:
            await asyncio.sleep(0.001 * (int(item) % 7))
            return "re: " + item.decode()

        async with serving(handle, queues[0], concurrency=5), serving(handle, queues[1], concurrency=5):
            asked = [queues[number % 3].ask(b"%d" % number, PATIENCE) for number in range(150)]
            assert await in_time(asyncio.gather(*asked)) == [f"re: {number}" for number in range(150)]

    @pytest.mark.parametrize("way", ["deliveries", "batch", "thread", "key", "timeout"])
    async def test_each_way_of_handling_replies(self, open_queue: Opener, way: str) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()

        async def handle(item: bytes) -> str:
            await asyncio.sleep(0)
            return "re: " + item.decode()

        async def handle_delivery(delivery: Any) -> Any:
            if delivery.item == b"1":
                await delivery.reply("by hand")
            return "re: " + delivery.item.decode()

        async def handle_batch(items: list[bytes]) -> list[str]:
            return ["re: " + item.decode() for item in items]

        def handle_blocking(item: bytes) -> str:
            return "re: " + item.decode()

        handlers: dict[str, Any] = {"deliveries": handle_delivery, "batch": handle_batch, "thread": handle_blocking}
        handler = handlers.get(way, handle)
        with ThreadPoolExecutor(1) as threads:
            ways: dict[str, dict[str, Any]] = {
                "deliveries": {"deliveries": True}, "batch": {"batch": 3}, "thread": {"executor": threads},
                "key": {"key": lambda item: item}, "timeout": {"timeout": PATIENCE},
            }  # fmt: skip
            async with serving(handler, other, **ways[way]):
                asked = [queue.ask(item, PATIENCE) for item in ITEMS[:5]]
                replies = await in_time(asyncio.gather(*asked))
        expected = [f"re: {number}" for number in range(5)]
        if way == "deliveries":
            expected[1] = "by hand"
        assert replies == expected

    async def test_no_reply_in_time(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        error = await fails(NoReplyError, queue.ask(b"1", LATER))
        assert isinstance(error, TimeoutError)
        assert (getattr(error, "name", ""), bool(getattr(error, "id", ""))) == (queue.name, True)
        await asyncio.sleep(LATER)
        await fails(QueueEmptyError, other.receive(timeout=0))  # nobody works for one who has left
        assert (await queue.statistics()).expired == 1

        async def handle(item: bytes) -> str:
            await asyncio.sleep(0 if item == b"2" else 2 * LATER)
            return item.decode()

        async with serving(handle, other):
            await fails(NoReplyError, queue.ask(b"1", LATER))
            assert await in_time(queue.ask(b"2", PATIENCE)) == "2"

    async def test_what_fails_is_tried_again(self, open_queue: Opener) -> None:
        queue, other = await open_queue(max_attempts=3), await open_queue(max_attempts=3)
        await queue.create()
        attempts = []

        async def handle(item: bytes) -> str:
            attempts.append(item)
            if item == b"bad" or len(attempts) < 3:
                raise ValueError("not now")
            return "done"

        async with serving(handle, other):
            assert await in_time(queue.ask(b"good", PATIENCE)) == "done"
            assert attempts == [b"good"] * 3
            error: Any = await fails(RequestFailedError, queue.ask(b"bad", PATIENCE))
        assert "not now" in error.error
        assert error.error in str(error)
        assert error.name == queue.name
        letters = await queue.dead_letters()
        assert [letter.item for letter in letters] == [b"bad"]

    async def test_a_reply_that_cannot_be_sent_is_a_failure(self, open_queue: Opener) -> None:
        queue, other = await open_queue(max_attempts=1), await open_queue(max_attempts=1)
        await queue.create()

        async def handle(item: bytes) -> Any:
            return {b"nan": math.nan}.get(item, object())

        async with serving(handle, other):
            error: Any = await fails(RequestFailedError, queue.ask(b"nan", PATIENCE))
            assert "ValueError" in error.error
            error = await fails(RequestFailedError, queue.ask(b"object", PATIENCE))
            assert "TypeError" in error.error
        asking = await begun(queue.ask(b"1", PATIENCE))
        delivery = await in_time(other.receive())
        await fails(TypeError, delivery.reply(object()))
        assert not delivery.settled
        await delivery.reply("well")
        assert await in_time(asking) == "well"

    async def test_a_batch_needs_a_reply_for_each(self, open_queue: Opener) -> None:
        queue, other = await open_queue(max_attempts=1), await open_queue(max_attempts=1)
        await queue.create()

        async def handle(items: list[bytes]) -> Any:
            return "ab" if items == [b"1"] else [1, 2, 3]

        async with serving(handle, other, batch=1):
            for item in ITEMS[1:3]:
                error: Any = await fails(RequestFailedError, queue.ask(item, PATIENCE))
                assert "must return a list" in error.error

    async def test_a_purge_tells_those_who_wait(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        asking = await begun(queue.ask(b"1", PATIENCE))
        assert await in_time(other.peek()) == b"1"
        assert await other.purge() == 1
        await fails(NoReplyError, asking)

    @pytest.mark.parametrize("in_flight", [False, True])
    async def test_a_deletion_tells_those_who_wait(self, open_queue: Opener, in_flight: bool) -> None:
        queue, other, owner = await open_queue(), await open_queue(), await open_queue()
        await queue.create()
        asking = await begun(queue.ask(b"1", 3 * PATIENCE))
        delivery = await in_time(other.receive())
        if not in_flight:
            await delivery.nack()
        with contextlib.suppress(QueueInUseError):  # of an AsyncQueue: it has ended all the same
            await owner.delete(timeout=0)
        await fails(NoReplyError, asking)
        if in_flight:
            with contextlib.suppress(PressureError):
                await delivery.reply("to nobody")
        with contextlib.suppress(QueueDoesNotExistError):
            await in_time(owner.delete())
        await queue.create()
        asking = await begun(queue.ask(b"2", PATIENCE))
        await (await in_time(other.receive())).reply("anew")
        assert await in_time(asking) == "anew"

    async def test_what_comes_after_the_death_of_its_consumer_is_replied_to(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        asking = await begun(queue.ask(b"1", PATIENCE))
        lost = await in_time(other.receive(lease=0.5))
        delivery = await in_time(queue.receive())
        await delivery.reply("second")
        assert await in_time(asking) == "second"
        with contextlib.suppress(Exception):
            await lost.reply("first")

    async def test_a_queue_that_takes_nothing(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create(bound=1)
        await queue.put(b"0")
        await fails(QueueFullError, queue.ask(b"1", 0.05))
        asking = await begun(queue.ask(b"1", PATIENCE))
        await (await in_time(other.receive())).ack()
        await (await in_time(other.receive())).reply("there was room")
        assert await in_time(asking) == "there was room"
        await queue.close()
        await fails(QueueClosedError, queue.ask(b"1", PATIENCE))
        await queue.delete()
        await fails(QueueDoesNotExistError, queue.ask(b"1", PATIENCE))

    async def test_a_request_that_waited_for_room_expires_with_its_asker(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create(bound=1)
        await queue.put(b"0")
        asking = asyncio.ensure_future(queue.ask(b"1", 3 * LATER))
        await asyncio.sleep(2 * LATER)
        first = await in_time(other.receive())
        (outcome,) = await in_time(asyncio.gather(asking, return_exceptions=True))
        assert isinstance(outcome, (NoReplyError, QueueFullError))
        await asyncio.sleep(LATER)
        await fails(QueueEmptyError, other.receive(timeout=0))
        await first.ack()

    async def test_a_deadline_tells_that_a_request_may_be_handled(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create(bound=1)
        await fails(DeadlineOutcomeUnknownError, queue.ask(b"1", PATIENCE, deadline=LATER))
        delivery = await in_time(other.receive())
        await queue.put(b"2")
        error = await fails(DeadlineError, queue.ask(b"3", PATIENCE, deadline=LATER))
        assert not isinstance(error, DeadlineOutcomeUnknownError)
        await delivery.reply("too late")
        assert await drained(queue) == [b"2"]

    async def test_a_wait_for_a_reply_is_unblocked(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        asking, delivery = await asked(queue, other)
        await unblocked(queue, asking)
        await fails(OperationUnblockedError, asking)
        await delivery.reply("to nobody")
        await fails(NoReplyError, queue.ask(b"2", LATER))

    async def test_a_closed_object_waits_no_more(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        asking, delivery = await asked(queue, other)
        await queue.aclose()
        await fails(ClientClosedError, asking)
        await delivery.reply("to nobody")
        await fails(ClientClosedError, queue.ask(b"2", PATIENCE))

    async def test_a_pause_and_keys_hold_for_requests(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.pause()
        first = await begun(queue.ask(b"1", PATIENCE, key="a"))
        second = await begun(queue.ask(b"2", PATIENCE, key="a"))
        await fails(QueueEmptyError, other.receive(timeout=0))
        await queue.resume()
        delivery = await in_time(other.receive())
        await fails(QueueEmptyError, other.receive(timeout=0))
        await delivery.reply("one")
        await (await in_time(other.receive())).reply("two")
        assert sorted([await in_time(first), await in_time(second)]) == ["one", "two"]

    async def test_arguments_that_are_refused(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        for timeout in (0, -1, math.nan, math.inf, True, None, "1"):
            await fails((ValueError, TypeError), queue.ask(b"1", timeout))  # type: ignore[arg-type]
        await fails(ValueError, queue.ask(b"1", 1.0, key=""))
        await fails(TypeError, queue.ask(object(), 1.0))
        assert await drained(queue) == []

    async def test_cancelled_the_request_stays_or_was_not_put(self, open_queue: Opener) -> None:
        answering: asyncio.Task[None]

        async def ask(queue: Any) -> Any:
            nonlocal answering
            answering = asyncio.ensure_future(_answered(queue))
            return await queue.ask(b"3", PATIENCE)

        async def check(queue: Any, reply: Any) -> None:
            answering.cancel()
            await in_time(asyncio.wait((answering,)))
            assert reply in (None, "3")
            found = await drained(queue)
            assert set(found) <= set(ITEMS[: 4 if reply is None else 3])
            assert len(found) == len(set(found))

        await everywhere(open_queue, ask, check)


async def _answered(queue: Any) -> None:
    """Reply to everything."""
    async with queue.consumer("manual") as deliveries:
        async for delivery in deliveries:
            await delivery.reply(delivery.item.decode())


@contextlib.asynccontextmanager
async def serving(handle: Any, queue: Any, **options: Any) -> Any:
    """A service that replies, for the time of a block."""
    stop = asyncio.Event()
    service = asyncio.ensure_future(serve(handle, queue, reply=True, retry=SOON, signals=(), stop=stop, **options))
    try:
        yield
    finally:
        stop.set()
        await in_time(service)


async def asked(queue: Any, other: Any) -> tuple[asyncio.Task[Any], Any]:
    """Create a queue, ask, and receive the request with another object."""
    await queue.create()
    asking = await begun(queue.ask(b"1", PATIENCE))
    return asking, await in_time(other.receive())
