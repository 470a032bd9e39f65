"""Waiting for messages and for room: who is woken, and what a cancellation leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Coroutine
from typing import Any
from unittest import mock

import pytest

import apressure.files.storage.store
from apressure import (
    ClientClosedError,
    FileQueue,
    QueueDoesNotExistError,
    QueueFullError,
)
from apressure.files.storage import names
from tests.integration.files.conftest import Clock, Make, drain, files

PATIENCE = 20.0


async def waiting(queue: FileQueue[Any], putters: int = 0, receivers: int = 0) -> None:
    """Until so many tasks wait."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(QueueDoesNotExistError):  # the task will make it
                seen = await queue.statistics()
                if (seen.waiting_putters, seen.waiting_receivers) == (putters, receivers):
                    return
            await asyncio.sleep(0.005)


async def parked(queue: FileQueue[Any], operation: Coroutine[Any, Any, Any], **waiters: int) -> asyncio.Task[Any]:
    """Start an operation of a queue, and return it when so many tasks wait there; by default one that receives."""
    task = asyncio.create_task(operation)
    await waiting(queue, **waiters or {"receivers": 1})
    return task


async def test_each_message_wakes_one(make: Make) -> None:
    queue, publisher = make(), make()
    tasks = [asyncio.create_task(queue.receive(timeout=PATIENCE)) for _ in range(20)]
    await waiting(queue, receivers=20)
    await publisher.put_many([b"%d" % number for number in range(10)])
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await waiting(queue, receivers=10)
    await publisher.put_many([b"%d" % number for number in range(10, 20)])
    got = await asyncio.gather(*tasks)
    assert sorted(int(message.raw) for message in got) == list(range(20))


async def test_who_waits_first_is_served_first(make: Make) -> None:
    queue = make()
    tasks = []
    for number in range(5):
        tasks.append(asyncio.create_task(queue.receive(timeout=PATIENCE)))
        await waiting(queue, receivers=number + 1)
    for number in range(5):
        await queue.put(b"%d" % number)
        served, _ = await asyncio.wait(tasks[number:], return_when=asyncio.FIRST_COMPLETED)
        assert served == {tasks[number]}
        assert tasks[number].result().raw == b"%d" % number


async def test_an_expiry_wakes_who_waits(make: Make) -> None:
    queue, other = make(), make()
    await queue.put(b"a")
    await other.receive(lease=0.15)
    again = await queue.receive(timeout=PATIENCE)
    assert (again.raw, again.attempts) == (b"a", 2)


async def test_a_message_that_is_given_back_wakes_who_waits(make: Make) -> None:
    queue, other = make(), make()
    await queue.put(b"a")
    message = await other.receive()
    receiving = await parked(queue, queue.receive(timeout=PATIENCE))
    await message.nack()
    assert (await receiving).attempts == 2


async def test_a_full_queue(make: Make) -> None:
    queue = make(bound=2)
    await queue.put_many([b"a", b"b"])
    for timeout in (0, 0.05):
        with pytest.raises(QueueFullError) as caught:
            await queue.put(b"c", timeout=timeout)
        assert (caught.value.name, caught.value.accepted) == ("orders", 0)
        assert isinstance(caught.value, asyncio.QueueFull | TimeoutError)
    message = await queue.receive()
    with pytest.raises(QueueFullError):  # a message in flight takes room
        await queue.put(b"c", timeout=0)
    await message.ack()
    await queue.put(b"c", timeout=0)
    assert len(files(queue)) == 2
    assert await drain(queue) == [b"b", b"c"]


async def test_many_into_a_full_queue(make: Make) -> None:
    queue = make(bound=3)
    with pytest.raises(QueueFullError) as caught:
        await queue.put_many([b"%d" % number for number in range(5)], timeout=0.05)
    assert caught.value.accepted == 3
    assert caught.value.__notes__ == ["3 items were put before"]
    assert await drain(queue) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "by another object"])
async def test_room_wakes_who_waits(make: Make, elsewhere: bool) -> None:
    queue = make(bound=1)
    consumer = make() if elsewhere else queue
    await queue.put(b"a")
    tasks = [asyncio.create_task(queue.put(b"%d" % number, timeout=PATIENCE)) for number in range(3)]
    await waiting(queue, putters=3)
    got = []
    for _ in range(4):
        message = await consumer.receive(timeout=PATIENCE)
        got.append(message.raw)
        await message.ack()
    await asyncio.gather(*tasks)
    assert got[0] == b"a"
    assert sorted(got[1:]) == [b"0", b"1", b"2"]


async def test_publishers_never_overfill_a_queue(make: Make) -> None:
    """Many tasks of several objects, over and over: a look in between never finds too many."""
    queues = [make(bound=5) for _ in range(3)]
    consumer = make()
    await consumer.create()
    most = received = 0

    async def publish(queue: FileQueue[bytes]) -> None:
        for _ in range(10):
            await queue.put(b"x", timeout=PATIENCE)

    async def consume() -> None:
        nonlocal most, received
        while received < 120:
            there = {name.partition(".")[0] for name in files(consumer) if not name.endswith(".new")}
            most = max(most, len(there))
            message = await consumer.receive(timeout=PATIENCE)
            await asyncio.sleep(0)
            await message.ack()
            received += 1

    async with asyncio.TaskGroup() as group:
        group.create_task(consume())
        for queue in queues:
            for _ in range(4):
                group.create_task(publish(queue))
    assert 1 <= most <= 5
    assert files(consumer) == []


async def test_a_wait_for_a_message_that_is_cancelled_takes_nothing(make: Make) -> None:
    queue = make()
    tasks = [asyncio.create_task(queue.receive()) for _ in range(3)]
    await waiting(queue, receivers=3)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    assert tasks[0].cancelled()
    await queue.put(b"a")
    await queue.put(b"b")
    assert {message.raw for message in await asyncio.gather(*tasks[1:])} == {b"a", b"b"}
    await waiting(queue)


async def test_who_is_cancelled_after_it_was_woken_lets_the_next_one_have_the_message(make: Make) -> None:
    queue = make()
    for _ in range(5):
        tasks = [asyncio.create_task(queue.receive(timeout=PATIENCE)) for _ in range(2)]
        await waiting(queue, receivers=2)
        await queue.put(b"a")  # in here, or as soon as the descriptor is read, the first one is woken
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        if not tasks[0].cancelled():  # it was quicker
            tasks[1].cancel()
            await asyncio.wait(tasks[1:])
        await asyncio.wait(tasks)
        (message,) = [task.result() for task in tasks if not task.cancelled()]
        assert message.raw == b"a"
        await message.ack()
        assert files(queue) == []


async def test_a_wait_for_room_that_is_cancelled_puts_nothing(make: Make) -> None:
    queue = make(bound=1)
    await queue.put(b"a")
    tasks = [asyncio.create_task(queue.put(b"%d" % number)) for number in range(2)]
    await waiting(queue, putters=2)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    (message,) = await queue.receive_many(5)
    await message.ack()
    await tasks[1]
    assert await drain(queue) == [b"1"]


@pytest.mark.parametrize("turns", range(12))
async def test_operations_that_are_cancelled_at_some_moment_are_wholly_done_or_not_at_all(
    make: Make, turns: int
) -> None:
    queue = make(bound=50)
    await queue.create()
    await queue.statistics()
    for number in range(6):
        operation = asyncio.create_task(queue.put(b"%d" % number))
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns > 6:
            await asyncio.sleep(turns / 20000)
        operation.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await operation
    assert not [name for name in files(queue) if not name.isdigit()]
    there = len(files(queue))
    for _ in range(3):
        receiving = asyncio.create_task(queue.receive_many(2))
        for _ in range(turns):
            await asyncio.sleep(0)
        receiving.cancel()
        try:
            for message in await receiving:
                await message.nack()
        except asyncio.CancelledError:
            pass
        assert len(files(queue)) == there
        assert not [name for name in files(queue) if not name.isdigit()]
    got = await drain(queue)
    assert got == sorted(got)
    assert len(got) == there
    assert files(queue) == []


async def test_put_many_that_is_cancelled_leaves_the_first_ones(make: Make) -> None:
    queue = make()
    task = asyncio.create_task(queue.put_many(b"%04d" % number for number in range(5000)))
    async with asyncio.timeout(PATIENCE):
        while not queue.path.exists() or len(files(queue)) < 100:
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    there = files(queue)
    assert (await queue.statistics()).put_count == len(there)
    assert 64 <= len(there) < 5000
    contents = [(queue.path / name).read_bytes() for name in there]
    assert contents == [b"%04d" % number for number in range(len(there))]


async def test_closing_ends_waits(make: Make) -> None:
    queue, full = make(), make(bound=1)
    receiving = await parked(queue, queue.receive())
    await full.put(b"")
    await receiving
    publishing = asyncio.create_task(full.put(b"a"))
    receiving = await parked(full, queue.receive(), putters=1)
    await queue.aclose()
    await full.aclose()
    await full.aclose()
    for task in (publishing, receiving):
        with pytest.raises(ClientClosedError):
            await task
    with pytest.raises(ClientClosedError):
        await queue.put(b"")
    assert len(files(queue)) == 1


async def test_a_directory_that_is_deleted_ends_waits(make: Make) -> None:
    queue, full = make(), make(bound=1)
    await full.put(b"")
    message = await queue.receive()
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(queue.receive()), asyncio.create_task(full.put(b"a"))]
    await waiting(full, putters=1)
    shutil.rmtree(queue.path)
    for task in tasks:
        with pytest.raises(QueueDoesNotExistError, match="deleted or moved"):
            await asyncio.wait_for(task, PATIENCE)
    for operation in (queue.put(b""), queue.receive(timeout=0), queue.statistics(), queue.ack("1")):
        with pytest.raises(QueueDoesNotExistError):
            await operation
    with pytest.raises(QueueDoesNotExistError, match="deleted or moved"):
        await message.ack()


async def test_other_tasks_run_while_there_is_much_to_do(make: Make) -> None:
    queue = make()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    for _ in range(300):
        await queue.put(b"")
    while await queue.qsize():
        await queue.ack((await queue.receive()).id)
    counting.cancel()
    assert turns >= 4


async def test_a_publisher_waits_quietly_behind_one_that_takes_long(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make(bound=1)
    await queue.put(b"a")
    monkeypatch.setattr(apressure.files.storage.store, "ABANDONED", 0.05)
    (name,) = files(queue)
    (queue.path / f"{int(name) + 1}.new").touch()
    queue._store.own.add(names.key_of(str(int(name) + 1)))  # type: ignore[arg-type]
    await queue.statistics()
    tries = mock.AsyncMock(wraps=queue._putter._reserve)
    monkeypatch.setattr(queue._putter, "_reserve", tries)
    with pytest.raises(QueueFullError):
        await queue.put(b"b", timeout=0.3)
    assert tries.await_count < 30


async def test_time_that_runs_out_by_a_clock_that_jumps(make: Make, clock: Clock) -> None:
    queue = make(clock=clock)
    await queue.put(b"a")
    await queue.receive(lease=1000)
    receiving = await parked(queue, queue.receive(timeout=PATIENCE))
    clock.now += 2000
    assert (await receiving).attempts == 2


async def test_a_publisher_waits_quietly_while_no_consumer_requeues_expired_messages(make: Make) -> None:
    queue = make(bound=1)
    await queue.put(b"a")
    await make().receive(lease=0.001)
    looks = 0
    look = queue._store.look

    def counted(passed: bool) -> Any:
        nonlocal looks
        looks += 1
        return look(passed)

    queue._store.look = counted  # type: ignore[method-assign]
    with pytest.raises(QueueFullError):
        await queue.put(b"b", timeout=0.2)
    assert looks < 60
