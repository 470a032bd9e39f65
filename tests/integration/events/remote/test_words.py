"""A queue on an okq server, ours or the released one, has the words of EventQueue."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from apressure import (
    Backoff,
    ClientClosedError,
    DecodeError,
    DuplicateEventError,
    EventQueue,
    LeaseLostError,
    OperationUnblockedError,
    QueueClosedError,
    QueueEmptyError,
    QueueFullError,
    ServerTooOldError,
    pipe,
    serve,
)
from apressure.protocols import Delivery
from apressure.testing.contract import drained
from tests.integration.events.remote.conftest import Open, eventually, fails, in_time
from tests.okq_server import OkqServer

SPECIFICATION = {
    "QLPUSH", "QRPUSH", "QLPEEK", "QRPEEK", "QRPOP", "QACK", "QREGISTER", "QNOTIFY", "QFLUSH", "QSTATUS", "PING",
}  # fmt: skip


async def test_put_receive_and_look(open_queue: Open) -> None:
    queue = await open_queue()
    await fails(QueueEmptyError, queue.peek())
    assert await queue.put(b"1", id="one") == "one"
    assert await queue.exists()
    await queue.put_nowait(b"2")
    assert await queue.put_many(b"%d" % n for n in range(3, 300)) == 297
    await queue.put(b"0", front=True)
    assert (await queue.peek(), await queue.peek_newest(), await queue.qsize()) == (b"0", b"299", 300)
    first = await in_time(queue.receive())
    assert isinstance(first, Delivery)
    assert (first.item, first.raw, first.attempts, first.redelivered) == (b"0", b"0", 1, False)
    found = await queue.statistics()
    assert (found.name, found.length, found.in_flight, found.consumers) == ("jobs", 299, 1, 0)
    await first.nack()
    await fails(RuntimeError, first.ack())
    again = await in_time(queue.receive())
    assert (again.id, again.attempts, again.redelivered) == (first.id, 2, True)
    await again.ack()
    assert await drained(queue) == [b"%d" % n for n in range(1, 300)]


async def test_an_id_is_in_the_queue_once(open_queue: Open) -> None:
    queue = await open_queue()
    await queue.put(b"1", id="one")
    error = await fails(DuplicateEventError, queue.put(b"2", id="one"))
    assert isinstance(error, DuplicateEventError)
    assert error.id == "one"
    delivery = await in_time(queue.receive())
    await fails(DuplicateEventError, queue.put(b"2", id="one"))
    await delivery.ack()
    await queue.put(b"2", id="one")
    assert await drained(queue) == [b"2"]


@pytest.mark.parametrize("name", ["two words", "ünï", "a\udcffb", "REDO", "q:r", "\r\n*1"])
async def test_names_ids_and_contents_may_be_anything(open_queue: Open, name: str) -> None:
    queue = await open_queue(name)
    ids = ["REDO", "NOBLOCK", "NOWAIT", "\udcff id", "\r\n"]
    for event in ids:
        await queue.put(b"\0\r\n" + event.encode(errors="surrogateescape"), id=event)
    await queue.put_many([b"NOBLOCK", b"", b"\xff" * 300_000])
    deliveries = await in_time(queue.receive_many(100))
    assert [one.id for one in deliveries[:5]] == ids
    assert [one.raw for one in deliveries[5:]] == [b"NOBLOCK", b"", b"\xff" * 300_000]
    for one in reversed(deliveries[:5]):
        await one.nack()
    again = await in_time(queue.receive_many(100))
    assert [one.id for one in again] == ids
    for one in (*again, *deliveries[5:]):
        await one.ack()
    assert (await queue.statistics()).in_flight == 0


async def test_codecs(open_queue: Open) -> None:
    queue = await open_queue(codec="json")
    await queue.put({"n": 1})
    assert await queue.get() == {"n": 1}
    raw = await open_queue()
    await raw.put(b"{")
    await queue.put_many([2, 3])
    error = await fails(DecodeError, queue.get_many(10))
    assert isinstance(error, DecodeError)
    assert error.raw == b"{"
    assert await queue.get_many(10) == [2, 3]
    await raw.put_many([b"4", b"{", b"5"])
    assert await queue.get_many(10) == [4]
    await fails(DecodeError, queue.get())
    assert await queue.get() == 5
    await fails(QueueEmptyError, queue.get_nowait())


async def test_purge_deletes_what_is_in_flight_too(open_queue: Open) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2", b"3"])
    delivery = await in_time(queue.receive())
    assert await queue.purge() == 2
    assert await queue.qsize() == 0
    await delivery.nack()
    assert await queue.qsize() == 1
    assert (await queue.purge(), await queue.purge()) == (1, 0)


async def test_a_waiting_receive_wakes(open_queue: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apressure.events.remote.notices.SLICE", 600)  # what misses its wake-up fails
    queue, other = await open_queue(), await open_queue()
    for number in range(20):
        waiting = asyncio.create_task(queue.receive())
        if number % 2:
            await eventually(lambda: queue._driver.waits._parked)
        await other.put(b"%d" % number)
        delivery = await in_time(waiting)
        assert delivery.raw == b"%d" % number
        await delivery.ack()
    await fails(QueueEmptyError, queue.receive(timeout=0.05))
    await fails(QueueEmptyError, queue.get(timeout=0.05))


async def test_many_receivers_share_a_wait(open_queue: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apressure.events.remote.notices.SLICE", 600)
    queue = await open_queue()
    waiting = [asyncio.create_task(queue.get()) for _ in range(20)]
    await eventually(lambda: len(queue._driver.waits._parked) == 1)
    assert (await queue.statistics()).waiting_receivers == 20
    assert await queue.put_many(b"%d" % n for n in range(20)) == 20
    assert sorted(await in_time(asyncio.gather(*waiting)), key=int) == [b"%d" % n for n in range(20)]


async def test_a_consumer(open_queue: Open) -> None:
    queue, other = await open_queue(), await open_queue()
    items: list[bytes] = []
    await other.put_many(b"%d" % n for n in range(100))
    async with queue.consumer() as consumer:
        assert (await other.statistics()).consumers == 1
        async for item in consumer:
            items.append(item)
            if item == b"99":
                await other.put(b"100")
            if item == b"100":
                break
    assert items == [b"%d" % n for n in range(101)]
    await eventually(lambda: _counts(other, 0, 0, 0))


async def test_a_body_that_fails_gives_back_in_order(open_queue: Open) -> None:
    queue = await open_queue()
    await queue.put_many(b"%d" % n for n in range(20))

    async def body(manual: bool) -> None:
        consumer: Any = queue.consumer("manual" if manual else "auto", prefetch=7)
        async with consumer:
            async for item in consumer:
                if (item.raw if manual else item) == b"3":
                    raise LookupError
                if manual:
                    await item.ack()

    await fails(LookupError, body(True))
    await fails(LookupError, body(False))
    again = await in_time(queue.receive())
    assert (again.raw, again.attempts) == (b"3", 3)
    await again.ack()
    assert await drained(queue) == [b"%d" % n for n in range(4, 20)]


async def test_several_queues_at_once(okq_url: str, open_queue: Open) -> None:
    queues = [await open_queue(name) for name in ("foo", "bar", "empty")]
    for queue in queues[:2]:
        await queue.put_many([b"1", b"2"])
    found: list[tuple[str, bytes]] = []
    async with EventQueue.consume("foo", "bar", "empty", "foo", url=okq_url) as consumer:
        assert [(await queue.statistics()).consumers for queue in queues] == [1, 1, 1]
        async for delivery in consumer:
            found.append((consumer.name, delivery.item))
            await delivery.ack()
            if len(found) == 4:
                await queues[2].put(b"last")
            if len(found) == 5:
                break
    assert sorted(found[:4]) == [("bar", b"1"), ("bar", b"2"), ("foo", b"1"), ("foo", b"2")]
    assert found[4:] == [("empty", b"last")]
    await eventually(lambda: _counts(queues[2], 0, 0, 0))


async def test_a_lease_that_ends(open_queue: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apressure.events.remote.notices.SLICE", 1)  # a released okq tells nobody of it
    queue, other = await open_queue(), await open_queue()
    await queue.put(b"1")
    delivery = await in_time(queue.receive(lease=0.5))
    again = await in_time(other.receive(timeout=60))
    await fails(LeaseLostError, delivery.nack())
    assert again.raw == b"1"
    await again.ack()
    late = await other.put(b"2")
    delivery = await in_time(queue.receive(lease=0.5))
    again = await in_time(queue.receive(timeout=60))
    assert (again.id, again.attempts) == (late, 2)
    await delivery.ack()  # the work is done, even if another consumer has the event now
    await fails(LeaseLostError, again.ack())
    assert await queue.qsize() == 0


async def test_blocked_operations_end_with_the_object(open_queue: Open) -> None:
    queue = await open_queue()
    waiting = [asyncio.create_task(queue.receive()), asyncio.create_task(queue.get())]
    await eventually(lambda: queue._driver.waiting == (0, 2) and queue._driver.waits._parked)
    assert await queue.unblock() == 2
    for one in waiting:
        await fails(OperationUnblockedError, one)
    consumer = queue.consumer("manual")
    await queue.put(b"1")
    async with consumer:
        delivery = await in_time(anext(consumer))
        iterating = asyncio.create_task(queue.receive())
        await eventually(lambda: queue._driver.waits._parked)
        await queue.aclose()
        await fails(ClientClosedError, iterating)
    await fails(ClientClosedError, queue.put(b"2"))
    assert delivery.settled
    assert await drained(await open_queue()) == [b"1"]


async def test_serve_and_pipe(open_queue: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apressure.events.remote.notices.SLICE", 1)  # a released okq in QNOTIFY sees no disconnection
    source, destination = await open_queue("source"), await open_queue("destination")
    with contextlib.suppress(ServerTooOldError):  # a released okq needs none
        await destination.create()
    await source.put_many(b"%d" % n for n in range(10))
    failed: list[bytes] = []

    async def double(item: bytes) -> bytes:
        if item == b"4" and not failed:
            failed.append(item)
            raise LookupError(item)
        return item * 2

    piping = asyncio.create_task(pipe(source, double, destination, retry=Backoff(0.01)))  # type: ignore[call-overload]
    handled: list[bytes] = []

    async def handle(item: bytes) -> None:
        handled.append(item)

    serving = asyncio.create_task(serve(handle, destination, concurrency=3, signals=()))
    await eventually(lambda: len(handled) == 10)
    for task in (piping, serving):
        task.cancel()
        await fails(asyncio.CancelledError, task)
    assert sorted(handled, key=int) == [b"%d%d" % (n, n) for n in range(10)]
    await eventually(lambda: _counts(source, 0, 0, 0))
    with contextlib.suppress(ServerTooOldError):  # on a released okq
        await source.close()
        await in_time(pipe(source, double, destination, close=True))  # type: ignore[call-overload]
        assert await destination.closed()


# What only one of the two kinds of server does.


async def test_the_released_okq_gets_its_own_commands_only(released: OkqServer, open_released: Open) -> None:
    queue = await open_released()
    await queue.put_many([b"1", b"2"])
    async with queue.consumer(prefetch=2) as consumer:
        async for item in consumer:
            if item == b"2":
                break
    await queue.put(b"3", front=True)
    assert await queue.get() == b"3"
    await queue.purge()
    await queue.qsize()
    # Each connection asks once for a command that it does not have.
    assert set(released.calls) - SPECIFICATION == {"QRETURN"}
    assert released.calls["QRETURN"] <= 3


async def test_the_released_okq_cannot_extend_a_lease(open_released: Open) -> None:
    queue = await open_released()
    await queue.put(b"1")
    delivery = await in_time(queue.receive())
    await fails(ServerTooOldError, delivery.extend(10.0), "receive with a longer lease=|Receive with a longer lease=")
    await delivery.ack()


async def test_a_body_slower_than_the_lease_of_a_released_okq(open_released: Open) -> None:
    queue, other = await open_released(), await open_released()
    await queue.put(b"1")
    async with queue.consumer("manual", lease=0.5) as consumer:
        delivery = await in_time(anext(consumer))
        again = await in_time(other.receive())
        await again.ack()
        await fails(LeaseLostError, delivery.ack())
    assert await queue.qsize() == 0


async def test_prefetched_events_whose_leases_have_ended_are_not_handed_out(open_released: Open) -> None:
    queue, other = await open_released(), await open_released()
    await queue.put_many([b"1", b"2"])
    async with queue.consumer("manual", lease=0.5, prefetch=2) as consumer:
        await (await in_time(anext(consumer))).ack()
        again = await in_time(other.receive())  # the second one
        await other.put(b"3")
        assert (await in_time(anext(consumer))).raw == b"3"
        assert again.raw == b"2"
        await again.ack()


async def test_our_server_extends_a_lease(open_ours: Open) -> None:
    queue, other = await open_ours(), await open_ours()
    await queue.put(b"1")
    delivery = await in_time(queue.receive(lease=0.5))
    await delivery.extend(300.0)
    await fails(QueueEmptyError, other.receive(timeout=1.5))
    await delivery.ack()


async def test_a_bound_and_the_end_on_our_server(open_ours: Open, direct: EventQueue[bytes]) -> None:
    await direct.create(bound=5)
    queue = await open_ours()
    error = await fails(QueueFullError, queue.put_many([b"%d" % n for n in range(10)], timeout=0.05))
    assert isinstance(error, QueueFullError)
    assert error.accepted == 5
    await fails(QueueFullError, queue.put_nowait(b"5"))
    waiting = asyncio.create_task(queue.put_many([b"5", b"6"]))
    await eventually(lambda: queue._driver.waits._parked)
    assert (await queue.statistics()).waiting_putters == 1
    assert [await queue.get() for _ in range(7)] == [b"%d" % n for n in range(7)]
    assert await in_time(waiting) == 2
    assert not await queue.closed()
    receiving = asyncio.create_task(queue.receive())
    await eventually(lambda: queue._driver.waits._parked)
    await direct.close()
    await fails(QueueClosedError, receiving)
    assert await queue.closed()
    await fails(QueueClosedError, queue.put(b"8"))
    await fails(QueueClosedError, queue.put_many([b"8", b"9"]))
    assert [item async for item in queue] == []


async def test_a_cancelled_wait_for_room_puts_nothing(open_ours: Open, direct: EventQueue[bytes]) -> None:
    await direct.create(bound=1)
    queue = await open_ours()
    await queue.put(b"1")
    putting = asyncio.create_task(queue.put(b"2"))
    await eventually(lambda: queue._driver.waits._parked)
    putting.cancel()
    await fails(asyncio.CancelledError, putting)
    unblocked = asyncio.create_task(queue.put(b"3"))
    await eventually(lambda: not all(parked.done() for parked in queue._driver.waits._parked))
    assert await queue.unblock() == 1
    await fails(OperationUnblockedError, unblocked)
    assert await drained(queue) == [b"1"]


async def test_a_consumer_of_our_server_waits_for_what_others_have(open_ours: Open, direct: EventQueue[bytes]) -> None:
    queue, other = await open_ours(), await open_ours()
    await queue.put_many([b"1", b"2"])
    theirs = await in_time(other.receive())
    await direct.close()
    items = []

    async def consume() -> None:
        async with queue.consumer() as consumer:
            items.extend([item async for item in consumer])

    consuming = asyncio.create_task(consume())
    await eventually(lambda: items or queue._driver.waits._parked)
    await theirs.nack()
    await in_time(consuming)
    assert sorted(items) == [b"1", b"2"]
    assert (await queue.statistics()).in_flight == 0


async def test_a_pause_holds_on_our_server(open_ours: Open, direct: EventQueue[bytes]) -> None:
    queue = await open_ours()
    await queue.put(b"1")
    await direct.pause()
    await fails(QueueEmptyError, queue.receive(timeout=0.2))
    waiting = asyncio.create_task(queue.receive())
    await eventually(lambda: queue._driver.waits._parked)
    assert not waiting.done()
    await direct.resume()
    assert (await in_time(waiting)).raw == b"1"


async def test_a_pipe_from_redis_to_our_server(open_ours: Open, direct: EventQueue[bytes]) -> None:
    destination = await open_ours("destination")
    await direct.put_many([b"1", b"2"])
    await direct.close()

    async def double(item: bytes) -> bytes:
        return item * 2

    to: Any = destination
    piped = await in_time(pipe(direct, double, to))
    assert (piped.put, piped.exactly_once) == (2, False)
    assert await drained(destination) == [b"11", b"22"]


# What is refused.


@pytest.mark.parametrize(
    "verb",
    ["close", "create", "dead_letters", "delete", "pause", "requeue", "resume", "wait_closed"],
)
async def test_what_a_released_okq_cannot_do_says_what_to_use(open_released: Open, verb: str) -> None:
    queue = await open_released()
    await queue.put(b"1")
    await fails(
        ServerTooOldError, getattr(queue, verb)(), r"has no Q[A-Z]+: .*Use apressure's server .*or EventQueue with"
    )
    assert (await queue.exists(), await queue.closed(), await queue.paused()) == (True, False, False)
    assert (await queue.bound(), await queue.get()) == (0, b"1")


async def test_a_producer_on_a_released_okq_does_not_close_the_queue(open_released: Open) -> None:
    queue = await open_released()
    with pytest.raises(ServerTooOldError):
        async with queue.producer() as producer:
            await producer.put(b"1")
    async with queue.producer(close=False) as producer:
        await producer.put_many([b"2", b"3"])
    assert await queue.get_many(3) == [b"1", b"2", b"3"]


async def test_dead_letters_of_the_servers_redis(open_ours: Open, url: str) -> None:
    async with EventQueue("jobs", url=url, max_attempts=1) as direct:
        await direct.create(bound=2)
        await direct.put_many([b"1", b"2"])
        for delivery in reversed(await direct.receive_many(2)):
            await delivery.nack(LookupError("why"))
        await fails(QueueEmptyError, direct.receive(timeout=0))
        queue = await open_ours()
        letters = await queue.dead_letters()
        assert [(letter.item, letter.error and letter.error.message) for letter in letters] == [
            (b"1", "why"), (b"2", "why"),
        ]  # fmt: skip
        moved = await queue.requeue(ids=[letters[1].id, "another"])
        assert (moved, moved.not_found) == (1, ("another",))
        await queue.put(b"3")
        full: Any = await fails(QueueFullError, queue.requeue(timeout=0.05))
        assert full.accepted == 0
        waiting = asyncio.create_task(queue.requeue(1))
        assert await queue.get() == b"2"
        assert await in_time(waiting) == 1
        assert await queue.get_many(5) == [b"3", b"1"]
        await queue.close()
        await fails(QueueClosedError, queue.close())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_attempts": 0}, "max_attempts must be at least 1"),
        ({"durability": 1}, "durability is for a Redis server"),
        ({"host": "other"}, "host is for a Redis server"),
        ({"scripting": False}, "scripting is for a Redis server"),
        ({"url": "okq://host/3"}, "no numbered databases"),
        ({"url": "okq://host:port"}, "the port must be a number|not valid"),
        ({"url": "okq://secret@host:99999"}, "port"),
    ],
)
def test_options_that_mean_nothing_to_okq(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error) as raised:
        EventQueue("jobs", **{"url": "okq://host", **options})
    assert "secret" not in str(raised.value)
    with pytest.raises(ValueError, match=error):
        EventQueue.consume("jobs", **{"url": "okq://host", **options})


def test_urls() -> None:
    for url, shown in (
        ("okq://host", "host:4777"),
        ("okq://:secret@host:5000", "host:5000"),
        ("okqs://user:secret@[::1]", "::1:4777"),
        ("OKQ://10.0.0.1:4000/", "10.0.0.1:4000"),
        ("okq+unix:///run/okq.sock", "/run/okq.sock"),
    ):
        assert repr(EventQueue("jobs", url=url)) == f"<EventQueue 'jobs' at {shown}>"


async def _counts(queue: EventQueue[Any], total: int, in_flight: int, consumers: int) -> bool:
    found = await queue.statistics()
    return (found.length + found.in_flight, found.in_flight, found.consumers) == (total, in_flight, consumers)
