"""A lease ends after `max_hold` when a handler is stuck, and only then."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from apressure import Delivery, LeaseLostError, serve
from tests.integration.conftest import Opener, in_time
from tests.integration.leases.test_lease_thread import (
    MEMBER,
    PROGRAMS,
    go_on,
    take,
)  # fmt: skip
from tests.integration.leases.test_leases import running_program


@pytest.mark.parametrize("role", PROGRAMS)
async def test_a_handler_that_blocks_for_ever_loses_its_lease_after_max_hold(
    open_queue: Opener, url: str, role: str
) -> None:
    queue = await open_queue()
    if role != "producer":
        await queue.put(b"1")
    with running_program(PROGRAMS[role], url, "1", "0.5") as process:
        delivery = await in_time(take(queue, role, timeout=None))
        if delivery is not None:
            assert delivery.attempts == 2
            await delivery.ack()
        output = go_on(process)
        assert output.split()[-1] == "lost"
        assert output.count("max_hold") == 1
        assert "in block\n    sys.stdin.readline()" in output.replace("<string>", "") or ", in block" in output


async def test_a_body_that_waits_for_ever_loses_its_lease_after_max_hold(
    open_queue: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await open_queue()
    other = await open_queue(create=False)
    await queue.put_many([b"1", b"2"])
    lost: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    has_one = asyncio.Event()

    async def stuck_here() -> None:
        has_one.set()
        await asyncio.Event().wait()

    async def consume() -> None:
        async with queue.consumer(max_hold=1) as consumer:
            consumer.on_lost(lost.set_result)
            async for _ in consumer:
                await stuck_here()

    consuming = asyncio.create_task(consume())
    await in_time(has_one.wait())
    with caplog.at_level(logging.ERROR, "apressure"):
        deliveries = [await in_time(other.receive()) for _ in range(2)]
        assert [(delivery.item, delivery.attempts) for delivery in deliveries] == [(b"1", 2), (b"2", 1)]
        assert isinstance(await in_time(lost), LeaseLostError)
    (record,) = caplog.records
    assert "max_hold" in record.getMessage()
    assert "stuck_here" in record.getMessage()
    consuming.cancel()
    await asyncio.wait((consuming,))
    for delivery in deliveries:
        await delivery.ack()
    async with queue.consumer():
        pass


async def test_a_consumer_that_waits_for_items_is_not_stuck(open_queue: Opener) -> None:
    queue = await open_queue()
    other = await open_queue(create=False)
    async with queue.consumer(max_hold=0.3) as consumer:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await anext(consumer)
        await other.put(b"1")
        assert await in_time(anext(consumer)) == b"1"
    async with queue.producer(exclusive=True, max_hold=0.3) as producer:
        await asyncio.sleep(1)
        await producer.put(b"2")


async def test_an_extended_lease_does_not_end_at_max_hold(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put(b"1")
    delivery = await queue.receive(max_hold=0.3)
    await delivery.extend(60)
    await asyncio.sleep(1)
    await delivery.ack()


async def test_a_service_cancels_handlers_that_are_stuck_and_goes_on(
    open_queue: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await open_queue()
    await queue.put(b"1")
    cancelled = 0

    async def handler(delivery: Delivery[bytes]) -> None:
        nonlocal cancelled
        if delivery.attempts == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled += 1
                raise
        await queue.close()

    served = await in_time(serve(handler, queue, deliveries=True, max_hold=1, signals=()))
    assert (served.handled, cancelled) == (1, 1)
    assert "in handler\n    await asyncio.Event().wait()" in caplog.text


async def test_handlers_that_settle_without_a_turn_of_the_event_loop_are_not_stuck(
    open_queue: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await open_queue()
    await queue.put_many([b"%d" % n for n in range(6)])
    await queue.close()
    async with queue.consumer("manual", prefetch=6, max_hold=3) as consumer:
        first = await anext(consumer)
        for delivery in (first, *consumer.take_ready(5)):
            time.sleep(0.6)
            delivery.ack_soon()
        with pytest.raises(StopAsyncIteration):
            await anext(consumer)
    assert (await queue.statistics()).consumed_messages == 6
    assert "max_hold" not in caplog.text


@pytest.mark.parametrize("max_hold", [0, -1, float("nan"), "5", True])
async def test_max_hold_is_checked(open_queue: Opener, max_hold: Any) -> None:
    queue = await open_queue()
    expected = ValueError if isinstance(max_hold, (int, float)) and max_hold is not True else TypeError
    with pytest.raises(expected, match="max_hold"):
        queue.consumer(max_hold=max_hold)
    with pytest.raises(expected, match="max_hold"):
        queue.producer(max_hold=max_hold)
    with pytest.raises(expected, match="max_hold"):
        await queue.receive(max_hold=max_hold)
    with pytest.raises(expected, match="max_hold"):
        await queue.receive_many(5, max_hold=max_hold)
    with pytest.raises(expected, match="max_hold"):
        await serve(print_nothing, queue, max_hold=max_hold)


async def print_nothing(item: bytes) -> None:
    """A handler."""


async def test_a_member_that_is_stuck_loses_its_share_after_max_hold(open_queue: Opener, url: str) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    async with queue.consumer(shared=True, ack="manual", prefetch=1) as consumer:
        other = await in_time(anext(consumer))
        with running_program(MEMBER, url, "1", "0.5") as process:
            delivery = await in_time(anext(consumer))
            assert delivery.attempts == 2
            await delivery.ack()
            await other.ack()
            output = go_on(process)
            assert output.split()[-1] == "lost"
            assert output.count("max_hold") == 1
