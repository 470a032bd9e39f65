"""Sentences of vsqs's document that no other test shows by itself."""

from __future__ import annotations

import pytest

from apressure import FileQueue, QueueEmptyError
from tests.integration.files.conftest import Clock, Make, files


async def test_99_comes_before_100(queue: FileQueue[bytes]) -> None:
    await queue.create()
    for number in (100, 99, 1000):
        (queue.path / str(number)).write_bytes(b"%d" % number)
    assert [(await queue.receive(timeout=0)).raw for _ in range(3)] == [b"99", b"100", b"1000"]


async def test_a_message_that_one_consumer_has_is_not_touched_by_another(make: Make, clock: Clock) -> None:
    one, other = make(clock=clock), make(clock=clock)
    message_id = await one.put(b"a")
    message = await one.receive(lease=10)
    (name,) = files(one)
    assert name == f"{message_id}.{round((clock.now + 10) * 1000)}"
    clock.now += 9
    with pytest.raises(QueueEmptyError):
        await other.receive(timeout=0)
    assert files(other) == [name]
    await message.ack()


async def test_all_expired_messages_go_back_before_the_next_one_is_taken(make: Make, clock: Clock) -> None:
    dead, consumer = make(clock=clock), make(clock=clock)
    ids = [await dead.put(data) for data in (b"a", b"b", b"c")]
    for _ in ids:
        await dead.receive(lease=10)
    newest = await dead.put(b"d")
    assert [name.partition(".")[0] for name in files(dead) if "." in name] == ids
    clock.now += 11
    assert (await consumer.receive(timeout=0)).raw == b"a"
    assert [name for name in files(consumer) if "." not in name] == [*ids[1:], newest]


async def test_a_publisher_that_meets_a_name_in_use_leaves_no_file_behind(make: Make, clock: Clock) -> None:
    queue = make(clock=clock)
    await queue.create()
    taken = round(clock.now * 1000)
    (queue.path / str(taken)).write_bytes(b"waits")
    (queue.path / f"{taken + 1}.{taken + 100_000}").write_bytes(b"in flight")
    (queue.path / f"{taken + 2}.new").touch()
    message_id = await queue.put(b"a")
    assert int(message_id) > taken + 2
    assert sorted(files(queue)) == sorted(
        [str(taken), f"{taken + 1}.{taken + 100_000}", f"{taken + 2}.new", message_id]
    )
