"""A server of ours counts deliveries, and tells its clients."""

from __future__ import annotations

import asyncio

from apressure import EventQueue
from apressure.testing.contract import begun
from tests.integration.events.remote.conftest import Open, eventually, in_time


async def test_deliveries_to_others_count(open_ours: Open, direct: EventQueue[bytes]) -> None:
    await direct.put_many([b"1", b"2"])
    for _ in range(2):
        await (await in_time(direct.receive())).nack()
    first, second = await in_time((await open_ours()).receive_many(2))
    assert [(one.raw, one.attempts, one.redelivered) for one in (first, second)] == [(b"1", 3, True), (b"2", 1, False)]
    await first.nack()
    again = await in_time(direct.receive())
    assert (again.raw, again.attempts) == (b"1", 4)
    await again.ack()
    await second.ack()


async def test_what_the_program_has_not_seen_was_no_attempt(open_ours: Open, direct: EventQueue[bytes]) -> None:
    queue = await open_ours()
    items = [b"%d" % number for number in range(6)]
    await queue.put_many(items)
    async with queue.consumer("manual", prefetch=6) as consumer:  # the end of a block
        assert (await in_time(anext(consumer))).raw == b"0"
    for _ in range(20):  # a cancellation
        receiving = asyncio.create_task(queue.receive_many(6))
        await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.wait((receiving,))
    await eventually(lambda: _all_wait(direct, 6))
    async with queue.consumer("manual", prefetch=6, lease=1) as consumer:  # a pause
        await (await in_time(await begun(anext(consumer)))).ack()
        await direct.pause()
        await eventually(lambda: _all_wait(direct, 5))
    await direct.resume()
    deliveries = await in_time(direct.receive_many(6))
    assert [(one.raw, one.attempts) for one in deliveries] == [(item, 1) for item in items[1:]]
    for one in deliveries:
        await one.ack()


async def _all_wait(queue: EventQueue[bytes], count: int) -> bool:
    found = await queue.statistics()
    return (found.length, found.in_flight) == (count, 0)
