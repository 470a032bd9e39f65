"""Hazards: clocks, crashed clients, foreign files, full disks, deleted directories, lost notifications."""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import apressure.files.storage.messages.contents
import apressure.files.storage.messages.renaming
from apressure import FileQueue, LeaseLostError, StorageError
from apressure.files.storage.directory import Directory
from tests import processes
from tests.integration.files.conftest import Clock, Make, drain, files


async def test_two_publishers_in_the_same_moment(make: Make, clock: Clock) -> None:
    queues = [make(clock=clock) for _ in range(3)]
    ids = [await queues[number % 3].put(b"%d" % number) for number in range(30)]
    assert ids == sorted(set(ids), key=int)
    assert await drain(queues[0]) == [b"%d" % number for number in range(30)]


async def test_concurrent_publishers_in_the_same_moment(make: Make, clock: Clock) -> None:
    queues = [make(clock=clock) for _ in range(3)]
    ids = await asyncio.gather(*(queues[number % 3].put(b"%d" % number) for number in range(60)))
    assert len(set(ids)) == 60
    got = await drain(queues[0])
    for producer in range(3):
        mine = [int(message) for message in got if int(message) % 3 == producer]
        assert sorted(mine) == list(range(producer, 60, 3))


async def test_a_clock_that_jumps_back(make: Make, clock: Clock) -> None:
    queue = make(clock=clock)
    first = await queue.put(b"a")
    clock.now -= 3600
    second = await queue.put(b"b")
    third = await make(clock=clock).put(b"c")  # a client that has not seen the clock before
    assert int(first) < int(second) < int(third)
    assert await drain(queue) == [b"a", b"b", b"c"]


async def test_a_name_that_is_in_flight_is_not_given_again(make: Make, clock: Clock) -> None:
    queue, consumer = make(clock=clock), make(clock=clock)
    first = await queue.put(b"a")
    await consumer.receive()
    (queue.path / f"{int(first) + 1}.new").touch()  # and one that another client is writing
    second = await make(clock=clock).put(b"b")
    assert int(second) == int(first) + 2


async def test_a_directory_in_the_place_of_a_message_in_flight_is_left_alone(make: Make, clock: Clock) -> None:
    queue = make(clock=clock)
    await queue.put(b"a")
    delivery = await queue.receive()
    (name,) = files(queue)
    (queue.path / name).unlink()
    (queue.path / name).mkdir()
    with pytest.raises(LeaseLostError):
        await delivery.ack()
    assert (queue.path / name).is_dir()


async def test_an_id_is_not_given_again_when_the_queue_is_empty(make: Make, clock: Clock) -> None:
    queue, idle = make(clock=clock), make(clock=clock)
    await idle.create()
    await idle.statistics()
    try:
        os.setxattr(queue.path, "user.test", b"")
    except OSError:
        pytest.skip("extended attributes in the temporary directory")
    ids = [await queue.put(data) for data in [b"x"] * 100]  # names run ahead of the clock
    await drain(queue)
    for publisher in (make(clock=clock), idle):
        ids.append(await publisher.put(b"new"))
        await drain(publisher)
    assert ids == sorted(set(ids), key=int)


async def test_there_is_no_name_after_the_last_one(make: Make) -> None:
    queue = make()
    await queue.create()
    await queue.statistics()
    (queue.path / "99999999999999").touch()
    (queue.path / "99999999999999999").touch()
    with pytest.raises(StorageError, match="no name can come after"):
        await queue.put(b"")


async def test_what_is_not_a_message_is_left_alone(make: Make) -> None:
    queue = make()
    await queue.create()
    await queue.statistics()
    secret = queue.path.parent / "secret"
    secret.write_text("secret")
    (queue.path / "1").mkdir()
    (queue.path / "2").symlink_to(secret)
    os.mkfifo(queue.path / "3")
    for name in ("README", "4.bak", "5.6.7.8", ".6", "7.", "08", "9" * 18, "10.new.new", "11~", "\u0661"):
        (queue.path / name).touch()
    strangers = files(queue)
    await make().put(b"a")
    assert await drain(queue) == [b"a"]
    assert (await queue.statistics()).length == 0
    assert not await queue.ack("1")
    assert await queue.purge() == 0
    assert files(queue) == strangers
    assert secret.read_text() == "secret"


async def test_what_is_called_like_a_message_and_is_none_is_not_deleted_either(make: Make, clock: Clock) -> None:
    queue = make(clock=clock)
    await queue.put(b"a")
    for name in ("1", "2.3", "4.new"):
        (queue.path / name).symlink_to("nowhere")
    clock.now += 3600
    await queue.give_back_in_flight()
    assert await queue.purge() == 1
    assert not await queue.ack("2")
    assert files(queue) == ["1", "2.3", "4.new"]


async def test_messages_of_a_crashed_publisher_are_ignored_and_swept(make: Make, clock: Clock) -> None:
    queue, full = make(clock=clock), make(clock=clock, bound=2)
    await queue.put(b"a")
    dead = queue.path / f"{int(clock.now * 1000) + 1}.new"
    dead.write_bytes(b"half")
    dead.chmod(0o600)
    assert (await queue.statistics()).unfinished == 1
    with pytest.raises(TimeoutError):
        await full.put(b"b", timeout=0)  # it may be alive
    assert dead.exists()
    clock.now += 31
    await full.put(b"b", timeout=0)
    assert not dead.exists()
    assert await drain(queue) == [b"a", b"b"]


async def test_a_publisher_that_was_taken_for_dead_publishes_under_another_name(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make()
    await queue.create()
    await queue.statistics()
    write = apressure.files.storage.messages.contents.write
    swept: list[str] = []

    def sweep(fd: int, data: bytes) -> None:
        write(fd, data)
        if not swept:
            swept.extend(name for name in files(queue) if name.endswith(".new"))
            (queue.path / swept[0]).unlink()

    monkeypatch.setattr(apressure.files.storage.messages.contents, "write", sweep)
    message_id = await queue.put(b"a")
    assert swept
    assert swept[0] != f"{message_id}.new"
    assert files(queue) == [message_id]
    swept.clear()
    ids = [await queue.put(data) for data in [b"b", b"c", b"d"]]
    assert files(queue) == [message_id, *ids]
    assert f"{ids[0]}.new" != swept[0]  # all three, behind it, and in order
    assert await drain(queue) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
async def test_a_disk_that_is_full(make: Make, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    queue = make()
    written = 0

    def full(fd: int, data: bytes) -> None:
        nonlocal written
        written += 1
        if written > 3:
            raise OSError(code, os.strerror(code))
        os.write(fd, data)

    monkeypatch.setattr(apressure.files.storage.messages.contents, "write", full)
    with pytest.raises(StorageError, match=os.strerror(code)) as caught:
        await queue.put_many([b"%d" % number for number in range(10)])
    assert (caught.value.errno, caught.value.accepted, caught.value.name) == (code, 3, "orders")
    assert len(files(queue)) == 3
    with pytest.raises(StorageError):
        await queue.put(b"x")
    assert await drain(queue) == [b"0", b"1", b"2"]  # receiving and deleting need no room
    monkeypatch.undo()
    await queue.put(b"again")
    assert await drain(queue) == [b"again"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few pages, of the test's own."""
    place = tmp_path / "disk"
    place.mkdir()
    if (
        os.geteuid()
        or processes.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=40", "tmpfs", str(place)],
            capture_output=True,
            check=False,
        ).returncode
    ):
        pytest.skip("a file system of the test's own (mounting takes root)")
    yield place
    processes.run(["umount", "-l", str(place)], check=True)


async def test_a_small_disk(disk: Path, mode: dict[str, Any]) -> None:
    async with FileQueue(disk / "orders", **mode) as queue:
        with pytest.raises(StorageError) as caught:
            await queue.put_many(b"%04d" % number + b"." * 3000 for number in range(100))
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.accepted >= 5
        there = caught.value.accepted
        processes.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(StorageError, match="Read-only"):
            await queue.put(b"")
        with pytest.raises(StorageError, match="Read-only"):
            await queue.receive(timeout=0)
        processes.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        assert [int(message[:4]) for message in await drain(queue)] == list(range(there))
        with pytest.raises(StorageError) as caught:  # no inodes
            await queue.put_many(b"" for _ in range(100))
        assert caught.value.errno == errno.ENOSPC


async def test_a_message_that_is_too_large_to_read_stays(make: Make) -> None:
    await make().put(b"1234567890")
    small = make(max_message_size=5)
    with pytest.raises(StorageError, match="it has 10 bytes, and at most 5 are allowed"):
        await small.receive(timeout=0)
    assert await drain(make()) == [b"1234567890"]


async def test_a_message_that_cannot_be_read_stays(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make()
    await queue.put(b"a")

    def broken(fd: int, size: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(apressure.files.storage.messages.contents, "_read", broken)
    with pytest.raises(StorageError, match="Input/output error"):
        await queue.receive(timeout=0)
    monkeypatch.undo()
    message = await queue.receive(timeout=0)
    assert message.attempts == 1


HUGE = 1 << 40
"""Bytes that no machine which runs this has in memory."""


def grow(queue: FileQueue[bytes], message_id: str) -> None:
    """Make a message huge, which takes no room on the disk."""
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "1":
        pytest.skip("a kernel that refuses memory (vm.overcommit_memory is 1)")
    os.truncate(queue.path / message_id, HUGE)


async def test_a_message_that_does_not_fit_into_memory_stays(make: Make) -> None:
    queue = make(max_message_size=2 * HUGE)
    ids = [await queue.put(data) for data in [b"a", b"b"]]
    grow(queue, ids[0])
    for _ in range(2):
        with pytest.raises(
            StorageError, match=rf"message {ids[0]}\).*{HUGE} bytes, which do not fit into memory\. Call ack"
        ):
            await queue.receive(timeout=0)
        assert files(queue) == ids
    assert await queue.ack(ids[0])
    (message,) = await queue.receive_many(5)
    assert (message.raw, message.attempts) == (b"b", 1)


@pytest.mark.parametrize("largest", [2 * HUGE, 1000], ids=["for memory", "for max_message_size"])
async def test_a_message_that_is_too_large_moves_to_the_dead_letters(make: Make, largest: int) -> None:
    queue = make(max_message_size=largest, max_attempts=2)
    ids = [await queue.put(data) for data in [b"a", b"b"]]
    grow(queue, ids[0])
    for _ in range(2):
        with pytest.raises(StorageError, match=rf"it has {HUGE} bytes"):
            await queue.receive(timeout=0)
        assert [name for name in files(queue) if name.isdigit()] == ids
    assert (await queue.receive(timeout=0)).raw == b"b"
    (letter,) = await queue.dead_letters()
    assert (letter.id, letter.attempts) == (ids[0], 2)
    assert f"it has {HUGE} bytes" in letter.reason


async def test_a_large_message_behind_others_is_told_to_the_next_one(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make(max_message_size=5)
    await make().put_many([b"a", b"1234567890"])
    (message,) = await queue.receive_many(5)
    assert message.raw == b"a"
    assert "it has 10 bytes, and at most 5 are allowed" in caplog.text
    with pytest.raises(StorageError, match="it has 10 bytes, and at most 5 are allowed"):
        await queue.receive_many(5)


async def test_a_clock_that_is_wrong_changes_nothing(make: Make, clock: Clock) -> None:
    queue = make(clock=clock, bound=5)
    message_id = await queue.put(b"a")
    await queue.put(b"b")
    message = await queue.receive()
    before = files(queue)
    for clock.now in (float("nan"), float("inf"), -31.0, -0.001, 1e11, 1e300):
        wrong = (
            f"the clock is wrong: clock() must return the seconds since 1970, from 0 to 99999999999, not {clock.now}"
        )
        fresh = make(clock=clock)
        for use in (queue.receive(), queue.put(b"c"), message.extend(), queue.statistics(), fresh.receive()):
            with pytest.raises(ValueError, match=re.escape(wrong)):
                await use
        await fresh.aclose()
        assert files(queue) == before
    await message.nack()  # this takes no clock
    clock.now = 1_700_000_000.0
    assert await queue.ack(message_id)
    assert await drain(queue) == [b"b"]


async def test_a_clock_that_returns_no_number(make: Make) -> None:
    clock: Any = lambda: "noon"  # noqa: E731
    with pytest.raises(TypeError, match=r"the clock is wrong: .* not str"):
        await make(clock=clock).receive()


async def test_a_clock_that_becomes_wrong_ends_waits(make: Make, clock: Clock) -> None:
    queue = make(clock=clock, bound=1)
    await queue.put(b"a")
    await queue.receive()
    waiting = [asyncio.create_task(queue.receive()), asyncio.create_task(queue.put(b"b"))]
    while (await queue.statistics()).waiting_receivers + (await queue.statistics()).waiting_putters < 2:
        await asyncio.sleep(0)
    clock.now = float("nan")
    for task in waiting:
        with pytest.raises(ValueError, match="the clock is wrong"):
            await task


async def test_a_clock_that_begins_at_zero(make: Make, clock: Clock) -> None:
    clock.now = 0.0
    queue = make(clock=clock)
    await queue.put(b"a")
    await queue.receive(lease=5)
    assert (await queue.statistics()).in_flight == 1
    clock.now += 6
    assert (await queue.receive(timeout=0)).redelivered


async def test_two_messages_of_one_name_are_both_delivered(make: Make, clock: Clock) -> None:
    """Only a client that breaks the rules makes them; neither overwrites the other."""
    queue = make(clock=clock)
    message_id = await queue.put(b"a")
    await queue.receive(lease=1)
    (queue.path / message_id).write_bytes(b"b")
    clock.now += 10
    second = await queue.receive(timeout=0)
    assert second.raw == b"b"
    await second.ack()
    clock.now += 10
    first = await queue.receive(timeout=0)
    assert (first.raw, first.attempts) == (b"a", 2)


async def test_a_file_system_without_renames_that_refuse_to_overwrite(
    make: Make, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(
        apressure.files.storage.messages.renaming, "_NOREPLACE", 1 << 30
    )  # the kernel says EINVAL, as NFS does for 1
    queue, other = make(clock=clock), make(clock=clock)
    await queue.put_many([b"a", b"b"])
    message = await queue.receive()
    await other.receive(lease=1)
    await message.nack()
    clock.now += 10
    again = await other.receive_many(5)
    assert [(one.raw, one.attempts) for one in again] == [(b"a", 2), (b"b", 2)]
    for one in again:
        await one.ack()
    assert files(queue) == []


def test_names_are_on_the_disk_although_the_next_message_needs_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several tasks' messages are committed together: the first task's `put` returns."""
    directory, synced, fsync = Directory(tmp_path, "q", 100, True), list[int](), os.fsync
    directory.open(create=True)
    reserved = [directory.reserve(2000 * number, b"") for number in (1, 2)]
    (directory.path / "2").touch()
    monkeypatch.setattr(os, "fsync", lambda fd: [synced.append(fd), fsync(fd)])
    assert directory.commit(reserved) == (1, None)  # type: ignore[arg-type]
    assert synced[-1] == directory.fileno()
    directory.close()
