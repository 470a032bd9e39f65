"""MemoryQueue, beside the contract: servers that are shared, stand still, are slow or fail, and time that passes."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import pytest

from apressure import (
    Backoff,
    DeadlineOutcomeUnknownError,
    DecodeError,
    LeaseLostError,
    OutcomeUnknownError,
    QueueEmptyError,
    ServerError,
    serve,
    sync,
)
from apressure.testing import MemoryQueue, MemoryServer
from apressure.testing.contract import begun, drained, fails, in_time
from tests import processes


async def test_queues_of_one_server_are_known_by_their_names() -> None:
    server = MemoryServer()
    async with MemoryQueue("a", server=server) as queue, MemoryQueue("b", server=server) as other:
        await queue.put(b"1")
        assert (await queue.qsize(), await other.qsize()) == (1, 0)
        async with MemoryQueue("a", server=server) as same, MemoryQueue("a") as alone:
            assert (await same.qsize(), await alone.qsize()) == (1, 0)
    async with MemoryQueue("a", server=server) as later:
        assert await later.get() == b"1"


async def test_items_go_through_the_codec() -> None:
    async with MemoryQueue("orders", codec="json") as queue:
        item = {"number": 1}
        await queue.put(item)
        item["number"] = 2
        assert await queue.get() == {"number": 1}
        await fails(TypeError, queue.put(object()))
    async with MemoryQueue("orders", server=queue.server) as raw:
        await raw.put(b"{")
    async with MemoryQueue("orders", server=queue.server, codec="json") as queue:
        await fails(DecodeError, queue.get())


async def test_a_lease_ends_when_time_passes() -> None:
    async with MemoryQueue("orders") as queue:
        await queue.put(b"1")
        first = await queue.receive(lease=60)
        waiting = await begun(queue.receive())
        queue.server.advance(59)
        await fails(QueueEmptyError, queue.receive(timeout=0))
        await first.extend(10)
        queue.server.advance(2)
        assert not waiting.done()
        queue.server.advance(8)
        again = await in_time(waiting)
        assert (again.raw, again.attempts) == (b"1", 2)
        await fails(LeaseLostError, first.ack())
        await again.ack()


async def test_leases_end_by_the_clock_that_is_given() -> None:
    now = 100.0
    async with MemoryQueue("orders", server=MemoryServer(clock=lambda: now)) as queue:
        await queue.put(b"1")
        await queue.receive(lease=60)
        waiting = await begun(queue.receive())
        now += 61
        queue.server.advance(0)
        assert (await in_time(waiting)).redelivered


async def test_a_lease_ends_by_itself() -> None:
    async with MemoryQueue("orders", max_attempts=1) as queue:
        await queue.put(b"1")
        await queue.receive(lease=0.1)
        waiting = await begun(queue.receive(lease=0.1))
        while not await queue.dead_letters():
            await asyncio.sleep(0.01)
        waiting.cancel()


async def test_a_consumer_keeps_its_leases() -> None:
    async with MemoryQueue("orders") as queue:
        await queue.put_many([b"1", b"2"])
        async with queue.consumer(lease=0.2) as consumer:
            assert await anext(consumer) == b"1"
            await asyncio.sleep(0.5)
            assert await queue.qsize() == 1
        queue.server.advance(0)
        assert (await queue.statistics()).in_flight == 0


async def test_a_consumer_whose_leases_have_ended_is_told() -> None:
    async with MemoryQueue("orders") as queue:
        await queue.put(b"1")

        async def consume() -> None:
            async with queue.consumer(lease=10) as consumer:
                await anext(consumer)
                queue.server.advance(20)
                assert (await queue.receive()).redelivered

        await fails(LeaseLostError, consume())


async def test_a_handler_that_is_stuck_gives_back_what_it_has(caplog: pytest.LogCaptureFixture) -> None:
    async with MemoryQueue("orders") as queue:
        await queue.put(b"1")
        async with queue.consumer("manual", lease=0.2, max_hold=0.3) as consumer:
            lost: list[Exception] = []
            consumer.on_lost(lost.append)
            delivery = await anext(consumer)
            again = await in_time(queue.receive())
            assert isinstance(lost[0], LeaseLostError)
            await fails(LeaseLostError, delivery.ack())
            await again.ack()
    assert any(getattr(record, "event", "") == "handler_stuck" for record in caplog.records)


@pytest.mark.parametrize("paused", [False, True])
async def test_what_waits_sends_no_steps(monkeypatch: pytest.MonkeyPatch, paused: bool) -> None:
    sent: list[Any] = []
    usual = MemoryServer.send
    monkeypatch.setattr(MemoryServer, "send", lambda self, step: (sent.append(step), usual(self, step)))
    async with MemoryQueue("orders", max_attempts=1) as queue:
        await queue.create(bound=1)
        await queue.put(b"1")
        await (await queue.receive()).nack()
        await fails(QueueEmptyError, queue.receive(timeout=0))
        if paused:
            await queue.pause()

        async def consume() -> None:
            async with queue.consumer() as consumer:
                await anext(consumer)

        waiting = [await begun(queue.wait_closed()), await begun(queue.receive()), await begun(consume())]
        sent.clear()
        await asyncio.sleep(0.05)
        assert len(sent) == 0
        if paused:
            await queue.put(b"2")
            waiting += [await begun(queue.put(b"3")), await begun(queue.requeue())]
            sent.clear()
            await asyncio.sleep(0.05)
            assert len(sent) == 0
        assert await queue.unblock() >= len(waiting)
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_server_that_stands_still_carries_steps_out_later() -> None:
    async with MemoryQueue("orders") as queue:
        with queue.server.frozen():
            await fails(DeadlineOutcomeUnknownError, queue.put(b"1", deadline=0.05))
            putting = await begun(queue.put(b"2"))
            assert not putting.done()
        await in_time(putting)
        assert await drained(queue) == [b"1", b"2"]


async def test_a_server_may_be_slow() -> None:
    async with MemoryQueue("orders", server=MemoryServer(latency=0.1)) as queue:
        await fails(TimeoutError, queue.put(b"1", deadline=0.05))
        queue.server.latency = 0
        await queue.put(b"2")


async def test_steps_fail() -> None:
    async with MemoryQueue("orders") as queue:
        queue.server.fail(ServerError("out of order"), steps=2)
        assert "out of order" in str(await fails(ServerError, queue.put(b"1")))
        await fails(ServerError, queue.receive())
        queue.server.fail(OutcomeUnknownError("the reply was lost"), carried_out=True)
        await fails(OutcomeUnknownError, queue.put(b"2"))
        delivery = await in_time(queue.receive())
        queue.server.fail(ServerError("out of order"))
        await fails(ServerError, delivery.ack())
        assert not delivery.settled
        await delivery.ack()
        assert await queue.qsize() == 0
    for bad in (0, "1"):
        with pytest.raises((TypeError, ValueError)):
            queue.server.fail(ServerError(""), steps=bad)  # type: ignore[arg-type]


async def test_an_acknowledgement_that_nobody_waits_for_fails() -> None:
    async with MemoryQueue("orders") as queue:
        await queue.put_many([b"1", b"2"])

        async def consume() -> None:
            async with queue.consumer(prefetch=2) as consumer:
                async for item in consumer:
                    if item == b"1":
                        queue.server.fail(ServerError("out of order"))

        await fails(ServerError, consume())


async def test_a_handler_is_tried_again() -> None:
    async with MemoryQueue("orders", max_attempts=2) as queue:
        await queue.put(b"1")
        await queue.close()

        async def handle(item: bytes) -> None:
            raise LookupError(item.decode())

        served = await serve(handle, queue, retry=Backoff(0), signals=())
        assert served.failed == 2
        (letter,) = await queue.dead_letters()
        assert (letter.attempts, letter.reason) == (2, "LookupError: 1")


async def test_deliveries_and_dead_letters_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "apressure")
    async with MemoryQueue("orders", max_attempts=2) as queue:
        await queue.put(b"1")
        for _ in range(2):
            await (await queue.receive()).nack()
        await fails(QueueEmptyError, queue.receive(timeout=0))
        counts = await queue.statistics()
    assert [record.event for record in caplog.records] == ["redelivered", "dead_letter"]  # type: ignore[attr-defined]
    assert (counts.put_count, counts.received_count, counts.dead_lettered_count, counts.deleted_count) == (1, 2, 1, 0)


def test_without_asyncio() -> None:
    with sync.Queue(MemoryQueue("orders", codec="text")) as queue:
        queue.create(bound=10)
        with queue.producer() as producer:
            producer.put("1")
            producer.put("2")
        with queue.consumer() as consumer:
            assert list(consumer) == ["1", "2"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": 1}, TypeError), ({"max_attempts": 0}, ValueError), ({"max_attempts": "1"}, TypeError),
        ({"codec": "none"}, ValueError), ({"bound": 1}, TypeError),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        MemoryQueue(**{"name": "orders", **arguments})


async def test_a_server_refuses_times_that_are_none() -> None:
    with pytest.raises(ValueError, match="latency"):
        MemoryServer(latency=-1)
    with pytest.raises(ValueError, match="seconds"):
        MemoryServer().advance(-1)
    assert "MemoryServer" in repr(MemoryServer())
    assert repr(MemoryQueue("orders")) == "<MemoryQueue 'orders'>"


def test_it_belongs_to_one_event_loop() -> None:
    queue = MemoryQueue("orders")
    asyncio.run(queue.put(b"1"))
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(queue.put(b"2"))


def test_importing_it_loads_no_server() -> None:
    program = "import sys, apressure.testing.memory.queue; print(*sys.modules, sep='\\n')"
    done = processes.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = done.stdout.splitlines()
    assert "apressure.testing.memory.stored" in loaded
    for name in ("apressure.embedded", "apressure.events.queue", "apressure.testing.contract", "fakeredis", "pytest"):
        assert name not in loaded
