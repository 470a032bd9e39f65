"""Delayed events: what is special to this format, beside `DelayContract`."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest
import redis

from apressure import DuplicateEventError, EventQueue, QueueEmptyError, QueueFullError, ServerError
from apressure.embedded import EmbeddedServer
from apressure.exceptions import OutOfMemoryError
from apressure.testing.proxy import Proxy
from tests.integration.deaths import url_of
from tests.integration.events.conftest import Open, consistent, in_time
from tests.integration.events.remote.conftest import serving
from tests.okq import Okq

DELAYED = "apressure:queue:{jobs}:delayed"
LATER = "apressure:queue:{jobs}:later"


async def test_an_okq_sees_nothing_of_a_delayed_event(queue: EventQueue[bytes], okq: Okq, db: redis.Redis) -> None:
    await queue.put(b"1", id="a", delay=60)
    assert okq.pop("jobs") is None
    assert db.exists(*(Okq.key("jobs", *parts) for parts in ((), ("claimed",), ("items",)))) == 0
    assert db.zcard(DELAYED) == db.hlen(LATER) == 1
    with pytest.raises(DuplicateEventError):
        await queue.put(b"2", id="a")
    with pytest.raises(DuplicateEventError):
        await queue.put(b"2", id="a", delay=1)


async def test_an_okq_gets_what_a_client_of_ours_has_made_due(
    queue: EventQueue[bytes], okq: Okq, db: redis.Redis
) -> None:
    await queue.put(b"1", id="a", delay=0.05)
    await asyncio.sleep(0.2)
    assert okq.pop("jobs") is None  # no client of ours has come since
    await queue.put(b"2", id="b")
    assert okq.pop("jobs") == ("b", b"2")
    assert okq.pop("jobs") == ("a", b"1")
    assert db.exists(DELAYED, LATER) == 0


async def test_an_id_that_an_okq_uses_meanwhile_waits_until_it_is_free(
    queue: EventQueue[bytes], okq: Okq, db: redis.Redis
) -> None:
    await queue.put(b"ours", id="a", delay=0.05)
    okq.push("jobs", "a", b"theirs")
    await asyncio.sleep(0.2)
    first = await in_time(queue.receive())
    assert first.raw == b"theirs"
    assert db.zcard(DELAYED) == 1
    await first.ack()
    second = await in_time(queue.receive())
    assert (second.raw, second.id) == (b"ours", "a")
    await second.ack()
    assert consistent(db)


async def test_a_server_of_ours_makes_events_due_for_clients_in_any_language(
    queue: EventQueue[bytes], url: str
) -> None:
    async with serving(url) as address, EventQueue("jobs", url=address) as remote:
        waiting = asyncio.ensure_future(remote.receive())
        await queue.put(b"1", delay=0.3)
        delivery = await in_time(waiting)
        assert delivery.raw == b"1"
        await delivery.nack(delay=0.1)
        again = await in_time(queue.receive())
        assert (again.raw, again.attempts) == (b"1", 2)
        await again.ack()
        await remote.put(b"2", delay=0.1)
        assert await in_time(queue.get()) == b"2"


async def test_front_and_later_exclude_each_other(queue: EventQueue[bytes]) -> None:
    with pytest.raises(ValueError, match="front"):
        await queue.put(b"1", front=True, delay=1)
    async with queue.producer(close=False) as producer:
        assert await producer.put(b"1", id="x", delay=0.01) == "x"
    assert await in_time(queue.get()) == b"1"


async def test_many_due_events_join_the_line_in_order(queue: EventQueue[bytes], db: redis.Redis) -> None:
    """A step takes 100 of them."""
    items = [b"%d" % number for number in range(1000)]
    await queue.put_many(items, delay=0.1)
    await asyncio.sleep(0.3)
    await queue.get_many(1)
    assert db.zcard(DELAYED) == 900
    got = [b"0"]
    while len(got) < len(items):
        got += await in_time(queue.get_many(500))
    assert got == items


async def test_a_lost_reply_does_not_double_a_delayed_event(queue: EventQueue[bytes], db: redis.Redis) -> None:
    async with Proxy(url_of(db), random.Random(3)) as line, EventQueue("jobs", url=line.url) as putting:
        await putting.exists()
        for number in range(20):
            async with asyncio.timeout(60):
                cutting = asyncio.get_running_loop().call_later(0.002 * (number % 5), line.cut)
                await putting.put(b"%d" % number, delay=0.5)
                cutting.cancel()
    await queue.close()
    got: list[bytes] = []
    async with asyncio.timeout(60):
        async for item in queue:
            got.append(item)
    assert sorted(got, key=int) == [b"%d" % number for number in range(20)]


async def test_a_full_server_refuses_a_delayed_event_and_still_makes_others_due(
    queue: EventQueue[bytes], db: redis.Redis
) -> None:
    await queue.put(b"1", delay=0.05)
    await queue.put(b"2")
    delivery = await in_time(queue.receive())
    db.config_set("maxmemory", 1)
    try:
        with pytest.raises(OutOfMemoryError):
            await queue.put(b"3", delay=1)
        await delivery.nack("busy", delay=0.1)
        assert sorted([await in_time(queue.get()), await in_time(queue.get())]) == [b"1", b"2"]
    finally:
        db.config_set("maxmemory", 0)
    assert (await queue.statistics()).delayed == 0


@pytest.mark.parametrize("key", [DELAYED, LATER])
async def test_a_key_of_another_type_is_an_error_and_nothing_is_put(
    queue: EventQueue[bytes], db: redis.Redis, key: str
) -> None:
    db.set(key, "x")
    for operation in (queue.put(b"1"), queue.put(b"1", delay=1), queue.receive(timeout=0)):
        with pytest.raises(ServerError, match="WRONGTYPE"):
            await operation
    db.delete(key)
    assert await queue.qsize() == 0
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)


async def test_entries_without_their_other_half_do_no_harm(queue: EventQueue[bytes], db: redis.Redis) -> None:
    db.zadd(DELAYED, {"gone": 1})
    db.hset(LATER, "left", "x")
    await queue.put(b"1", delay=0.05)
    assert await in_time(queue.get()) == b"1"
    assert db.zcard(DELAYED) == 0
    await queue.put(b"2")
    await queue.delete()
    assert db.exists(LATER) == 0


async def test_a_requeue_and_a_stage_leave_room_for_what_is_delayed(open_queue: Open) -> None:
    queue = await open_queue(bound=2, max_attempts=1)
    await queue.put(b"bad")
    await (await in_time(queue.receive())).nack()
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    await queue.put(b"1", delay=60)
    await queue.put(b"2", delay=60)
    with pytest.raises(QueueFullError):
        await queue.requeue(timeout=0)
    assert await queue.purge() == 2
    assert await queue.requeue(timeout=0) == 1


async def test_attempts_are_kept_while_everything_is_delayed(open_queue: Open, db: redis.Redis) -> None:
    """Attempts of events that are gone are forgotten when nothing is left; delayed events are not gone."""
    queue = await open_queue(max_attempts=5)
    await queue.put(b"1")
    for attempt in range(1, 4):
        delivery = await in_time(queue.receive())
        assert delivery.attempts == attempt
        await delivery.nack(ValueError(str(attempt)), delay=0.1)
        with pytest.raises(QueueEmptyError):
            await queue.receive(timeout=0)  # it looks for what can be forgotten
    delivery = await in_time(queue.receive())
    assert delivery.attempts == 4
    await delivery.ack()
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    assert db.exists("apressure:queue:{jobs}:attempts", "apressure:queue:{jobs}:errors") == 0


async def test_attempts_and_errors_are_kept_through_a_pause_of_months(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue(max_attempts=5)
    await queue.put_many([b"1", b"2"])
    delivery, other = await in_time(queue.receive()), await in_time(queue.receive())
    months = 100 * 86_400.0
    await delivery.nack(ValueError("not yet"), delay=months)
    await other.nack()  # it keeps its attempts for a month
    for key in ("attempts", "errors"):
        assert db.pttl(f"apressure:queue:{{jobs}}:{key}") > 1000 * months
    assert await queue.purge() == 2


async def test_a_restart_of_the_server_keeps_the_time(tmp_path: Path) -> None:
    server = EmbeddedServer(directory=tmp_path)
    server.start()
    try:
        async with EventQueue("jobs", url=server.url, retry_timeout=60) as queue:
            await queue.put(b"1", delay=3)
            await queue.put(b"2")
            delivery = await in_time(queue.receive())
            given_back_at = time.time()
            await delivery.nack(delay=2)
            server.stop()
            server.start()
            again = await in_time(queue.receive())
            assert (again.raw, again.attempts) == (b"2", 2)
            assert time.time() - given_back_at > 1.99
            assert await in_time(queue.get()) == b"1"
            await again.ack()
    finally:
        server.stop()
