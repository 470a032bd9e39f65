"""Slow disks, and disks with errors: which messages count as put, and which puts are tried again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

import apressure.files.storage.messages.contents
import apressure.files.storage.messages.renaming
import apressure.files.storage.store
from apressure import FileQueue, QueueEmptyError, StorageError
from tests.integration.files.conftest import Clock, Make, drain, files


async def test_a_publisher_that_is_slow_is_not_taken_for_dead(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, other = make(), make()
    await other.create()
    await other.statistics()
    monkeypatch.setattr(apressure.files.storage.store, "ABANDONED", 0.02)
    monkeypatch.setattr(apressure.files.storage.store, "_ROUND", 0.02)
    write = apressure.files.storage.messages.contents.write
    written = 0

    def slow(fd: int, data: bytes) -> None:
        nonlocal written
        written += 1
        time.sleep(0.2)
        write(fd, data)

    monkeypatch.setattr(apressure.files.storage.messages.contents, "write", slow)
    publishing = asyncio.create_task(queue.put(b"a"))
    async with asyncio.timeout(90):
        while not publishing.done():
            with contextlib.suppress(QueueEmptyError):
                await (await other.receive(timeout=0.01)).nack()
    assert written == 1
    assert files(queue) == [await publishing]


async def test_a_rename_in_two_steps_whose_second_one_fails_is_undone(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        apressure.files.storage.messages.renaming, "_NOREPLACE", 1 << 30
    )  # the kernel says EINVAL, as NFS does for 1
    queue = make()
    await queue.create()
    await queue.statistics()
    unlink, failed = os.unlink, False

    def stumbles(*arguments: Any, **options: Any) -> None:
        nonlocal failed
        if not failed:
            failed = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        unlink(*arguments, **options)

    monkeypatch.setattr(os, "unlink", stumbles)
    with pytest.raises(StorageError, match="Input/output error") as caught:
        await queue.put(b"a")
    assert (caught.value.accepted, files(queue)) == (0, [])
    await queue.put(b"b")
    failed = False
    with pytest.raises(StorageError, match="Input/output error"):
        await queue.receive(timeout=0)
    assert await drain(queue) == [b"b"]


async def test_a_name_for_what_is_taken_that_is_there_already(make: Make, clock: Clock) -> None:
    queue = make(clock=clock)
    message_id = await queue.put(b"a")
    (queue.path / f"{message_id}.{int(clock.now * 1000) + 5000}").mkdir()
    with pytest.raises(StorageError, match=rf"message {message_id}.*File exists"):
        await queue.receive(timeout=0, lease=5)
    assert (await queue.receive(timeout=0)).raw == b"a"


async def test_each_task_has_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FileQueue(tmp_path / "q") as queue:
        await queue.create()
        fsync = os.fsync

        def broken(fd: int) -> None:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            time.sleep(0.02)  # the others come while it is busy, and go together
            fsync(fd)

        monkeypatch.setattr(os, "fsync", broken)
        errors = await asyncio.gather(
            queue.put(b"a"), queue.put(b"b"), queue.put_many([b"c"] * 3), return_exceptions=True
        )
        assert [error.accepted for error in errors if isinstance(error, StorageError)] == [1, 1, 3]
