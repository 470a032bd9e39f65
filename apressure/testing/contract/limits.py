"""The part of the contract that is about limits: rate, concurrency and holds."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from apressure import Hold, serve
from apressure.core import Limits, Rate
from apressure.exceptions import QueueClosedError, QueueDoesNotExistError, QueueEmptyError
from apressure.testing.contract.cancellation import everywhere
from apressure.testing.contract.steps import ITEMS, PATIENCE, Counting, Opener, begun, drained, fails, in_time, taken_by

HOUR = 3600.0


class LimitContract:
    """A queue with limits hands out no more than they allow, and is otherwise as usual."""

    @pytest.mark.parametrize("way", ["get", "get_many", "iterate", "receive", "receive_many", "consumer", "serve"])
    async def test_no_more_is_handed_out_than_the_rate_allows(self, open_queue: Opener, way: str) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        got: list[bytes] = []
        taking = await begun(taken_by(queue, way, got))  # it waits before there is a rate
        await other.set_rate(2, per=HOUR, burst=2)
        await other.put_many(ITEMS[:4])
        await other.close()
        await _settled_at(got, 2)
        assert got == ITEMS[:2]
        assert not taking.done()
        await other.set_rate(None)
        await _ended(taking, way)
        assert got == ITEMS[:4]

    async def test_a_rate_goes_on_by_itself(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.set_rate(20, per=1.0)
        await queue.put_many(ITEMS[:5])
        got = [await in_time(queue.get()) for _ in range(5)]
        assert got == ITEMS[:5]
        assert (await queue.statistics()).blocked.limited > 0

    async def test_without_a_burst_they_come_one_by_one(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put_many(ITEMS[:3])
        await queue.set_rate(10, per=HOUR)
        assert await queue.get_many(3) == ITEMS[:1]
        error = await fails(QueueEmptyError, queue.get(timeout=0))
        assert "the limits of the queue" in str(error)
        await fails(QueueEmptyError, queue.receive(timeout=0.05))
        await queue.set_rate(200, per=HOUR)  # a fiftieth of that may come at once
        await queue.put_many(ITEMS[3:5])
        await queue.set_rate(None)
        assert await queue.get_many(9) == ITEMS[1:5]

    async def test_no_more_are_in_flight_than_allowed(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.set_concurrency(2)
        await queue.put_many(ITEMS[:6])
        first, second = await in_time(queue.receive_many(5))
        assert [first.raw, second.raw] == ITEMS[:2]
        error = await fails(QueueEmptyError, queue.receive(timeout=0))
        assert "when one of those in flight is settled" in str(error)
        third = await begun(queue.receive())
        await first.ack()
        delivery = await in_time(third)
        assert delivery.raw == ITEMS[2]
        again = await begun(queue.receive())
        await second.nack()
        delivery_again = await in_time(again)
        assert (delivery_again.raw, delivery_again.attempts) == (ITEMS[1], 2)
        more = await begun(queue.receive_many(5))
        await asyncio.sleep(0.1)
        assert not more.done()
        await queue.set_concurrency(None)
        rest = await in_time(more)
        assert [one.raw for one in rest] == ITEMS[3:6]
        for one in (delivery, delivery_again, *rest):
            await one.ack()

    async def test_handlers_of_all_services_together_are_no_more_than_allowed(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        await queue.set_concurrency(3)
        items = [b"%d" % number for number in range(40)]
        counting = Counting(0.005)
        services = [await begun(serve(counting.handle, one, concurrency=4, signals=())) for one in (queue, other)]
        await queue.put_many(items)
        await queue.close()
        for service in services:
            await in_time(service)
        assert sorted(counting.done) == sorted(items)
        assert 1 <= counting.most <= 3

    @pytest.mark.parametrize("way", ["get", "receive", "consumer", "serve"])
    async def test_a_held_queue_hands_out_nothing(self, open_queue: Opener, way: str) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        got: list[bytes] = []
        await other.hold(HOUR)
        await other.put_many(ITEMS[:3])
        await other.close()
        taking = await begun(taken_by(queue, way, got))
        await asyncio.sleep(0.2)
        assert got == []
        assert not taking.done()
        await other.hold(0)
        await _ended(taking, way)
        assert got == ITEMS[:3]

    async def test_a_hold_ends_by_itself_and_gets_no_shorter(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put_many(ITEMS[:2])
        await queue.hold(0.2)
        assert await in_time(queue.get()) == ITEMS[0]
        assert (await queue.limits()).held_for == 0
        await queue.hold(HOUR)
        await queue.hold(1)
        assert 1 < (await queue.limits()).held_for <= HOUR
        await fails(QueueEmptyError, queue.get(timeout=0))
        await queue.hold(0)
        assert await in_time(queue.get()) == ITEMS[1]

    async def test_a_hold_takes_back_what_was_read_ahead(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put_many(ITEMS[:6])
        async with queue.consumer("manual", prefetch=6) as consumer:
            first = await in_time(anext(consumer))
            await queue.hold(HOUR)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await anext(consumer)
            await first.ack()
            assert await queue.qsize() == 5
            await queue.hold(0)
            delivery = await in_time(anext(consumer))
            assert (delivery.raw, delivery.attempts) == (ITEMS[1], 1)
            await delivery.ack()

    @pytest.mark.parametrize("ordered", [False, True])
    async def test_a_handler_holds_the_queue(self, open_queue: Opener, ordered: bool) -> None:
        queue, other = await open_queue(max_attempts=1), await open_queue()
        await queue.create()
        calls: list[tuple[bytes, int]] = []

        async def handle(delivery: Any) -> None:
            calls.append((delivery.raw, delivery.attempts))
            if len(calls) == 1:
                raise Hold(HOUR, "429")

        service = await begun(serve(handle, queue, deliveries=True, ordered=ordered, signals=()))
        await other.put_many(ITEMS[:3])
        await other.close()
        await _settled_at(calls, 1)
        assert (await other.limits()).held_for > 1
        assert await other.qsize() == 3
        await other.hold(0)
        served = await in_time(service)
        assert calls == [(ITEMS[0], 1), (ITEMS[0], 1), (ITEMS[1], 1), (ITEMS[2], 1)]
        assert (served.handled, served.failed) == (3, 0)

    async def test_the_limits_are_told(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await fails(QueueDoesNotExistError, queue.set_rate(1))
        await queue.create()
        assert await other.limits() == Limits()
        await queue.set_rate(100, per=60.5)
        await queue.set_concurrency(7)
        assert await other.limits() == Limits(Rate(100, 60.5), 7)
        assert str(await other.limits()) == "at most 100 in 60.5 s and 7 in flight"
        await other.set_rate(5, per=1, burst=9)
        assert (await queue.statistics()).limits == Limits(Rate(5, 1.0, 9), 7)
        await queue.set_concurrency(None)
        assert str(await other.limits()) == "at most 5 in 1 s with bursts of 9"
        await queue.set_rate(None)
        assert await other.limits() == Limits()
        await queue.set_concurrency(1)
        await queue.delete()
        await queue.create()
        assert await other.limits() == Limits()

    async def test_a_limited_queue_is_otherwise_as_usual(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        await queue.put_many(ITEMS[:3])
        delivery = await in_time(queue.receive())
        await queue.set_concurrency(1)
        await queue.hold(HOUR)
        await delivery.extend(20)
        await delivery.ack()
        assert (await queue.peek(), await queue.qsize()) == (ITEMS[1], 2)
        await queue.pause()
        assert "paused" in str(await fails(QueueEmptyError, queue.get(timeout=0)))
        await queue.resume()
        await queue.close()
        assert "limits" in str(await fails(QueueEmptyError, queue.get(timeout=0)))
        assert await queue.purge() == 2
        await fails(QueueClosedError, queue.get())

    async def test_what_is_released_was_no_attempt(self, open_queue: Opener) -> None:
        queue = await open_queue(max_attempts=2)
        await queue.create()
        await queue.put_many(ITEMS[:2])
        for attempts in (1, 1):
            delivery = await in_time(queue.receive())
            assert (delivery.raw, delivery.attempts) == (ITEMS[0], attempts)
            await delivery.release()
            await fails(RuntimeError, delivery.ack())
        await (await in_time(queue.receive())).nack("why")
        delivery = await in_time(queue.receive())
        assert (delivery.raw, delivery.attempts) == (ITEMS[0], 2)
        await delivery.release()
        delivery, other = await in_time(queue.receive()), await in_time(queue.receive())
        assert (delivery.raw, delivery.attempts, other.raw) == (ITEMS[0], 2, ITEMS[1])
        await other.release()
        await delivery.nack()  # at the same time, as far as the steps are concerned
        delivery = await in_time(queue.receive())
        assert (delivery.raw, delivery.attempts) == (ITEMS[1], 1)  # the first one became a dead letter
        await delivery.ack()

    async def test_a_cancelled_change_of_limits_was_made_or_not(self, open_queue: Opener) -> None:
        async def check(queue: Any, _: Any) -> None:
            limits = await queue.limits()
            assert limits.rate in (None, Rate(1, HOUR))
            assert limits.concurrency in (None, 2)
            await queue.hold(0)
            await queue.set_rate(None)
            await queue.set_concurrency(None)
            assert await queue.limits() == Limits()
            assert await drained(queue) == ITEMS[:3]

        await everywhere(open_queue, lambda queue: queue.set_rate(1, per=HOUR), check)
        await everywhere(open_queue, lambda queue: queue.set_concurrency(2), check)
        await everywhere(open_queue, lambda queue: queue.hold(HOUR), check)

    async def test_a_cancelled_release_has_released_or_not(self, open_queue: Opener) -> None:
        async def release(queue: Any) -> None:
            delivery = await queue.receive()
            await delivery.release()

        async def check(queue: Any, _: Any) -> None:
            assert await drained(queue) == ITEMS[:3]

        await everywhere(open_queue, release, check)

    async def test_a_limited_get_that_is_cancelled_takes_nothing(self, open_queue: Opener) -> None:
        async def limited(queue: Any) -> Any:
            await queue.set_rate(1, per=HOUR)
            return await queue.get()

        async def check(queue: Any, got: Any) -> None:
            await queue.set_rate(None)
            assert ([] if got is None else [got]) + await drained(queue) == ITEMS[:3]

        await everywhere(open_queue, limited, check)

    async def test_bad_limits_are_refused_and_change_nothing(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        bad: list[tuple[type[Exception], Callable[[], Any]]] = [
            (ValueError, lambda: queue.set_rate(0)),
            (TypeError, lambda: queue.set_rate(1.5)),
            (TypeError, lambda: queue.set_rate(True)),
            (TypeError, lambda: queue.set_rate("1")),
            (ValueError, lambda: queue.set_rate(10**9 + 1, per=10**6)),
            (ValueError, lambda: queue.set_rate(2001, per=0.002)),
            (ValueError, lambda: queue.set_rate(1, per=0)),
            (ValueError, lambda: queue.set_rate(1, per=math.nan)),
            (ValueError, lambda: queue.set_rate(1, per=10**6 + 1)),
            (TypeError, lambda: queue.set_rate(1, per="1")),
            (ValueError, lambda: queue.set_rate(1, burst=0)),
            (TypeError, lambda: queue.set_rate(1, burst=1.5)),
            (ValueError, lambda: queue.set_concurrency(0)),
            (TypeError, lambda: queue.set_concurrency("1")),
            (ValueError, lambda: queue.hold(-1)),
            (ValueError, lambda: queue.hold(math.inf)),
            (TypeError, lambda: queue.hold(None)),
            (ValueError, lambda: queue.set_rate(1, deadline=-1)),
        ]
        for error, call in bad:
            await fails(error, call())
        for arguments in ((0,), (math.nan,), ("1",), (1, 2)):
            with pytest.raises((TypeError, ValueError)):
                Hold(*arguments)
        assert await queue.limits() == Limits()
        await queue.set_rate(1, per=10**6, burst=10**9, deadline=PATIENCE)
        await queue.set_concurrency(10**9, deadline=PATIENCE)
        await queue.hold(10**6, deadline=PATIENCE)


async def _ended(taking: asyncio.Task[None], way: str) -> None:
    if way.startswith(("get", "receive")):
        await fails(QueueClosedError, taking)
    else:
        await in_time(taking)


async def _settled_at(got: list[Any], number: int) -> None:
    """Wait until so many have come, and a while longer, in which more could come."""
    async with asyncio.timeout(PATIENCE):
        while len(got) < number:  # noqa: ASYNC110 (the queue tells nobody)
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert len(got) == number
