"""Delayed events on an okq server, beside `DelayContract`: a server of ours has them, and a released one says so."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from apressure import Backoff, DuplicateEventError, EventQueue, OutcomeUnknownError, Retry, ServerTooOldError, serve
from apressure.connection.wire.channel import ConnectionLost
from apressure.dead_letters import Failure
from apressure.events.remote import connection, notices
from apressure.sync import Queue
from apressure.testing.contract import begun, drained
from tests.integration.events.remote.conftest import Open, Process, eventually, fails, in_time
from tests.integration.events.remote.test_words import SPECIFICATION
from tests.okq_server import OkqServer


class Losing:
    """Loses replies to a command: the server has carried it out, or has not got it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, verb: bytes, times: int = 1, carried_out: bool = True) -> None:
        self.lost = 0
        replies = connection.replies

        async def losing(channel: Any, sent: Any) -> list[Any]:
            if not sent or sent[0][0] != verb or self.lost >= times:
                return await replies(channel, sent)
            self.lost += 1
            if carried_out:
                await replies(channel, sent)
            return [ConnectionLost("lost")]

        monkeypatch.setattr(connection, "replies", losing)


# A server of ours.


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_lost_reply_does_not_double_a_delayed_put(
    open_ours: Open, monkeypatch: pytest.MonkeyPatch, carried_out: bool
) -> None:
    queue = await open_ours()
    losing = Losing(monkeypatch, b"QDELAY", 2, carried_out)
    await in_time(queue.put(b"1", delay=0.3))
    assert losing.lost == 2
    assert (await queue.statistics()).delayed == 1
    losing.lost = 1
    assert await in_time(queue.put_many([b"2", b"3"], delay=0.3)) == 2
    losing.lost = 1
    if carried_out:
        await fails(OutcomeUnknownError, queue.put(b"4", id="four", delay=0.3), "an event with the id 'four'")
    else:
        await in_time(queue.put(b"4", id="four", delay=0.3))
    assert (await queue.statistics()).delayed == 4
    await fails(DuplicateEventError, queue.put(b"5", id="four", delay=1))
    assert sorted([await in_time(queue.get()) for _ in range(4)]) == [b"1", b"2", b"3", b"4"]
    assert await drained(queue) == []


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_lost_reply_does_not_count_a_retry_twice(
    open_ours: Open, monkeypatch: pytest.MonkeyPatch, carried_out: bool
) -> None:
    queue = await open_ours(max_attempts=2)
    await queue.put(b"1")
    delivery = await in_time(queue.receive())
    begun_at = time.time()
    Losing(monkeypatch, b"QLATER", 2, carried_out)
    await in_time(delivery.nack(ValueError("no"), delay=0.5))
    statistics = await queue.statistics()
    assert (statistics.in_flight, statistics.delayed) == (0, 1)
    again = await in_time(queue.receive())
    assert (again.raw, again.attempts) == (b"1", 2)
    assert time.time() - begun_at > 0.49
    await again.nack()
    await fails(TimeoutError, asyncio.wait_for(queue.receive(), 0.1))
    (letter,) = await queue.dead_letters()
    assert (letter.attempts, letter.error) == (2, Failure("ValueError", "no", 1))


async def test_what_may_be_due_again_is_not_given_back_once_more(
    open_ours: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client has it by then."""
    queue, other = await open_ours(), await open_ours()
    await queue.put(b"1")
    delivery = await in_time(queue.receive())
    replies, given = connection.replies, asyncio.Event()

    async def slow(channel: Any, sent: Any) -> list[Any]:
        answers = await replies(channel, sent)
        if sent and sent[0][0] == b"QLATER":
            await given.wait()
            return [ConnectionLost("lost")]
        return answers

    monkeypatch.setattr(connection, "replies", slow)
    giving = await begun(delivery.nack(delay=0.1))
    again = await in_time(other.receive())
    given.set()
    await in_time(giving)
    assert (await queue.statistics()).in_flight == 1
    assert again.attempts == 2
    await again.ack()


async def test_a_cancelled_nack_is_done_all_the_same(open_ours: Open) -> None:
    queue = await open_ours()
    for turns in range(12):
        await queue.put(b"1")
        delivery = await in_time(queue.receive())
        giving = asyncio.create_task(delivery.nack(delay=0.01))
        for _ in range(turns):
            await asyncio.sleep(0)
        giving.cancel()
        await in_time(asyncio.wait((giving,)))
        if not delivery.settled:  # it had not begun
            await delivery.nack(delay=0.01)
        again = await in_time(queue.receive())
        assert again.attempts == 2
        await again.ack()
    assert await drained(queue) == []


async def test_a_killed_server_keeps_the_times_and_the_attempts(process: Process) -> None:
    async with EventQueue("jobs", url=process.url, retry_timeout=60, max_attempts=9) as queue:
        await queue.put(b"put", delay=3)
        put_at = given_back_at = time.time()
        await queue.put(b"1")
        seen = []
        while len(seen) < 5:
            delivery = await in_time(queue.receive())
            seen.append((delivery.raw, delivery.attempts))
            if delivery.raw == b"put":
                assert time.time() - put_at > 2.99
                await delivery.ack()
                continue
            assert delivery.attempts == 1 or time.time() - given_back_at > 0.49
            if delivery.attempts == 4:
                await delivery.ack()
                continue
            given_back_at = time.time()
            await delivery.nack(ValueError("no"), delay=0.5)
            process.kill()
            await asyncio.to_thread(process.start)
        assert sorted(seen) == [*((b"1", attempt) for attempt in range(1, 5)), (b"put", 1)]


async def test_a_server_that_is_killed_in_between_loses_no_delayed_put(process: Process) -> None:
    """Each is there once, although some replies are lost."""
    async with EventQueue("jobs", url=process.url, retry_timeout=60) as queue:
        put = 0
        for _ in range(3):
            putting = asyncio.create_task(queue.put_many((b"%d" % n for n in range(put, put + 5000)), delay=30))
            await eventually(lambda before=put: _delayed(queue, before + 1))
            process.kill()
            await asyncio.to_thread(process.start)
            put += await in_time(putting)
        assert (await queue.statistics()).delayed == put == 15_000
        assert await queue.purge() == 15_000


async def _delayed(queue: EventQueue[Any], least: int) -> bool:
    return (await queue.statistics()).delayed >= least


async def test_what_a_program_on_the_redis_delays_comes_at_its_time(
    open_ours: Open, direct: EventQueue[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "SLICE", 600)  # what misses its wake-up fails
    queue = await open_ours()
    await direct.put(b"late", delay=60)
    waiting = [await begun(queue.receive()), await begun(queue.receive())]
    await asyncio.sleep(0.6)
    begun_at = time.time()
    await direct.put(b"1", delay=0.2)
    await queue.put(b"2", at=datetime.now(UTC) + timedelta(seconds=0.3))
    first, second = await in_time(asyncio.gather(*waiting))
    assert sorted([first.raw, second.raw]) == [b"1", b"2"]
    assert time.time() - begun_at > 0.19
    await first.nack(delay=0.1)
    again = await in_time(direct.receive())  # and the other way round
    assert (again.raw, again.attempts) == (first.raw, 2)
    await again.ack()
    await second.ack()


async def test_a_consumer_does_not_delete_what_is_delayed(open_ours: Open) -> None:
    queue, other = await open_ours(), await open_ours()
    await queue.create()
    await queue.put_many([b"1", b"2"])
    await queue.close()
    async with queue.consumer("manual", delete=True) as consumer:
        async for delivery in consumer:
            if delivery.raw == b"2":
                await delivery.nack(delay=0.3)
                break
            await delivery.ack()
    assert (await other.statistics()).delayed == 1
    async with queue.consumer("manual", delete=True) as consumer:
        async for delivery in consumer:
            assert (delivery.raw, delivery.attempts) == (b"2", 2)
            await delivery.ack()
    assert not await other.exists()


async def test_a_consumer_of_several_queues(open_ours: Open, ours: str) -> None:
    queues = [await open_ours(name) for name in ("foo", "bar")]
    for queue in queues:
        await queue.create()
        await queue.put(b"later", delay=0.3)
        await queue.put(b"now")
        await queue.close()
    got: list[tuple[str, bytes, int]] = []
    async with asyncio.timeout(60), EventQueue.consume("foo", "bar", url=ours) as consumer:
        async for delivery in consumer:
            if delivery.raw == b"now" and delivery.attempts == 1:
                await delivery.nack(delay=0.2)
                continue
            got.append((consumer.name, delivery.raw, delivery.attempts))
            await delivery.ack()
    assert sorted(got) == [("bar", b"later", 1), ("bar", b"now", 2), ("foo", b"later", 1), ("foo", b"now", 2)]


async def test_retries_of_a_service_wait_on_the_server(open_ours: Open) -> None:
    queue = await open_ours(max_attempts=3)
    await queue.create()
    calls: list[float] = []

    async def handle(item: bytes) -> None:
        if item == b"bad":
            raise ValueError("no")
        calls.append(time.time())
        if len(calls) < 2:
            raise Retry("not yet", after=0.5)

    await queue.put_many([b"bad", b"1"])
    service = await begun(serve(handle, queue, retry=Backoff(60), signals=()))

    async def waits() -> bool:
        statistics = await queue.statistics()
        return (statistics.delayed, statistics.in_flight, statistics.length, len(calls)) == (1, 0, 0, 2)

    await eventually(waits)
    assert calls[1] - calls[0] > 0.49
    service.cancel()
    await fails(asyncio.CancelledError, service)
    statistics = await queue.statistics()
    assert (statistics.delayed, statistics.in_flight) == (1, 0)
    assert statistics.next_due is not None
    assert 20 < statistics.next_due <= 60


async def test_attempts_and_errors_outlive_services(open_ours: Open) -> None:
    queue = await open_ours(max_attempts=3)
    await queue.create()

    async def fail(item: bytes) -> None:
        raise ValueError(item.decode())

    await queue.put(b"bad")
    await queue.close()
    await in_time(serve(fail, queue, retry=Backoff(0.05, jitter=False), signals=()))
    (letter,) = await queue.dead_letters()
    assert (letter.item, letter.attempts, letter.error) == (b"bad", 3, Failure("ValueError", "bad", 3))


async def test_from_threads(ours: str) -> None:
    def work() -> None:
        with Queue(EventQueue("jobs", url=ours)) as queue:
            queue.put(b"1", delay=0.1)
            delivery = queue.receive(timeout=60)
            assert delivery.can_delay
            delivery.nack(delay=0.1)
            again = queue.receive(timeout=60)
            assert again.attempts == 2
            again.ack()

    await asyncio.to_thread(work)


# A released okq.


async def test_a_released_okq_cannot_delay(released: OkqServer, open_released: Open) -> None:
    queue = await open_released()
    soon = datetime.now(UTC) + timedelta(seconds=1)
    for put in (
        queue.put(b"1", delay=1),
        queue.put(b"1", at=soon),
        queue.put_nowait(b"1", delay=1),
        queue.put_many([b"1", b"2"], delay=1),
        queue.put_many([b"1", b"2"], at=soon),
    ):
        await fails(ServerTooOldError, put, r"cannot be delayed: .*apressure events serve.*redis://")
    assert await queue.qsize() == 0
    await queue.put(b"1", delay=0)
    delivery = await in_time(queue.receive())
    assert not delivery.can_delay
    await fails(ServerTooOldError, delivery.nack(ValueError("no"), delay=1), "cannot be delayed")
    assert not delivery.settled
    await delivery.nack(ValueError("no"))
    assert (await queue.statistics()).delayed == 0
    assert await drained(queue) == [b"1"]
    assert set(released.calls) - SPECIFICATION == {"QRETURN"}


async def test_a_service_on_a_released_okq_keeps_retries_itself(released: OkqServer, open_released: Open) -> None:
    queue = await open_released()
    await queue.put(b"1")
    calls: list[float] = []

    async def handle(_: bytes) -> None:
        calls.append(time.time())
        if len(calls) < 2:
            raise Retry(after=0.3)

    service = await begun(serve(handle, queue, retry=Backoff(60), signals=()))
    await eventually(lambda: len(calls) == 2 and not released.store[b"jobs"].items)
    assert calls[1] - calls[0] > 0.29
    service.cancel()
    await fails(asyncio.CancelledError, service)
