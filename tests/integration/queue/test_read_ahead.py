"""A consumer's loop that asks for the next half of its prefetch while the body works on the first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apressure import ServerError
from apressure.connection.wire.script import Request
from tests.integration.conftest import Opener, eventually, open_two

ITEMS = [b"%d" % number for number in range(300)]


@pytest.mark.parametrize(("bound", "prefetch", "most"), [(0, 40, 40), (100, None, 100), (400, 1000, 400)])
async def test_no_more_is_in_hand_than_is_prefetched(
    open_queue: Opener, bound: int, prefetch: int | None, most: int
) -> None:
    queue, other = await open_two(open_queue, bound=bound)
    feeding = asyncio.create_task(other.put_many(ITEMS))
    found: list[bytes] = []
    in_flight = 0
    async with queue.consumer(prefetch=prefetch) as consumer:
        async for item in consumer:
            found.append(item)
            if len(found) % 10 == 0:
                await asyncio.sleep(0)
                await consumer._lease.flush()  # type: ignore[union-attr]
                in_flight = max(in_flight, (await other.statistics()).in_flight)
            if len(found) == len(ITEMS):
                break
    await feeding
    assert found == ITEMS
    assert 16 <= in_flight <= most
    assert (await queue.statistics()).consumed_messages == len(ITEMS)


async def test_what_was_asked_for_ahead_goes_back_untouched(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many(ITEMS)
    async with queue.consumer(prefetch=100) as consumer:
        assert await anext(consumer) == ITEMS[0]  # the other half is on its way
        assert consumer._lease.receiving.answer is not None  # type: ignore[union-attr]
    assert await queue.qsize() == len(ITEMS) - 1
    async with queue.consumer(ack="manual", prefetch=100) as deliveries:
        for item in ITEMS[1:]:
            delivery = await anext(deliveries)
            assert (delivery.raw, delivery.attempts) == (item, 1)
            await delivery.ack()


async def test_acknowledgements_that_went_along_are_not_forgotten_when_that_step_fails(
    open_queue: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await open_queue()
    await queue.put_many(ITEMS)
    send = queue.client.connection.send
    failed: list[Request] = []

    def fail_once(request: Request) -> None:
        acknowledges = len(request.arguments) > 10
        if request.call.script.name == "receive" and acknowledges and not failed:
            failed.append(request)
            asyncio.get_running_loop().call_soon(request.on_reply, ServerError("no", code="ERR"))
        else:
            send(request)

    monkeypatch.setattr(queue.client.connection, "send", fail_once)
    found: list[Any] = []
    async with queue.consumer(prefetch=50) as consumer:
        async for item in consumer:
            found.append(item)
            if len(found) == 1:  # with both halves there, the next is asked for in the middle
                await eventually(lambda: consumer._lease.receiving.answer is None)  # type: ignore[union-attr]
            if len(found) == len(ITEMS):
                break
    assert failed
    assert found == ITEMS
    statistics = await queue.statistics()
    assert (statistics.consumed_messages, statistics.in_flight, statistics.length) == (len(ITEMS), 0, 0)
    assert statistics.consumed_bytes == sum(map(len, ITEMS))


async def test_a_closed_queue_ends_the_loop_after_what_was_asked_for_ahead(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many(ITEMS)
    await queue.close()
    async with queue.consumer(prefetch=64) as consumer:
        assert [item async for item in consumer] == ITEMS
    await eventually(lambda: not queue.client.connection._unanswered)
    assert (await queue.statistics()).in_flight == 0
