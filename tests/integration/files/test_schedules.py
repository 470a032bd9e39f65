"""Schedules: what is special to directories, beside `ScheduleContract`."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from apressure import FileQueue, QueueDoesNotExistError, QueueEmptyError, StorageError
from apressure.files import schedules
from apressure.files.storage import names
from apressure.files.storage.directory import Directory
from tests.integration.files.conftest import Clock, Make, drain, files
from tests.integration.files.test_delays import each_kill
from tests.processes import forked
from tests.vsqs import Vsqs

OURS = {names.SCHEDULES, names.SCHEDULES_LOCK}


async def test_the_files_of_schedules_are_no_messages(make: Make, clock: Clock) -> None:
    queue = make(clock=clock)
    await queue.create()
    await queue.every("tick", 1, b"1")
    assert set(files(queue)) == OURS
    assert await queue.qsize() == 0
    clock.now += 1
    assert await queue.drive_schedules() <= 1
    assert await drain(queue) == [b"1"]
    assert set(files(queue)) == OURS
    await queue.delete()
    assert not queue.path.exists()


async def test_kills_while_an_occasion_is_put(make: Make, clock: Clock) -> None:
    """It is put once, by the one that was killed or by the next one."""

    async def prepare(queue: FileQueue[bytes]) -> None:
        await queue.every("tick", 10, b"1", missed="all")
        clock.now += 10 - clock.now % 10
        await queue.drive_schedules()
        assert await drain(queue) == [b"1"]
        clock.now += 10

    async def act(queue: FileQueue[bytes]) -> None:
        await queue.drive_schedules()

    async def check(queue: FileQueue[bytes]) -> None:
        await queue.drive_schedules()
        await queue.pause_schedule("tick")  # a change ends what the killed one has begun
        assert (await queue.schedules())[0].count == 2
        clock.now += 60  # the places of one that was killed while it made the message due are free by then
        assert await queue.get_nowait() == b"1"
        assert await drain(queue) == []
        assert [name for name in files(queue) if not name.endswith(".new")] == sorted(OURS)

    await each_kill(make, {"clock": clock}, prepare, act, check)


async def test_kills_while_a_schedule_is_made(make: Make, clock: Clock) -> None:
    async def prepare(queue: FileQueue[bytes]) -> None:
        await queue.every("other", 3600, b"1")

    async def act(queue: FileQueue[bytes]) -> None:
        await queue.every("tick", 10, b"1")

    async def check(queue: FileQueue[bytes]) -> None:
        assert [one.name for one in await queue.schedules()] in (["other"], ["other", "tick"])
        await queue.every("tick", 10, b"1")
        assert [one.name for one in await queue.schedules()] == ["other", "tick"]
        assert set(files(queue)) == OURS

    await each_kill(make, {"clock": clock}, prepare, act, check)


async def test_several_processes_put_each_occasion_once(make: Make) -> None:
    queue = make()
    await queue.create()
    await queue.every("tick", 1, b"1", missed="all")

    async def drive() -> None:
        async with FileQueue(queue.path) as one:
            for _ in range(40):
                await one.drive_schedules()
                await asyncio.sleep(0.05)

    async def run() -> int:
        return await asyncio.to_thread(forked, lambda: asyncio.run(drive()))

    assert await asyncio.gather(*(run() for _ in range(3))) == [0, 0, 0]
    (schedule,) = await queue.schedules()
    assert schedule.count > 0
    assert await drain(queue) == [b"1"] * schedule.count


async def test_a_lock_that_nobody_gives_up_is_a_clear_error(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make()
    await queue.create()
    await queue.every("tick", 3600, b"1")
    monkeypatch.setattr(schedules, "_PATIENCE", 0.05)
    with (queue.path / names.SCHEDULES_LOCK).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="another process holds the lock") as raised:
            await queue.pause_schedule("tick")
        assert raised.value.errno == errno.EAGAIN
        assert not (await queue.schedules())[0].paused  # to look needs no lock
    assert await queue.pause_schedule("tick")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"schedules": {"a": 1}, "pending": ""}', b"\xff" * 9])
async def test_a_damaged_file_is_a_clear_error_and_stays(make: Make, content: bytes) -> None:
    queue = make()
    await queue.create()
    (queue.path / names.SCHEDULES).write_bytes(content)
    for call in (queue.schedules(), queue.every("tick", 1, b"1"), queue.drive_schedules()):
        with pytest.raises(StorageError, match=r"is damaged: .*queue-schedules"):
            await call
    assert (queue.path / names.SCHEDULES).read_bytes() == content
    await queue.put(b"1")
    assert await queue.get() == b"1"
    (queue.path / names.SCHEDULES).unlink()
    await queue.every("tick", 3600, b"1")


async def test_a_schedule_makes_the_directory_as_a_put_does(make: Make) -> None:
    queue, strict = make(), make("strict", auto_create=False)
    assert await queue.drive_schedules() == 5  # a service may be there first
    assert await queue.schedules() == []
    assert not await queue.exists()
    assert (await queue.every("tick", 60, b"1")).name == "tick"
    assert await queue.exists()
    for operation in (strict.every("tick", 60, b"1"), strict.schedules(), strict.drive_schedules()):
        with pytest.raises(QueueDoesNotExistError):
            await operation


async def test_statistics_do_not_suffer_from_a_damaged_file(make: Make) -> None:
    queue = make()
    await queue.create()
    assert (await queue.statistics()).schedules == 0
    await queue.every("tick", 60, b"1")
    assert (await queue.statistics()).schedules == 1
    (queue.path / names.SCHEDULES).write_bytes(b"?")
    assert (await queue.statistics()).schedules == 0


@pytest.mark.parametrize("name", [names.SCHEDULES, names.SCHEDULES_LOCK, names.SCHEDULES_NEW, names.OCCASIONS[0]])
async def test_a_directory_in_the_place_of_a_file(make: Make, name: str, clock: Clock) -> None:
    queue = make(clock=clock)
    await queue.create()
    (queue.path / name).mkdir()
    with pytest.raises(StorageError):
        await queue.every("tick", 1, b"1")
        await queue.run_schedule("tick")
    (queue.path / name).rmdir()
    await queue.every("tick", 1, b"1")
    await queue.run_schedule("tick")
    assert await queue.get() == b"1"


async def test_a_full_disk_puts_the_occasion_later(make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make(clock=clock)
    await queue.create()
    await queue.every("tick", 10, b"1")
    clock.now += 10
    with monkeypatch.context() as patch:

        def refuse(*_: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(schedules, "_write", refuse)
        with pytest.raises(StorageError, match="No space") as raised:
            await queue.drive_schedules()
        assert raised.value.temporary
    with pytest.raises(QueueEmptyError):
        await queue.get_nowait()
    await queue.drive_schedules()
    assert await queue.get() == b"1"


async def test_an_occasion_that_could_not_become_a_message_does_so_at_the_next_change(
    make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make(clock=clock)
    await queue.create()
    await queue.every("tick", 10, b"1")
    clock.now += 10
    with monkeypatch.context() as patch:

        def refuse(directory: Directory, *_: str) -> None:
            raise directory.refused("change", OSError(errno.EIO, os.strerror(errno.EIO)))

        patch.setattr(Directory, "delay", refuse)
        with pytest.raises(StorageError):
            await queue.drive_schedules()
    assert (await queue.schedules())[0].count == 1
    await queue.every("other", 3600, b"2")
    assert await queue.get() == b"1"


def test_vsqs_does_not_see_schedules(tmp_path: Path) -> None:
    pytest.importorskip("vsqs", reason="vsqs 0.3")

    async def use() -> None:
        async with FileQueue(tmp_path / "jobs", unit="us") as queue:
            await queue.create()
            await queue.every("tick", 3600, b"occasion")
            with Vsqs(tmp_path, "jobs") as client:
                assert client("size") == 0
                await queue.run_schedule("tick")
                message_id, text = client("receive")
                assert text == "occasion"
                client("delete", message_id)
                assert client("size") == 0

    asyncio.run(use())


def test_a_killed_process_loses_the_lock(tmp_path: Path) -> None:
    async def hold() -> None:
        async with FileQueue(tmp_path / "jobs") as queue:
            await queue.create()
            with (tmp_path / "jobs" / names.SCHEDULES_LOCK).open("w") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                os.kill(os.getpid(), signal.SIGKILL)

    assert forked(lambda: asyncio.run(hold())) == -signal.SIGKILL

    async def use() -> None:
        async with FileQueue(tmp_path / "jobs") as queue:
            await queue.every("tick", 1, b"1")

    asyncio.run(use())
