"""Lost replies, killed servers, cancellations and wrong addresses: nothing is lost, and errors say what happened."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from apressure import (
    AuthenticationError,
    ClientClosedError,
    DeadlineError,
    EventQueue,
    OutcomeUnknownError,
    PressureError,
    QueueEmptyError,
    ServerError,
    ServerUnavailableError,
)
from apressure.connection.wire.channel import ConnectionLost
from apressure.events import consumer
from apressure.events.remote import connection, notices
from apressure.events.server.settings import Address, Tls
from apressure.testing.contract import drained
from tests.integration.events.remote.conftest import Open, Process, cleared, eventually, fails, in_time, serving
from tests.okq_server import OkqServer

# Replies that are lost.


async def test_a_put_whose_reply_was_lost_is_there_once(released: OkqServer, open_released: Open) -> None:
    queue = await open_released()
    released.losses["QLPUSH"] = 2
    await in_time(queue.put(b"1"))
    released.losses["QLPUSH"] = 1
    assert await in_time(queue.put_many(b"%d" % n for n in range(2, 300))) == 298
    released.losses["QRPUSH"] = 1
    await in_time(queue.put(b"0", front=True))
    assert await drained(queue) == [b"%d" % n for n in range(300)]


async def test_a_put_is_done_twice_if_its_event_was_consumed_in_between(
    released: OkqServer, open_released: Open
) -> None:
    queue, other = await open_released(), await open_released()
    released.losses["QLPUSH"] = 1
    putting = asyncio.create_task(queue.put(b"1"))
    assert await in_time(other.get()) == b"1"
    await in_time(putting)
    assert await drained(other) in ([], [b"1"])


async def test_a_lost_reply_to_a_put_with_an_id_leaves_the_outcome_unknown(
    released: OkqServer, open_released: Open
) -> None:
    queue = await open_released()
    released.losses["QLPUSH"] = 1
    await fails(OutcomeUnknownError, queue.put(b"1", id="one"), "now the queue 'jobs' has an event with the id 'one'")
    assert await drained(queue) == [b"1"]


async def test_lost_replies_to_a_consumer(
    released: OkqServer, open_released: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "SLICE", 1)  # a released okq tells nobody that a lease has ended
    queue = await open_released()
    await queue.put_many(b"%d" % n for n in range(30))
    released.losses.update({"QRPOP": 1, "QACK": 3, "QREGISTER": 1, "QNOTIFY": 1})
    items: set[bytes] = set()
    async with queue.consumer(lease=1.0) as consumer:
        async for item in consumer:
            items.add(item)
            if len(items) == 30:
                break
    assert await queue.qsize() == 0
    released.losses["QACK"] = 1
    await queue.put(b"x")
    delivery = await in_time(queue.receive())
    await delivery.nack()
    assert await drained(queue) == [b"x"]


async def test_a_get_returns_nothing_whose_acknowledgement_is_not_certain(
    released: OkqServer, open_released: Open
) -> None:
    queue = await open_released()
    await queue.put(b"1")
    released.losses["QACK"] = 1
    await fails(OutcomeUnknownError, queue.get(), "may be lost")
    await queue.put(b"2")
    released.losses["QRPOP"] = 1  # it comes again, and `get` waits for that
    getting = asyncio.create_task(queue.get())
    await eventually(lambda: released.store[b"jobs"].claimed)
    for event in released.store[b"jobs"].claimed:
        released.store[b"jobs"].claimed[event] = 0.0
    assert await in_time(getting) == b"2"


async def test_a_batch_whose_reply_was_lost_on_our_server(process: Process, url: str) -> None:
    async with EventQueue("jobs", url=process.url, retry_timeout=60) as queue:
        for _ in range(3):
            putting = asyncio.create_task(queue.put_many(b"%d" % n for n in range(20_000)))
            await eventually(queue.qsize)
            process.kill()
            await asyncio.to_thread(process.start)
            assert await in_time(putting) == 20_000
            assert await queue.purge() == 20_000


@pytest.mark.parametrize(
    ("verb", "operation", "expected"),
    [
        ("QCREATE", lambda queue: queue.create(), OutcomeUnknownError),
        ("QCREATE", lambda queue: queue.create(exist_ok=True), True),
        ("QCLOSE", lambda queue: queue.close(), None),
        ("QPAUSE", lambda queue: queue.pause(), True),
        ("QLOOK", lambda queue: queue.bound(), 0),
        ("QDEAD", lambda queue: queue.dead_letters(), []),
        ("QPURGE", lambda queue: queue.purge(), OutcomeUnknownError),
        ("QDELETE", lambda queue: queue.delete(), OutcomeUnknownError),
    ],
)
async def test_lost_replies_about_a_queue_as_a_whole(
    open_ours: Open, monkeypatch: pytest.MonkeyPatch, verb: str, operation: Any, expected: Any
) -> None:
    queue, replies, lost = await open_ours(), connection.replies, 0
    if verb != "QCREATE":
        await queue.create()
    await queue.put(b"1")

    async def losing(channel: Any, sent: Any) -> list[Any]:
        nonlocal lost
        answers = await replies(channel, sent)
        if sent[0][0] != verb.encode() or lost:
            return answers
        lost += 1
        return [ConnectionLost("lost")]

    monkeypatch.setattr(connection, "replies", losing)
    if expected is OutcomeUnknownError:
        await fails(OutcomeUnknownError, operation(queue), "the connection broke")
    else:
        assert await in_time(operation(queue)) == expected
    assert lost == 1


# Servers that are killed.


async def test_a_killed_released_okq_loses_nothing(released: OkqServer, open_released: Open) -> None:
    await _survive(await open_released(), await open_released(), released.kill, released.start)


async def test_a_killed_server_of_ours_loses_nothing(process: Process) -> None:
    async def start() -> None:
        await asyncio.to_thread(process.start)

    async with (
        EventQueue("jobs", url=process.url, retry_timeout=60) as putting,
        EventQueue("jobs", url=process.url, retry_timeout=60) as consuming,
    ):
        await _survive(putting, consuming, process.kill, start)


async def _survive(putting: Any, consuming: Any, kill: Any, start: Any) -> None:
    """Put and consume while the server is killed again and again: everything comes, in the end."""
    received: Counter[bytes] = Counter()
    count, over, all_put = 0, False, False

    async def put() -> None:
        nonlocal count, all_put
        while not over:
            await putting.put(b"%d" % count)
            count += 1
            await asyncio.sleep(0.001)
        all_put = True

    async def consume() -> None:
        async with consuming.consumer("manual", lease=2.0) as consumer:
            async for delivery in consumer:
                if delivery.raw == b"end":
                    await delivery.ack()
                    return
                with contextlib.suppress(PressureError):  # its lease has ended: it comes again
                    await delivery.ack()
                received[delivery.raw] += 1

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(put())
            group.create_task(consume())

    working = asyncio.create_task(both())
    for _ in range(3):
        before = len(received)
        await eventually(lambda before=before: working.done() or len(received) >= before + 50)
        assert not working.done(), working
        kill()
        await start()
    over = True
    await eventually(lambda: working.done() or (all_put and len(received) == count))
    await putting.put(b"end")
    await in_time(working)
    assert set(received) == {b"%d" % n for n in range(count)}


async def test_a_consumer_registers_again_after_a_loss(released: OkqServer, open_released: Open) -> None:
    queue, other = await open_released(), await open_released()
    async with queue.consumer() as consumer:
        for number in range(3):
            released.kill()
            await released.start()
            # It is not in QNOTIFY, and notices the loss all the same.
            await eventually(lambda: any(b"jobs" in client.registered for client in released.store.clients))
            await other.put(b"%d" % number)
            assert await in_time(anext(consumer)) == b"%d" % number


async def test_a_server_that_is_gone(released: OkqServer, open_released: Open) -> None:
    queue = await open_released(retry_timeout=0.2)
    waiting = asyncio.create_task(queue.receive())
    await eventually(lambda: released.calls["QNOTIFY"])
    released.kill()
    await fails(ServerUnavailableError, waiting, "tried again for 0.2 seconds")
    await fails(ServerUnavailableError, queue.put(b"1"))
    consumer = queue.consumer()
    with pytest.raises(ServerUnavailableError):
        await in_time(consumer.__aenter__())
    await released.start()
    await in_time(queue.put(b"1"))
    assert await drained(queue) == [b"1"]


async def test_renewals_go_on_while_the_body_blocks(process: Process) -> None:
    async with (
        EventQueue("jobs", url=process.url) as queue,
        EventQueue("jobs", url=process.url) as other,
    ):
        await queue.put_many([b"1", b"2", b"3"])
        items = []
        async with queue.consumer(lease=2.0, prefetch=3) as consumer:
            async for item in consumer:
                items.append(item)
                if item == b"1":
                    time.sleep(5.0)  # a handler that blocks the event loop
                    await fails(QueueEmptyError, other.receive(timeout=0))
                if item == b"3":
                    break
        assert items == [b"1", b"2", b"3"]
        assert (await other.statistics()).in_flight == 0


# Cancellations.


async def test_random_cancellations_leave_nothing_behind(open_queue: Open) -> None:
    queue, other = await open_queue(), await open_queue()
    received: list[bytes] = []

    async def work(kind: int, number: int) -> None:
        if kind == 0:
            await queue.put(b"%d" % number)
        elif kind == 1:
            delivery = await queue.receive()
            received.append(delivery.raw)
            await delivery.ack()
        else:
            async with queue.consumer() as consumer:
                async for item in consumer:
                    received.append(item)
                    await asyncio.sleep(0)

    source = random.Random(1)
    for number in range(150):
        await other.put(b"known %d" % number)
        tasks = [asyncio.create_task(work(kind, number)) for kind in range(3)]
        for _ in range(source.randrange(40)):
            await asyncio.sleep(0)
        if number % 10 == 0:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await in_time(asyncio.wait(tasks))
        for task in tasks:
            assert task.cancelled() or task.exception() is None, task
    # What was cancelled during its acknowledgement may have been received twice.
    await eventually(lambda: _none_in_flight(other))
    received += await drained(other)
    assert {item for item in received if item.startswith(b"known")} == {b"known %d" % n for n in range(150)}


async def _none_in_flight(queue: EventQueue[Any]) -> bool:
    return (await queue.statistics()).in_flight == 0


async def test_a_block_that_is_cancelled_at_its_beginning_leaves_nothing_behind(open_queue: Open) -> None:
    queue = await open_queue()
    await queue.put(b"1")

    async def enter() -> None:
        async with queue.consumer():
            await asyncio.Event().wait()

    for turns in range(12):
        task = asyncio.create_task(enter())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await in_time(asyncio.wait((task,)))
        async with queue.consumer(ack="manual") as consumer:
            await in_time(anext(consumer))
            assert (await queue.statistics()).consumers >= 1


async def test_a_cancelled_get_puts_its_item_back(open_queue: Open) -> None:
    queue = await open_queue()
    received: list[bytes] = []

    async def get() -> None:
        received.append(await queue.get())

    for number in range(100):
        await queue.put(b"%d" % number)
        getting = asyncio.create_task(get())
        for _ in range(number % 37):
            await asyncio.sleep(0)
        getting.cancel()
        await in_time(asyncio.wait((getting,)))
    received += await drained(queue)
    assert sorted(received, key=int) == [b"%d" % number for number in range(100)]


async def test_a_put_that_has_found_some_room_looks_again_soon(
    open_ours: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, misses = await open_ours(), []

    class Looks:
        def pause(self, failures: int) -> float:
            misses.append(failures)
            return 0.001

    monkeypatch.setattr(notices, "LOOKS", Looks())
    await queue.create(2)
    await queue.put(b"0")
    putting = asyncio.create_task(queue.put_many([b"1", b"2", b"3"]))
    await eventually(lambda: len(misses) > 5)
    assert misses[:4] == [0, 1, 2, 3]
    seen = len(misses)
    assert await queue.get() == b"0"
    await eventually(lambda: 0 in misses[seen:])
    assert await queue.get_many(2) == [b"1", b"2"]
    await in_time(putting)


async def test_misses_slow_a_loop_down(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(consumer.asyncio, "sleep", sleep)
    misses = consumer.Misses()
    for _ in range(13):
        await misses.note(0.001)
    assert len(pauses) == 10
    assert 0.25 <= pauses[-1] <= 0.5
    await misses.note(5.0)
    assert len(pauses) == 10


# The wrong address, the wrong password.


async def test_a_redis_server_at_the_other_end(url: str) -> None:
    address = url.replace("redis://", "okq://").removesuffix("/0")
    error = await fails(ServerError, EventQueue("jobs", url=address).__aenter__(), "is no okq server")
    assert "write redis://… instead of okq://…" in str(error)


async def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    await fails(ServerUnavailableError, EventQueue("jobs", url=f"okq://127.0.0.1:{port}").put(b"1"), "Is it running")


async def test_passwords(url: str, released: OkqServer) -> None:
    async with cleared(url), serving(url, password="secret") as address:
        right, wrong = (address.replace("okq://", f"okq://:{word}@") for word in ("secret", "other"))
        async with EventQueue("jobs", url=right) as queue:
            await queue.put(b"1")
            assert await queue.get() == b"1"
        async with EventQueue("jobs", url=address, password="secret") as queue:
            assert await queue.qsize() == 0
        await fails(AuthenticationError, EventQueue("jobs", url=address).put(b"1"), "give a password")
        error = await fails(AuthenticationError, EventQueue("jobs", url=wrong).put(b"1"), "refused the credentials")
        assert "other" not in str(error)
    password = released.url.replace("okq://", "okq://:secret@")
    await fails(ServerError, EventQueue("jobs", url=password).put(b"1"), "unknown command")


async def test_ipv6(url: str) -> None:
    async with cleared(url), serving(url, listen=Address("::1", 0)) as address:
        assert address.startswith("okq://[::1]:")
        async with EventQueue("jobs", url=address) as queue:
            await queue.put(b"1")
            assert await queue.get() == b"1"


async def test_tls(url: str) -> None:
    certificate = Path(__file__).parents[2] / "certificate.pem"
    tls = Tls(certificate, certificate)
    async with cleared(url), serving(url, tls=tls) as address:
        secure = address.replace("okq://127.0.0.1", "okqs://localhost")
        async with EventQueue("jobs", url=f"{secure}?ssl_ca_certs={certificate}") as queue:
            await queue.put(b"1")
            assert await queue.get() == b"1"
        await fails(ServerUnavailableError, EventQueue("jobs", url=secure).put(b"1"), "certificate|TLS")
        await fails(ServerUnavailableError, EventQueue("jobs", url=address).put(b"1"))


async def test_deadlines(released: OkqServer, open_released: Open) -> None:
    queue = await open_released()
    await fails(DeadlineError, queue.receive(deadline=0.1))
    await fails(DeadlineError, queue.put(b"0", deadline=0))
    released.kill()
    await fails(DeadlineError, queue.put(b"1", deadline=0.2))  # it goes on in the background
    await released.start()
    await eventually(queue.qsize)
    assert await queue.get(deadline=60) == b"1"


async def test_a_queue_that_is_closed_while_a_loop_receives_keeps_nothing(
    open_queue: Open, okq_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    async with EventQueue("jobs", url=okq_url) as closing, closing.consumer(lease=600) as consumer:
        commands: Any = closing._driver.steps
        original, closes = commands.pop, []

        async def pop(*arguments: Any) -> Any:
            events = await original(*arguments)
            closes.append(asyncio.create_task(closing.aclose()))
            await asyncio.sleep(0)  # it begins
            return events

        monkeypatch.setattr(commands, "pop", pop)
        with pytest.raises(ClientClosedError):
            await in_time(anext(consumer))
        await in_time(closes[0])
    assert (await queue.statistics()).in_flight == 0
    assert [await queue.get(), await queue.get()] == [b"1", b"2"]


async def test_a_cancelled_get_of_a_full_queue_loses_nothing(open_ours: Open) -> None:
    queue, producer = await open_ours(codec="text"), await open_ours(codec="text")
    await queue.create(bound=1)

    async def produce() -> None:
        for number in range(100):
            await producer.put(str(number))

    producing, got = asyncio.create_task(produce()), []
    while not producing.done() or await queue.qsize():
        getting = asyncio.create_task(queue.get(0.2))
        await asyncio.sleep(random.random() * 0.004)
        getting.cancel()
        with contextlib.suppress(asyncio.CancelledError, QueueEmptyError):
            got.append(await getting)
    await producing
    assert sorted(map(int, got)) == list(range(100))
    await queue.delete()
