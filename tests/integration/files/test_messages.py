"""A message's life: published, received, acknowledged, given back, expired, deleted."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import stat
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from apressure import DecodeError, FileQueue, LeaseLostError, QueueEmptyError, StorageError
from tests.integration.files.conftest import Clock, Make, drain, files, listing


async def test_the_story_of_the_document(queue: FileQueue[bytes]) -> None:
    message_id = await queue.put(b"first")
    assert files(queue) == [message_id]
    assert abs(int(message_id) / 1000 - time.time()) < 60
    assert (queue.path / message_id).read_bytes() == b"first"
    message = await queue.receive()
    assert (message.id, message.item, message.raw, message.attempts) == (message_id, b"first", b"first", 1)
    (name,) = files(queue)
    assert re.fullmatch(rf"{message_id}\.\d{{13}}", name)
    assert 10 < int(name.partition(".")[2]) / 1000 - time.time() <= 15
    assert not message.redelivered
    await message.ack()
    assert files(queue) == []


async def test_only_the_owner_has_access(queue: FileQueue[bytes]) -> None:
    message_id = await queue.put(b"secret")
    assert stat.S_IMODE(queue.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((queue.path / message_id).stat().st_mode) == 0o600


@pytest.mark.parametrize("fsync", [True, False])
async def test_the_disk_has_a_message_before_its_name_and_its_name_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: bool
) -> None:
    synced: list[tuple[str, list[str]]] = []
    real = os.fsync

    def noted(fd: int) -> None:
        real(fd)
        is_directory = stat.S_ISDIR(os.fstat(fd).st_mode)
        content = "directory" if is_directory else Path(f"/proc/self/fd/{fd}").read_text()
        synced.append((content, [name.rpartition(".")[2] for name in listing(tmp_path / "q") if "." in name]))

    async with FileQueue(tmp_path / "q", fsync=fsync) as queue:
        await queue.create()
        monkeypatch.setattr(os, "fsync", noted)
        await queue.put(b"a")
        assert synced == ([("a", ["new"]), ("directory", [])] if fsync else [])


async def test_microseconds(make: Make) -> None:
    queue = make(unit="us")
    message_id = await queue.put(b"")
    assert len(message_id) == 16
    message = await queue.receive(lease=5)
    (name,) = files(queue)
    assert 4 < int(name.partition(".")[2]) / 1e6 - time.time() <= 5
    assert timedelta(seconds=4) < message.expires - datetime.now(UTC) <= timedelta(seconds=5)
    assert abs(message.put_at - datetime.now(UTC)) < timedelta(seconds=60)


async def test_a_message_keeps_the_unit_of_its_name(make: Make) -> None:
    milliseconds, microseconds = make(), make(unit="us")
    await milliseconds.put(b"one")
    await microseconds.put(b"two")
    await milliseconds.put(b"three")
    for reader, length in ((microseconds, 13), (milliseconds, 16), (microseconds, 13)):
        message = await reader.receive(timeout=0)
        (name,) = files(reader)[:1]
        assert [len(part) for part in name.split(".")] == [length, length]
        await message.ack()


async def test_both_units_are_one_order(make: Make) -> None:
    queues = [make(), make(unit="us")]
    for number in range(40):
        await queues[number * 7 % 2].put(b"%d" % number)
    assert await drain(queues[0]) == [b"%d" % number for number in range(40)]


async def test_a_message_that_is_given_back_is_the_first_again(queue: FileQueue[bytes]) -> None:
    await queue.put_many([b"a", b"b", b"c"])
    first, second = await queue.receive_many(2)
    await second.nack()
    await first.nack()
    again = await queue.receive()
    assert (again.raw, again.attempts, again.redelivered) == (b"a", 2, True)
    await again.nack()
    assert await drain(queue) == [b"a", b"b", b"c"]


async def test_a_message_comes_again_in_its_place_when_its_time_has_run_out(make: Make, clock: Clock) -> None:
    queue = make(clock=clock)
    await queue.put_many([b"a", b"b"])
    late = await queue.receive(lease=10)
    clock.now += 5
    await queue.put(b"c")
    assert (await queue.receive(timeout=0)).raw == b"b"
    clock.now += 6  # the time of the first one has run out, and the third one is newer
    again = await queue.receive(timeout=0)
    assert (again.raw, again.attempts) == (b"a", 2)
    with pytest.raises(LeaseLostError) as caught:
        await late.ack()
    assert (caught.value.name, caught.value.role) == ("orders", "consumer")
    await again.ack()
    assert (await queue.receive(timeout=0)).raw == b"c"


async def test_a_late_acknowledgement_counts_while_no_other_client_has_the_message(make: Make, clock: Clock) -> None:
    queue = make(clock=clock)
    await queue.put(b"a")
    message = await queue.receive(lease=10)
    clock.now += 60
    await message.ack()
    with pytest.raises(QueueEmptyError) as caught:
        await queue.receive(timeout=0)
    assert caught.value.name == "orders"


async def test_extending(make: Make, clock: Clock) -> None:
    queue = make(clock=clock)
    await queue.put(b"a")
    message = await queue.receive(lease=10)
    clock.now += 9
    await message.extend(100)
    clock.now += 99
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    await message.extend()
    assert message.expires == datetime.fromtimestamp(clock.now + 15, UTC)
    clock.now += 16
    assert (await queue.receive(timeout=0)).attempts == 2
    with pytest.raises(LeaseLostError):
        await message.extend()


async def test_a_message_is_settled_once(queue: FileQueue[bytes]) -> None:
    await queue.put_many([b"a", b"b"])
    message = await queue.receive()
    assert not message.settled
    await message.ack()
    assert message.settled
    for again in (message.ack, message.nack, message.extend):
        with pytest.raises(RuntimeError, match="before"):
            await again()
    other = await queue.receive()
    assert await queue.ack(other.id)
    for late in (other.extend, other.nack):
        with pytest.raises(LeaseLostError):
            await late()


async def test_deleting_by_id(make: Make) -> None:
    queue, other = make(), make()
    waiting, flying, mine = [await queue.put(data) for data in [b"a", b"b", b"c"]]
    (message,) = await queue.receive_many(1)
    assert message.id == waiting
    assert await other.ack(waiting)  # in flight in another process
    assert await other.ack(flying)  # it waits
    assert not await queue.ack(flying)
    message = await queue.receive()
    assert message.id == mine
    assert await queue.ack(message.id)
    assert files(queue) == []
    assert not await queue.ack("1234")


@pytest.mark.parametrize("wrong", ["", "../x", "1.new", "-1", "0123", "1" * 18, "\u0663", "a"])
async def test_an_id_is_digits(queue: FileQueue[bytes], wrong: str) -> None:
    with pytest.raises(ValueError, match="not a message's id"):
        await queue.ack(wrong)
    with pytest.raises(TypeError):
        await queue.ack(5)  # type: ignore[arg-type]


async def test_messages_are_objects_with_a_codec(make: Make) -> None:
    queue = make(codec="json")
    await queue.put({"order": 1})
    await make().put(b"{")
    assert (await queue.receive()).item == {"order": 1}
    broken = await queue.receive()
    with pytest.raises(DecodeError) as caught:
        _ = broken.item
    assert caught.value.raw == b"{"
    await broken.ack()
    with pytest.raises(TypeError):
        await queue.put(object())
    with pytest.raises(TypeError, match="bytes"):
        await make().put("text")


async def test_large_and_empty_messages(make: Make) -> None:
    queue = make(max_message_size=3_000_000)
    large = b"0123456789" * 300_000
    for message in (b"", large, b"\0\n"):
        await queue.put(message)
    assert await drain(queue) == [b"", large, b"\0\n"]
    with pytest.raises(ValueError, match="at most 3000000"):
        await queue.put(large + b".")
    assert files(queue) == []


async def test_many_at_a_time(queue: FileQueue[bytes]) -> None:
    numbers = [b"%d" % number for number in range(300)]
    assert await queue.put_many(numbers) == 300
    ids = files(queue)
    assert [(queue.path / name).read_bytes() for name in ids] == numbers
    got = await queue.receive_many(200)
    assert [message.raw for message in got] == numbers[:200]
    assert [message.id for message in got] == ids[:200]
    assert [message.raw for message in await queue.receive_many(200)] == numbers[200:]
    assert await queue.put_many([]) == 0
    for wrong in (0, True, 1.5):
        with pytest.raises((TypeError, ValueError)):
            await queue.receive_many(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="use put"):
        await queue.put_many(b"abc")  # type: ignore[arg-type]


async def test_an_asynchronous_iterable(queue: FileQueue[bytes]) -> None:
    async def numbers() -> Any:
        for number in range(5):
            await asyncio.sleep(0)
            yield b"%d" % number

    await queue.put_many(numbers())
    assert await drain(queue) == [b"%d" % number for number in range(5)]


async def test_put_many_counts_its_own_items_when_its_items_come_from_a_failing_queue(queue: FileQueue[bytes]) -> None:
    async def forward() -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"
        error = StorageError("another queue's", name="other", errno=errno.ENOSPC)
        error.accepted = 5
        raise error

    with pytest.raises(StorageError, match="another queue's") as raised:
        await queue.put_many(forward())
    assert raised.value.accepted == 2 == await queue.qsize()


async def test_messages_are_acknowledged_by_their_id(queue: FileQueue[bytes]) -> None:
    await queue.put_many([b"a", b"b", b"c"])
    got = []
    while len(got) < 3:
        message = await queue.receive()
        got.append(message.raw)
        assert await queue.ack(message.id)
        assert not await queue.ack(message.id)
    assert got == [b"a", b"b", b"c"]
    assert files(queue) == []


async def test_statistics(make: Make) -> None:
    queue = make(bound=10)
    await queue.create()
    empty = await queue.statistics()
    assert (empty.length, empty.in_flight, empty.oldest, empty.next_expiry, empty.bound) == (0, 0, None, None, 10)
    assert await queue.put_many([b"a", b"b", b"c"]) == 3
    ids = files(queue)
    message = await queue.receive()
    most = (message.expires - datetime.now(UTC)).total_seconds()
    seen = await queue.statistics()
    least = (message.expires - datetime.now(UTC)).total_seconds()
    assert (seen.name, seen.path, seen.length, seen.in_flight) == ("orders", str(queue.path), 2, 1)
    assert (seen.put_count, seen.received_count, seen.deleted_count, seen.unfinished) == (3, 1, 0, 0)
    assert seen.oldest == datetime.fromtimestamp(int(ids[0]) / 1000, UTC)
    assert seen.next_expiry is not None
    assert least - 0.002 <= seen.next_expiry <= most + 0.002
    assert await queue.qsize() == 2
    await message.ack()
    assert (await queue.statistics()).deleted_count == 1


async def test_a_clock_that_is_in_the_year_2000_still_marks_nothing(make: Make) -> None:
    queue = make()
    message_id = await queue.put(b"a")
    os.utime(queue.path / message_id, ns=(0, 946_688_400_123_456_789))
    for attempt in (1, 2):
        message = await queue.receive(timeout=0)
        assert message.attempts == attempt
        await message.nack()
