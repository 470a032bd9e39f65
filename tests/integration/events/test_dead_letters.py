"""Dead letters of a queue of events: they tell why, old ones stay readable, and other programs' entries do no harm."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis

from apressure import Backoff, EventQueue, QueueEmptyError, QueueFullError, pipe, serve
from apressure.dead_letters import Failure
from apressure.events.engine.keys import EventKeys
from apressure.protocols import NotesErrors
from tests.integration.events.conftest import Open, in_time

KEYS = EventKeys("jobs")
ATTEMPTS, DEAD, ERRORS = KEYS.ours[3], KEYS.ours[4], KEYS.ours[13]


async def fail(queue: EventQueue[bytes], error: Any = "broken") -> None:
    """Receive an event, and give it back with an error."""
    await (await in_time(queue.receive())).nack(error)


async def bury(queue: EventQueue[bytes]) -> None:
    """Look for an event: those that were delivered too often become dead letters."""
    for _ in range(2):
        with pytest.raises(QueueEmptyError):
            await in_time(queue.receive(timeout=0))


async def test_letters_without_a_reason_are_read_and_moved(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue(max_attempts=1, bound=0)
    for number in range(3):
        db.lpush(DEAD, b"2:o%d" % number + b"contents:%d" % number)  # as versions without reasons wrote them
    old = await queue.dead_letters()
    assert [(letter.id, letter.raw) for letter in old] == [(f"o{n}", b"contents:%d" % n) for n in range(3)]
    assert {(letter.attempts, letter.error, letter.when, letter.reason) for letter in old} == {
        (None, None, None, "unknown")
    }
    done = await queue.requeue(ids=["o1", "o7"])
    assert (done, done.not_found) == (1, ("o7",))
    assert await queue.get() == b"contents:1"
    assert await queue.requeue() == 2
    assert await queue.get_many(5) == [b"contents:0", b"contents:2"]


async def test_contents_come_back_byte_by_byte(open_queue: Open) -> None:
    queue = await open_queue(max_attempts=1, bound=0)
    contents = {"+3:a": b"+1:x", "\udcff\n": bytes(range(256)), "5": b"0:0:0:0:", "6": b""}
    for event_id, some in contents.items():
        await queue.put(some, id=event_id)
    for delivery in await queue.receive_many(len(contents)):
        await delivery.nack(ValueError("a:b+3:c\x00\u2028\udcff"))
    await bury(queue)
    letters = await queue.dead_letters()
    assert {letter.id: letter.raw for letter in letters} == contents
    assert all(abs(letter.when - time.time()) < 3600 for letter in letters if letter.when is not None)
    assert {letter.error.type for letter in letters if letter.error is not None} == {"ValueError"}
    assert await queue.requeue(ids=contents) == len(contents)
    found = await in_time(queue.receive_many(len(contents)))
    assert {one.id: one.raw for one in found} == contents
    assert {one.attempts for one in found} == {1}


async def test_what_another_program_wrote_stays(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue(max_attempts=1, bound=0)
    foreign = [b"junk", b"+9:short", b"+1:a99:x", b"", b"99999999999:x"]
    for entry in foreign:
        db.lpush(DEAD, entry)
    await queue.put(b"1", id="good")
    await fail(queue)
    await bury(queue)
    letters = await queue.dead_letters()
    assert [letter.raw for letter in letters if letter.id != "good"] == foreign
    done = await queue.requeue(ids=[letter.id for letter in letters])
    assert (done, done.not_found) == (1, ())
    assert await queue.requeue() == 0
    assert (await queue.statistics()).dead_letters == len(foreign)


async def test_an_id_in_use_stays_and_the_oldest_letter_of_an_id_is_meant(open_queue: Open) -> None:
    queue = await open_queue(max_attempts=1, bound=0)
    for contents in (b"first", b"second"):
        await queue.put(contents, id="a")
        await fail(queue)
        await bury(queue)
    await queue.put(b"third", id="a")
    done = await queue.requeue(ids=["a"])
    assert (done, done.not_found) == (0, ())
    assert await queue.get() == b"third"
    assert await queue.requeue(ids=["a"]) == 1
    assert await queue.get() == b"first"
    assert [letter.raw for letter in await queue.dead_letters()] == [b"second"]


async def test_chosen_ones_wait_for_room(open_queue: Open) -> None:
    queue, other = await open_queue(max_attempts=1, bound=2), await open_queue(max_attempts=1)
    for _ in range(2):
        await queue.put_many([b"a", b"b"])
        for delivery in await queue.receive_many(2):
            await delivery.nack("broken")
        await bury(queue)
    ids = [letter.id for letter in await queue.dead_letters()]
    with pytest.raises(QueueFullError) as raised:
        await queue.requeue(ids=ids, timeout=0)
    assert raised.value.accepted == 2
    waiting = asyncio.create_task(queue.requeue(ids=ids[2:]))
    assert sorted(await in_time(other.get_many(2))) == [b"a", b"b"]
    assert await in_time(waiting) == 2
    assert sorted(await in_time(other.get_many(2))) == [b"a", b"b"]


async def test_errors_are_forgotten_with_their_events(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue(max_attempts=5, bound=0)
    for number in range(5):
        await queue.put(b"1", id=f"e{number}")
    for delivery in await queue.receive_many(5):
        await delivery.nack(ValueError("broken"))
    assert db.hlen(ERRORS) == 5
    assert db.pttl(ERRORS) > 0
    for delivery in await queue.receive_many(2):
        await delivery.ack()
    assert db.hlen(ERRORS) == 3
    await queue.get()
    assert db.hlen(ERRORS) == 2
    assert await queue.purge() == 2
    assert not db.exists(ERRORS, ATTEMPTS)


async def test_errors_are_kept_only_if_that_is_wanted(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue(max_attempts=1, keep_errors=False, bound=0)
    await queue.put(b"1")
    await fail(queue, ValueError("secret"))
    assert not db.exists(ERRORS)
    await bury(queue)
    (letter,) = await queue.dead_letters()
    assert (letter.attempts, letter.error) == (1, None)
    unlimited = await open_queue("others", bound=0)
    await unlimited.put(b"1")
    await fail(unlimited, ValueError("secret"))
    assert not db.exists(EventKeys("others").ours[13])


async def test_a_value_of_another_type_keeps_no_errors_and_does_no_harm(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue(max_attempts=1, bound=0)
    db.set(ERRORS, b"?")
    await queue.put_many([b"1", b"2"])
    await fail(queue)
    assert await in_time(queue.get()) == b"2"
    (letter,) = await queue.dead_letters()
    assert (letter.raw, letter.attempts, letter.error) == (b"1", 1, None)


async def test_only_so_many_errors_are_kept(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue(max_attempts=3, bound=0)
    db.hset(ERRORS, mapping={f"old{number}": "1:x" for number in range(10_000)})
    await queue.put_many([b"1", b"2"])
    for delivery in await queue.receive_many(2):
        await delivery.nack("new")
    assert db.hlen(ERRORS) == 10_000
    assert db.hvals(ERRORS).count(b"1:\tnew") == 2


async def test_errors_of_a_block_that_ends_are_kept(open_queue: Open) -> None:
    queue = await open_queue(max_attempts=2, bound=0)
    await queue.put_many([b"1", b"2"])
    async with queue.consumer("manual", prefetch=2) as consumer:
        delivery = await in_time(anext(consumer))
        assert isinstance(delivery, NotesErrors)
        delivery.note_error("noted")
    async with queue.consumer("manual", prefetch=1) as consumer:
        again = await in_time(anext(consumer))
        assert (again.raw, again.attempts) == (b"1", 2)
    assert await in_time(queue.get()) == b"2"
    (letter,) = await queue.dead_letters()
    assert letter.error == Failure("", "noted", 1)
    assert letter.attempts == 2


async def test_what_handlers_and_stages_raise_is_why(open_queue: Open) -> None:
    queue, out = await open_queue(max_attempts=1, bound=0), await open_queue("out", bound=0)
    await queue.put(b"1")
    await queue.close()

    async def transform(item: bytes) -> bytes:
        raise LookupError(item.decode())

    await in_time(pipe(queue, transform, out))
    (letter,) = await queue.dead_letters()
    assert letter.error == Failure("LookupError", "1", 1)
    await queue.delete()
    await queue.create()
    await queue.put(b"2")
    await queue.close()

    async def handle(item: bytes) -> None:
        raise KeyError(item)

    await in_time(serve(handle, queue, retry=Backoff(0.01), signals=()))
    (letter,) = await queue.dead_letters()
    assert letter.error == Failure("KeyError", "b'2'", 1)
