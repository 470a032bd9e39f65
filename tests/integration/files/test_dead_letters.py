"""Messages that were delivered too often, and what operators do: requeue, release, purge."""

from __future__ import annotations

import asyncio
import logging
import shutil

import pytest

from apressure import QueueDoesNotExistError, QueueEmptyError, QueueFullError
from tests.integration.files.conftest import Clock, Make, drain, files, listing


async def test_a_message_that_is_delivered_too_often_moves(
    make: Make, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    queue, dead = make(max_attempts=2, clock=clock), make("orders.dead")
    ids = [await queue.put(data) for data in [b"a", b"b"]]
    for attempt in (1, 2):
        message = await queue.receive(lease=5)
        assert (message.raw, message.attempts) == (b"a", attempt)
        clock.now += 10
    with caplog.at_level(logging.WARNING, "apressure"):
        message = await queue.receive(timeout=0)
    assert message.raw == b"b"
    assert f"the message {ids[0]} of the queue 'orders' became a dead letter at attempt 2" in caplog.text
    assert (await queue.statistics()).dead_lettered_count == 1
    letter = await dead.receive(timeout=0)
    assert (letter.id, letter.raw, letter.attempts) == (ids[0], b"a", 1)


async def test_dead_letters_may_have_the_same_id(make: Make, clock: Clock) -> None:
    queue, dead = make(max_attempts=1, dead_letters="failed", clock=clock), make("failed", clock=clock)
    taken = await dead.put(b"other")
    message_id = await queue.put(b"a")
    assert message_id == taken  # the clock stands still
    await (await queue.receive()).nack()
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    assert await drain(dead) == [b"other", b"a"]


async def test_a_dead_letter_queue_that_was_deleted_is_made_again(make: Make) -> None:
    queue = make(max_attempts=1)
    dead = queue.path.with_name("orders.dead")
    for number in range(2):
        await queue.put(b"%d" % number)
        await (await queue.receive()).nack()
        with pytest.raises(QueueEmptyError):
            await queue.receive(timeout=0)
        assert len([name for name in listing(dead) if name.isdigit()]) == 1
        shutil.rmtree(dead)


async def test_dead_letters_come_back_to_the_end(make: Make) -> None:
    queue, dead = make(), make("orders.dead")
    await queue.create()
    assert await queue.requeue() == 0  # there are no dead letters yet
    await dead.put_many([b"a", b"b", b"c"])
    await queue.put(b"first")
    assert await queue.requeue(2) == 2
    assert await drain(queue) == [b"first", b"a", b"b"]
    assert await queue.requeue() == 1
    message = await queue.receive(timeout=0)
    assert (message.raw, message.attempts) == (b"c", 1)
    assert files(dead) == []
    with pytest.raises(QueueDoesNotExistError):
        await queue.requeue(source="nothing")


async def test_dead_letters_wait_for_room(make: Make) -> None:
    queue, dead = make(bound=2), make("orders.dead")
    await queue.create()
    await dead.put_many([b"a", b"b", b"c"])
    with pytest.raises(QueueFullError) as caught:
        await queue.requeue(timeout=0.05)
    assert caught.value.accepted == 2
    assert (len(files(queue)), len(files(dead))) == (2, 1)
    requeueing = asyncio.create_task(queue.requeue(timeout=20))
    await asyncio.sleep(0.02)
    message = await queue.receive()
    await message.ack()
    assert await requeueing == 1
    assert await drain(queue) == [b"b", b"c"]


async def test_requeue_keeps_its_place_in_the_line(make: Make) -> None:
    queue, dead = make(bound=1), make("orders.dead")
    await queue.create()
    await dead.put_many([b"a", b"b", b"c"])
    await queue.put(b"first")
    begun = [asyncio.create_task(queue.requeue())]
    for item in (b"x", b"y"):
        await asyncio.sleep(0.05)  # they wait in this order
        begun.append(asyncio.create_task(queue.put(item)))
    await asyncio.sleep(0.05)
    assert [await queue.get(20) for _ in range(6)] == [b"first", b"a", b"b", b"c", b"x", b"y"]
    await asyncio.gather(*begun)


async def test_requeue_that_is_cancelled_leaves_each_in_one_of_both(make: Make) -> None:
    for turns in range(0, 40, 4):
        queue, dead = make(f"q{turns}"), make(f"q{turns}.dead")
        await queue.create()
        await queue.statistics()
        await dead.put_many([b"%d" % number for number in range(5)])
        task = asyncio.create_task(queue.requeue())
        for _ in range(turns):
            await asyncio.sleep(0.0001)
        task.cancel()
        await asyncio.wait((task,))
        assert not [name for name in files(queue) if not name.isdigit()]
        assert await drain(queue) + await drain(dead) == [b"%d" % number for number in range(5)]


async def test_releasing_gives_everything_back(make: Make) -> None:
    queue, other = make(), make()
    await queue.put_many([b"a", b"b", b"c"])
    await queue.receive_many(2, lease=1000)
    assert await other.give_back_in_flight() == 2
    assert [(message.raw, message.attempts) for message in await other.receive_many(5)] == [
        (b"a", 2), (b"b", 2), (b"c", 1),
    ]  # fmt: skip


async def test_purging(make: Make) -> None:
    queue = make()
    await queue.put_many([b"%d" % number for number in range(100)])
    await queue.receive_many(10)
    assert await queue.purge() == 90
    assert (await queue.statistics()).in_flight == 10
    assert await queue.give_back_in_flight() == await queue.purge() == 10
    assert files(queue) == []


async def test_two_queues_have_one_for_their_dead_letters(make: Make, clock: Clock) -> None:
    queues = [make(name, max_attempts=1, dead_letters="failed", clock=clock) for name in "ab"]
    for queue in queues:
        await queue.put_many([b"%d" % number for number in range(120)])
        await queue.receive_many(120)
    clock.now += 60
    for queue in queues:  # the ids are the same in both
        with pytest.raises(QueueEmptyError):
            await queue.receive(timeout=0)
        assert (await queue.statistics()).dead_lettered_count == 120
        assert files(queue) == []
    letters = await queues[0].dead_letters(None)
    assert (len(letters), {letter.attempts for letter in letters}) == (240, {1})
