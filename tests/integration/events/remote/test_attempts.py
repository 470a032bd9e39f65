"""A server of ours counts deliveries, and tells its clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apressure import EventQueue, LeaseLostError, QueueEmptyError, ServerTooOldError
from apressure.dead_letters import Failure
from apressure.testing.contract import begun
from tests.integration.events.remote.conftest import Open, eventually, fails, in_time


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


async def test_what_fails_too_often_becomes_a_dead_letter(open_ours: Open, direct: EventQueue[bytes]) -> None:
    queue = await open_ours(max_attempts=2)
    assert queue.max_attempts == 2
    await queue.put_many([b"1", b"2", b"3"])
    for error in (LookupError("first"), ValueError("second")):

        async def fail(error: Exception = error) -> None:
            async with queue.consumer(prefetch=3) as consumer:  # what it has not seen was no attempt
                async for item in consumer:
                    assert item == b"1"
                    raise error

        await fails(type(error), fail())
    assert await in_time(queue.get()) == b"2"
    (letter,) = await queue.dead_letters()
    assert (letter.item, letter.attempts, letter.error) == (b"1", 2, Failure("ValueError", "second", 2))
    assert (await queue.statistics()).dead_letters == 1
    await (await in_time(direct.receive())).nack()  # it counts for every client
    await (await in_time(queue.receive())).nack()
    await fails(QueueEmptyError, queue.receive(timeout=0))
    assert [one.item for one in await direct.dead_letters()] == [b"1", b"3"]
    assert (await queue.statistics()).dead_lettered_count == 2
    assert (await direct.statistics()).dead_lettered_count == 0


async def test_every_dead_letter_counts_once(open_ours: Open) -> None:
    queues = [await open_ours(max_attempts=1) for _ in range(2)]
    await queues[0].put_many([b"%d" % number for number in range(50)])
    for delivery in await in_time(queues[0].receive_many(40)):
        await delivery.nack()
    received = await asyncio.gather(*(in_time(queue.receive_many(5)) for queue in queues))
    assert sorted(one.raw for some in received for one in some) == [b"%d" % number for number in range(40, 50)]
    await fails(QueueEmptyError, queues[1].get(timeout=0))
    assert sum([(await queue.statistics()).dead_lettered_count for queue in queues]) == 40


async def test_errors_are_kept_only_where_there_is_a_limit(open_ours: Open) -> None:
    for name, options in (("one", {}), ("two", {"max_attempts": 1, "keep_errors": False})):
        queue, limited = await open_ours(name, **options), await open_ours(name, max_attempts=1)
        await queue.put(b"1")
        await (await in_time(queue.receive())).nack("why")
        await fails(QueueEmptyError, limited.receive(timeout=0))
        assert [one.error for one in await limited.dead_letters()] == [None]


async def test_several_queues_with_a_limit(open_ours: Open, ours: str) -> None:
    queue, other = await open_ours("first"), await open_ours("second")
    for one in (queue, other):
        await one.put(b"1")
        await one.create()
        await one.close()
    failed = 0
    async with EventQueue.consume("first", "second", url=ours, max_attempts=3) as consumer:
        async for delivery in consumer:
            failed += 1
            await delivery.nack("why")
    assert failed == 6
    letters = [*await queue.dead_letters(), *await other.dead_letters()]
    assert [(one.attempts, one.reason) for one in letters] == [(3, "why")] * 2


@pytest.mark.parametrize("remote", [False, True], ids=["redis", "okq"])
async def test_what_a_stuck_program_has_not_seen_was_no_attempt(
    open_ours: Open, direct: EventQueue[bytes], remote: bool
) -> None:
    queue = await open_ours() if remote else direct
    await queue.put_many([b"0", b"1", b"2"])
    async with queue.consumer(prefetch=3, max_hold=0.3) as consumer:
        assert await in_time(anext(consumer)) == b"0"
        await eventually(lambda: _all_wait(direct, 3))
        await fails(LeaseLostError, anext(consumer))
    received = await in_time(direct.receive_many(3))
    assert [(one.raw, one.attempts) for one in received] == [(b"0", 2), (b"1", 1), (b"2", 1)]
    for one in received:
        await one.ack()


@pytest.mark.parametrize(
    "use",
    [
        lambda queue: queue.receive(), lambda queue: queue.get(), lambda queue: queue.get_many(3),
        lambda queue: queue.consumer().__aenter__(),
    ],
)  # fmt: skip
async def test_a_released_okq_has_no_limit(open_released: Open, use: Any) -> None:
    queue = await open_released(max_attempts=3)
    await queue.put(b"1")
    await fails(
        ServerTooOldError, use(queue), r"^max_attempts= of the queue 'jobs' .* Leave it out, or use apressure's"
    )
    assert await queue.qsize() == 1


async def _all_wait(queue: EventQueue[bytes], count: int) -> bool:
    found = await queue.statistics()
    return (found.length, found.in_flight) == (count, 0)
