"""The consumer role: at-least-once, without a word more to write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import redis

from apressure import (
    Delivery,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueInUseError,
    ScriptingRefusedError,
)
from tests.integration.conftest import (
    PATIENCE,
    Opener,
    blocking,
    cancelled,
    eventually,
    everything,
    fails,
    in_time,
    open_two,
)  # fmt: skip

ITEMS = [b"%d" % index for index in range(10)]


async def test_the_loop_hands_out_everything_in_order_and_ends_when_drained(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many(ITEMS)
    await queue.close()
    async with queue.consumer() as consumer:
        assert [item async for item in consumer] == ITEMS
    statistics = await queue.statistics()
    assert (statistics.consumed_messages, statistics.in_flight, statistics.length) == (10, 0, 0)
    assert statistics.consumer.state == "free"


@pytest.mark.parametrize("bound", [1, 2, 5])
async def test_the_loop_waits_for_a_producer(open_queue: Opener, bound: int) -> None:
    queue, other = await open_two(open_queue, bound=bound)

    async def produce() -> None:
        async with other.producer() as producer:
            for item in ITEMS:
                await producer.put(item)

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        async with asyncio.timeout(PATIENCE), queue.consumer() as consumer:
            assert [item async for item in consumer] == ITEMS


async def test_an_item_is_acknowledged_when_the_loop_asks_for_the_next(open_queue: Opener) -> None:
    queue, other = await open_two(open_queue)
    await queue.put_many(ITEMS[:3])
    async with queue.consumer(prefetch=1) as consumer:
        assert await anext(consumer) == b"0"
        assert (await other.statistics()).consumed_messages == 0
        assert await anext(consumer) == b"1"
        statistics = await other.statistics()
        assert (statistics.consumed_messages, statistics.in_flight, statistics.length) == (1, 1, 1)
    statistics = await other.statistics()
    assert (statistics.consumed_messages, statistics.in_flight, statistics.length) == (2, 0, 1)


async def test_leaving_the_loop_by_break_acknowledges_the_item_and_gives_back_the_rest(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many(ITEMS)
    async with queue.consumer(prefetch=5) as consumer:
        async for item in consumer:
            if item == b"2":
                break
    assert (await queue.statistics()).consumed_messages == 3
    assert await queue.get_many(20) == ITEMS[3:]


class BodyError(Exception):
    """What a program's own code raises."""


async def _raise() -> None:
    raise BodyError


async def _cancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize(("end", "raises"), [(_raise, BodyError), (_cancel, asyncio.CancelledError)])
@pytest.mark.parametrize("prefetch", [1, 4, None])
async def test_a_body_that_fails_gives_its_item_back_first_in_line_and_marked(
    open_queue: Opener, end: Any, raises: type[BaseException], prefetch: int | None
) -> None:
    queue = await open_queue()
    await queue.put_many(ITEMS)

    async def consume() -> None:
        async with queue.consumer(prefetch=prefetch) as consumer:
            async for item in consumer:
                if item == b"3":
                    await end()

    await fails(raises, asyncio.create_task(consume()))
    statistics = await queue.statistics()
    assert (statistics.consumed_messages, statistics.in_flight, statistics.length) == (3, 0, 7)
    assert statistics.consumer.state == "free"
    await queue.close()
    seen: list[tuple[bytes, int]] = []
    async with queue.consumer() as consumer:
        async for item in consumer:
            seen.append((item, consumer.attempts))
    assert [item for item, _ in seen] == ITEMS[3:]
    assert seen[0] == (b"3", 2)


async def test_what_was_prefetched_and_never_handed_out_does_not_count_as_tried(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many(ITEMS)
    with pytest.raises(BodyError):
        async with queue.consumer(prefetch=10) as consumer:
            await anext(consumer)
            raise BodyError
    async with queue.consumer(ack="manual", prefetch=10) as consumer:
        attempts = [(await anext(consumer)).attempts for _ in ITEMS]
    assert attempts == [2] + [1] * 9


async def test_attempts_are_zero_where_there_is_no_item(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put(b"x")
    async with queue.consumer() as consumer:
        assert consumer.attempts == 0
        await anext(consumer)
        assert consumer.attempts == 1
    assert consumer.attempts == 0


async def test_a_loop_cancelled_while_it_waits_loses_nothing(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_two(open_queue)

    async def consume() -> None:
        async with queue.consumer() as consumer:
            async for _ in consumer:
                pass

    await cancelled(await blocking(db, consume()))
    await other.put(b"x")
    assert await in_time(other.get()) == b"x"


async def test_manual_iteration_hands_out_deliveries(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many(ITEMS)
    await queue.close()
    kept: list[Delivery[bytes]] = []
    async with queue.consumer(ack="manual") as consumer:
        async for delivery in consumer:
            kept.append(delivery)
        assert [delivery.item for delivery in kept] == ITEMS
        assert (await queue.statistics()).consumed_messages == 0
        for delivery in kept[::2]:
            await delivery.ack()
        assert (await queue.statistics()).consumed_messages == 5
        await kept[1].nack()
    # What the block still had goes back before what went back before.
    assert await queue.get_many(20) == [*ITEMS[3::2], ITEMS[1]]


async def test_deliveries_end_with_their_block(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put(b"x")
    async with queue.consumer(ack="manual") as consumer:
        delivery = await anext(consumer)
    for settle in (delivery.ack, delivery.nack):
        with pytest.raises(RuntimeError):
            await settle()
    assert await queue.get() == b"x"


async def test_delete_removes_the_queue_after_the_last_item(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put_many(ITEMS)
    await queue.close()
    async with queue.consumer(delete=True) as consumer:
        assert [item async for item in consumer] == ITEMS
        assert await queue.exists()
    assert not await queue.exists()
    assert not everything(db)


@pytest.mark.parametrize("end", ["break", "open", "raise", "nack"])
async def test_delete_keeps_a_queue_whose_items_were_not_all_worked_off(open_queue: Opener, end: str) -> None:
    queue = await open_queue()
    await queue.put_many(ITEMS)
    if end != "open":
        await queue.close()
    try:
        async with queue.consumer(delete=True, ack="manual") as consumer:
            async for delivery in consumer:
                if end == "nack" and delivery.item == b"9":
                    await delivery.nack()
                    break
                await delivery.ack()
                if delivery.item == b"9" and end in ("break", "open"):
                    break
                if delivery.item == b"9" and end == "raise":
                    raise BodyError
    except BodyError:
        pass
    assert await queue.exists()
    assert await queue.qsize() == (1 if end == "nack" else 0)


@pytest.mark.parametrize("prefetch", [1, 3, 1000])
async def test_prefetch_limits_what_is_in_flight(open_queue: Opener, prefetch: int) -> None:
    queue = await open_queue(bound=5)
    await queue.put_many(ITEMS[:5])
    async with queue.consumer(prefetch=prefetch) as consumer:
        await anext(consumer)
        assert (await queue.statistics()).in_flight == min(prefetch, 5)


async def test_an_adaptive_prefetch_takes_no_more_than_the_bound(open_queue: Opener) -> None:
    queue, other = await open_two(open_queue, bound=2)
    most = 0

    async def produce() -> None:
        await other.put_many(b"%d" % index for index in range(200))
        await other.close()

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        async with queue.consumer() as consumer:
            count = 0
            async for _ in consumer:
                count += 1
                if count % 20 == 0:
                    most = max(most, (await other.statistics()).in_flight)
    assert count == 200
    assert 1 <= most <= 4  # those of one portion whose acknowledgements are on their way, and the next portion


@pytest.mark.parametrize(
    ("options", "error"),
    [({"ack": "never"}, ValueError), ({"prefetch": 0}, ValueError), ({"prefetch": True}, TypeError),
     ({"prefetch": "5"}, TypeError)],
)  # fmt: skip
async def test_bad_options_are_refused(open_queue: Opener, options: dict[str, Any], error: type[Exception]) -> None:
    queue = await open_queue()
    with pytest.raises(error):
        queue.consumer(**options)


async def test_a_second_task_may_not_iterate(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many(ITEMS)
    async with queue.consumer() as consumer:
        assert await anext(consumer) == b"0"

        async def other() -> bytes:
            return bytes(await anext(consumer))

        with pytest.raises(RuntimeError, match="another task"):
            await asyncio.create_task(other())
        assert await anext(consumer) == b"1"


async def test_iterating_outside_the_block_is_refused(open_queue: Opener) -> None:
    queue = await open_queue()
    consumer = queue.consumer()
    with pytest.raises(RuntimeError, match="async with"):
        await anext(consumer)
    async with consumer:
        pass
    with pytest.raises(RuntimeError, match="async with"):
        await anext(consumer)


async def test_the_block_uses_the_role_through_its_own_object(open_queue: Opener) -> None:
    queue = await open_queue(client_id="me")
    await queue.put_many(ITEMS)
    async with queue.consumer() as consumer:
        await anext(consumer)
        for operation in (queue.get(), queue.get_nowait(), queue.get_many(5), queue.receive(), queue.delete()):
            raised = await fails(QueueInUseError, operation, "block")
            assert (raised.role, raised.holder) == ("consumer", "me")
        await fails(QueueInUseError, queue.consumer().__aenter__())
        # What needs the other role, or none, goes on.
        await queue.put(b"more")
        assert await queue.peek_newest() == b"more"
        await queue.close()
    assert await in_time(queue.get()) == b"1"


async def test_two_queue_objects_of_one_client_exclude_each_other_too(open_queue: Opener, client: Any) -> None:
    queue = await open_queue(client=client)
    twin = await open_queue(client=client, create=False)
    async with queue.consumer():
        raised = await fails(QueueInUseError, twin.get(timeout=0.05))
        assert raised.holder == client.id


async def test_the_block_waits_for_the_role_until_its_timeout(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(client_id="me")
    other = await open_queue(create=False, client_id="other")
    async with queue.consumer():
        assert db.info("clients")["blocked_clients"] == 0
        waiting = await blocking(db, other.consumer().__aenter__())
        assert (await queue.statistics()).consumer.holder == "me"
    consumer = await in_time(waiting)
    assert (await queue.statistics()).consumer.holder == "other"
    await consumer.__aexit__(None, None, None)
    async with queue.consumer():
        for timeout in (0.05, 0):
            with pytest.raises(QueueInUseError, match="held by me") as raised:
                async with other.consumer(timeout=timeout):
                    pytest.fail("two consumers")
            assert (raised.value.role, raised.value.holder) == ("consumer", "me")


async def test_a_block_on_a_missing_queue_raises(open_queue: Opener) -> None:
    queue = await open_queue(create=False)
    with pytest.raises(QueueDoesNotExistError):
        async with queue.consumer():
            pytest.fail("no such queue")
    await queue.create()
    async with queue.consumer():
        pass


async def test_a_queue_deleted_under_the_block_ends_the_loop_with_an_error(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_two(open_queue)
    await queue.put_many(ITEMS)

    async def consume() -> None:
        async with queue.consumer(prefetch=1) as consumer:
            async for _ in consumer:
                await eventually(lambda: not db.exists("__pressure__:jobs:bound"))

    task = asyncio.create_task(consume())
    await eventually(lambda: db.exists("apressure:__pressure__:jobs:consumer_lease"))
    await in_time(other.delete())
    await fails(QueueDoesNotExistError, task)
    assert not everything(db)


async def test_an_empty_closed_queue_ends_the_loop_at_once(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.close()
    async with queue.consumer() as consumer:
        assert [item async for item in consumer] == []
    with pytest.raises(QueueClosedError):
        await queue.put(b"x")


async def test_without_scripts_there_is_no_consumer_role(open_queue: Opener) -> None:
    queue = await open_queue(scripting=False)
    with pytest.raises(ScriptingRefusedError, match="scripting=False"):
        async with queue.consumer():
            pytest.fail("no lease without scripts")
    await queue.put(b"x")
    assert await queue.get() == b"x"


async def test_a_loop_goes_on_with_what_was_given_back_after_its_end(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    await queue.close()
    async with queue.consumer(ack="manual", delete=True) as consumer:
        for delivery in [delivery async for delivery in consumer]:
            await (delivery.nack() if delivery.item == b"2" else delivery.ack())
        async for delivery in consumer:
            assert (delivery.item, delivery.attempts) == (b"2", 2)
            await delivery.ack()
    assert not await queue.exists()


async def test_acknowledgements_mean_the_same_after_a_failover_that_lost_deliveries(
    open_queue: Opener, db: redis.Redis
) -> None:
    """The server that took over believes that the lease has delivered less than it has."""
    queue = await open_queue()
    await queue.put_many(ITEMS[:6])
    async with queue.consumer(prefetch=1) as consumer:
        assert [await anext(consumer), await anext(consumer)] == ITEMS[:2]
        behind = {key: db.dump(key) for key in db.keys("*") if b":op:" not in key}
        assert [await anext(consumer), await anext(consumer)] == ITEMS[2:4]
        for key, value in behind.items():
            db.restore(key, 0, value, replace=True)
        assert [await anext(consumer) for _ in range(4)] == ITEMS[2:6]
        assert (await queue.statistics()).consumed_messages == 4
    statistics = await queue.statistics()
    # The second one was acknowledged where nobody knows of it any more: it comes again.
    assert (statistics.consumed_messages, statistics.in_flight, statistics.length) == (5, 0, 1)
    assert await queue.get() == ITEMS[1]


async def test_a_body_that_waits_for_nothing_keeps_its_lease(open_queue: Opener) -> None:
    """Thirty items are in the buffer, and last longer than the lease: no item does."""
    queue = await open_queue()
    await queue.put_many(ITEMS * 3)
    await queue.close()
    seen = 0
    async with queue.consumer(prefetch=30, lease=4) as consumer:
        async for _ in consumer:
            time.sleep(0.15)
            seen += 1
    assert seen == 30
    assert (await queue.statistics()).consumed_messages == 30


async def test_a_body_that_waits_for_nothing_can_be_cancelled(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many(ITEMS * 10)
    seen = 0

    async def work() -> None:
        nonlocal seen
        async with queue.consumer(prefetch=100) as consumer:
            async for _ in consumer:
                time.sleep(0.02)
                seen += 1
                if seen == 2:
                    asyncio.get_running_loop().call_soon(task.cancel)

    task = asyncio.create_task(work())
    await fails(asyncio.CancelledError, task)
    assert 2 <= seen < 100
    statistics = await queue.statistics()
    assert (statistics.consumed_messages, statistics.in_flight, statistics.length) == (seen, 0, 100 - seen)


async def test_what_came_at_the_end_of_a_timeout_is_there_without_waiting(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many(ITEMS[:2])
    async with queue.consumer(prefetch=2) as consumer:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(consumer)
        time.sleep(0.06)  # the machine is busy
        async with asyncio.timeout(0):
            assert await anext(consumer) == ITEMS[0]
        time.sleep(0.06)  # the body is
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(consumer)
        async with asyncio.timeout(0):
            assert await anext(consumer) == ITEMS[1]


async def test_another_event_loop_is_told_so(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many(ITEMS)

    def elsewhere(call: Callable[[], Coroutine[Any, Any, object]]) -> Awaitable[object]:
        return asyncio.to_thread(lambda: asyncio.run(asyncio.wait_for(call(), 5)))

    async with queue.consumer(ack="manual") as consumer:
        with pytest.raises(RuntimeError, match="another event loop"):
            await elsewhere(lambda: anext(consumer))  # type: ignore[arg-type]
        delivery = await anext(consumer)
        for operation in (delivery.ack, delivery.nack, lambda: delivery.extend(5)):
            with pytest.raises(RuntimeError, match="another event loop"):
                await elsewhere(operation)
        await delivery.ack()
    assert (await queue.statistics()).consumed_messages == 1
