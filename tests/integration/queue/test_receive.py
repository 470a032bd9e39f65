"""receive, and deliveries: acknowledging, giving back, extending; which messages are in flight."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueInUseError,
    ScriptingRefusedError,
    ServerError,
)
from tests.integration.conftest import Opener, blocking, cancelled, eventually, fails, in_time, open_two, outlived


async def test_a_delivery_is_the_item_to_be_acknowledged(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(bound=1)
    await queue.put(b"abc")
    delivery = await queue.receive()
    assert (delivery.item, delivery.raw, delivery.attempts, delivery.redelivered) == (b"abc", b"abc", 1, False)
    assert "3 bytes" in repr(delivery)
    assert b"abc" not in repr(delivery).encode()
    # The bound limits what waits: there is room.
    assert db.llen("__pressure__:jobs:not_full") == 1
    assert db.llen("__pressure__:jobs:consumer_free") == 0
    await delivery.ack()
    statistics = await queue.statistics()
    assert (statistics.consumed_messages, statistics.consumed_bytes, statistics.in_flight) == (1, 3, 0)
    assert db.llen("__pressure__:jobs:consumer_free") == 1


async def test_statistics_count_at_the_acknowledgement(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put(b"x")
    delivery = await queue.receive()
    statistics = await queue.statistics()
    assert (statistics.length, statistics.in_flight, statistics.consumed_messages) == (0, 1, 0)
    await delivery.nack()
    statistics = await queue.statistics()
    assert (statistics.length, statistics.in_flight, statistics.consumed_messages) == (1, 0, 0)


async def test_what_is_given_back_comes_again_first_and_marked(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    for attempt in range(1, 4):
        delivery = await queue.receive()
        assert (delivery.item, delivery.attempts, delivery.redelivered) == (b"1", attempt, attempt > 1)
        await delivery.nack()
    assert await queue.get() == b"1"
    delivery = await queue.receive()
    assert (delivery.item, delivery.attempts) == (b"2", 1)
    await delivery.ack()


async def test_messages_of_equal_content_keep_counts_of_their_own(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many([b"same", b"same", b"same"])
    await (await queue.receive()).nack()
    attempts = []
    for _ in range(3):
        delivery = await queue.receive()
        attempts.append(delivery.attempts)
        await delivery.ack()
    assert attempts == [2, 1, 1]


@pytest.mark.parametrize("first", ["ack", "nack"])
@pytest.mark.parametrize("second", ["ack", "nack"])
async def test_a_delivery_is_settled_once(open_queue: Opener, first: str, second: str) -> None:
    queue = await open_queue()
    await queue.put(b"x")
    delivery = await queue.receive()
    await getattr(delivery, first)()
    with pytest.raises(RuntimeError, match="before"):
        await getattr(delivery, second)()
    statistics = await queue.statistics()
    assert (statistics.length, statistics.consumed_messages) == ((0, 1) if first == "ack" else (1, 0))


async def test_acknowledgements_may_come_in_any_order(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many([b"%d" % index for index in range(5)])
    deliveries = [await queue.receive() for _ in range(5)]
    assert [delivery.item for delivery in deliveries] == [b"0", b"1", b"2", b"3", b"4"]
    await deliveries[3].ack()
    await deliveries[1].ack()
    await deliveries[4].nack()
    await deliveries[0].nack()
    await deliveries[2].nack()
    assert await queue.get_many(10) == [b"2", b"0", b"4"]
    assert (await queue.statistics()).consumed_messages == 5


async def test_deliveries_given_back_in_one_go_keep_their_order(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put_many([b"%d" % index for index in range(5)])
    deliveries = [await queue.receive() for _ in range(4)]
    await asyncio.gather(*(delivery.nack() for delivery in reversed(deliveries)))
    assert await queue.get_many(10) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("timeout", [0.05, 0])
async def test_receive_raises_at_its_timeout(open_queue: Opener, timeout: float) -> None:
    queue = await open_queue()
    await fails(QueueEmptyError, queue.receive(timeout=timeout))
    assert (await queue.statistics()).consumer.state == "free"


async def test_receive_waits_for_an_item(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_two(open_queue)
    task = await blocking(db, queue.receive())
    # Who only waits holds nothing.
    assert (await other.statistics()).consumer.state == "free"
    await other.put(b"x")
    await (await in_time(task)).ack()


async def test_a_missing_queue_is_told(open_queue: Opener) -> None:
    queue = await open_queue(create=False)
    await fails(QueueDoesNotExistError, queue.receive())


@pytest.mark.parametrize(
    ("lease", "error"),
    [(0, ValueError), (-1, ValueError), (0.01, ValueError), (10**6, ValueError), (float("nan"), ValueError),
     ("30", TypeError), (True, TypeError), ([30], TypeError)],
)  # fmt: skip
async def test_a_bad_lease_is_refused(open_queue: Opener, lease: Any, error: type[Exception]) -> None:
    queue = await open_queue()
    with pytest.raises(error, match="lease must be"):
        await queue.receive(lease=lease)
    with pytest.raises(error, match="lease must be"):
        queue.consumer(lease=lease)
    with pytest.raises(error, match="lease must be"):
        queue.producer(exclusive=True, lease=lease)


@pytest.mark.parametrize(
    ("seconds", "error"),
    [("x", TypeError), (None, TypeError), (True, TypeError), (0, ValueError), (-1, ValueError), (86401, ValueError),
     (float("nan"), ValueError)],
)  # fmt: skip
async def test_a_lease_is_extended_by_seconds(open_queue: Opener, seconds: Any, error: type[Exception]) -> None:
    queue = await open_queue()
    await queue.put(b"1")
    delivery = await queue.receive()
    with pytest.raises(error, match="seconds must be"):
        await delivery.extend(seconds)
    await delivery.ack()


async def test_without_scripts_there_is_no_delivery(open_queue: Opener) -> None:
    queue = await open_queue(scripting=False)
    with pytest.raises(ScriptingRefusedError, match="scripting=False"):
        await queue.receive()


async def test_other_operations_of_the_role_wait_for_nobody_who_is_this_object_itself(open_queue: Opener) -> None:
    queue = await open_queue(client_id="me")
    await queue.put_many([b"1", b"2"])
    delivery = await queue.receive()
    for operation in (queue.get(), queue.get_nowait(), queue.get_many(2), queue.delete()):
        raised = await fails(QueueInUseError, operation, "itself")
        assert (raised.role, raised.holder) == ("consumer", "me")
    await fails(QueueInUseError, queue.consumer().__aenter__(), "itself")
    await delivery.ack()
    assert await queue.get() == b"2"


async def test_other_clients_wait_until_everything_is_settled(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue(client_id="me")
    other = await open_queue(create=False)
    await queue.put_many([b"1", b"2"])
    delivery = await queue.receive()
    for operation in (other.get(timeout=0.05), other.get_nowait(), other.receive(timeout=0)):
        raised = await fails(QueueInUseError, operation)
        assert (raised.role, raised.holder) == ("consumer", "me")
    task = await blocking(db, other.get())
    await delivery.ack()
    assert await in_time(task) == b"2"


async def test_an_extended_lease_lasts_longer(open_queue: Opener) -> None:
    queue = await open_queue()
    await queue.put(b"x")
    delivery = await queue.receive(lease=10)
    before = (await queue.statistics()).consumer.expires
    await delivery.extend(500)
    after = (await queue.statistics()).consumer.expires
    assert before is not None
    assert after is not None
    assert (after - before).total_seconds() > 400
    await delivery.ack()


async def test_the_lease_is_renewed_while_the_program_works(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_two(open_queue)
    await queue.put(b"x")
    delivery = await queue.receive(lease=2)
    await outlived(db, "consumer")
    with pytest.raises(QueueInUseError):
        await other.get_nowait()
    await delivery.ack()


async def test_a_cancelled_receive_takes_nothing(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_two(open_queue)
    await cancelled(await blocking(db, queue.receive()))
    await other.put(b"x")
    assert await in_time(other.get()) == b"x"


async def test_aclose_gives_back_what_was_received(open_queue: Opener, url: str) -> None:
    watcher = await open_queue()
    await watcher.put_many([b"1", b"2", b"3"])
    queue: AsyncQueue[bytes] = AsyncQueue("jobs", url=url)
    async with queue:
        await queue.receive()
        await queue.receive()
    statistics = await watcher.statistics()
    assert (statistics.length, statistics.in_flight, statistics.consumer.state) == (3, 0, "free")
    delivery = await watcher.receive()
    assert (delivery.item, delivery.attempts) == (b"1", 2)
    await delivery.nack()


async def test_delete_by_another_client_ends_deliveries(open_queue: Opener, db: redis.Redis) -> None:
    queue, other = await open_two(open_queue)
    await queue.put_many([b"1", b"2"])
    first, second = await queue.receive(), await queue.receive()
    task = asyncio.create_task(other.delete())
    await eventually(lambda: not db.exists("__pressure__:jobs:bound"))
    await fails(QueueDoesNotExistError, first.ack())
    await in_time(task)
    for settle in (second.ack(), second.nack(), second.extend(5)):
        await fails(QueueDoesNotExistError, settle)
    # The name is free for a new life, also in this object.
    await other.create()
    await other.put(b"new")
    assert (await in_time(queue.receive())).item == b"new"
    await queue.aclose()


async def test_what_was_given_back_may_exceed_the_bound_and_puts_wait_meanwhile(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue, other = await open_two(open_queue, bound=2)
    await queue.put_many([b"1", b"2"])
    deliveries = [await queue.receive(), await queue.receive()]
    await other.put_many([b"3", b"4"])
    for delivery in reversed(deliveries):
        await delivery.nack()
    assert await queue.qsize() == 4
    task = await blocking(db, other.put(b"5"))
    assert await queue.get_many(2) == [b"1", b"2"]
    assert not task.done()
    assert await queue.get() == b"3"
    await in_time(task)
    assert await queue.get_many(5) == [b"4", b"5"]


@pytest.mark.parametrize("then", ["receive", "aclose"])
async def test_an_acknowledgement_that_the_server_refuses_strands_no_role(
    open_queue: Opener, db: redis.Redis, then: str
) -> None:
    queue, other = await open_two(open_queue)
    await queue.put(b"1")
    delivery = await queue.receive()
    db.set("__pressure__:jobs:stats:consumed_bytes", "many")
    with pytest.raises(ServerError, match="not an integer"):
        await delivery.ack()
    db.delete("__pressure__:jobs:stats:consumed_bytes")
    if then == "aclose":
        await queue.aclose()
    again = await in_time((queue if then == "receive" else other).receive())
    assert (again.item, again.attempts) == (b"1", 2)
    await again.ack()
