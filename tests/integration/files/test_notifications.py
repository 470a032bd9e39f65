"""Notifications of the kernel: read, dropped, and replaced by listings where there are none."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import apressure.files.storage.watcher
from apressure import FileQueue, MissingExtraError, StorageError
from tests.integration.files.conftest import files


@pytest.mark.parametrize("stands_still", [True, False], ids=["which stands still", "which goes on"])
async def test_more_changes_than_the_kernel_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stands_still: bool
) -> None:
    """An object whose program does something else, in an event loop that stands still or goes on meanwhile."""
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 1_200_000:
        pytest.skip(f"fs.inotify.max_queued_events is {limit}")

    async def traffic() -> None:
        async with FileQueue(tmp_path / "q", fsync=False) as other:
            for _ in range(limit // 300 + 2):  # five changes for each message
                await other.put_many([b"x"] * 64)
                for message in await other.receive_many(100):
                    await message.ack()
            await other.put(b"b")

    def listings(queue: FileQueue[bytes]) -> list[int]:
        made: list[int] = []
        listed = queue._store._list
        monkeypatch.setattr(queue._store, "_list", lambda: [made.append(1), listed()][1])
        return made

    async with FileQueue(tmp_path / "q", fsync=False) as queue:
        await queue.put(b"a")
        made = listings(queue)
        thread = threading.Thread(target=asyncio.run, args=(traffic(),))
        thread.start()
        if stands_still:
            thread.join()
        else:
            await asyncio.to_thread(thread.join)
        assert (await queue.receive(timeout=0)).raw == b"b"
        seen = await queue.statistics()
        assert (seen.length, seen.in_flight) == (0, 1)
        assert made == [1] * stands_still
        await queue.put(b"c")
        async with FileQueue(tmp_path / "q", fsync=False) as other:
            assert (await other.receive(timeout=0)).raw == b"c"


async def test_a_message_that_is_being_renamed_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells of a rename in two changes; this reader comes between them."""
    async with FileQueue(tmp_path / "q", fsync=False) as queue, FileQueue(tmp_path / "q", fsync=False) as other:
        message_id = await queue.put(b"a")
        await queue.statistics()
        message = await other.receive()
        real, rest = os.read, b""

        def cut(fd: int, size: int) -> bytes:
            nonlocal rest
            if fd != queue._store.fileno():
                return real(fd, size)
            data, rest = rest or real(fd, size), b""
            first = 16 + int.from_bytes(data[12:16], sys.byteorder)
            rest = data[first:]
            return data[:first]

        monkeypatch.setattr(apressure.files.storage.watcher.os, "read", cut)
        seen = await queue.statistics()
        assert (seen.length, seen.in_flight) == (0, 1)
        await message.nack()
        seen = await queue.statistics()
        assert (seen.length, seen.in_flight) == (1, 0)
        (queue.path / message_id).rename(tmp_path / "elsewhere")
        seen = await queue.statistics()
        assert (seen.length, seen.in_flight) == (0, 0)


async def test_a_process_with_too_many_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FileQueue(tmp_path / "q", fsync=False) as queue, FileQueue(tmp_path / "q", fsync=False) as other:
        await queue.put(b"a")
        await queue.statistics()
        await other.receive()
        (name,) = files(queue)
        (queue.path / name).rename(tmp_path / "elsewhere")  # a name went, and none came

        def refuse(*_: Any) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(os, "scandir", refuse)
        with pytest.raises(StorageError, match="Too many open files"):
            await queue.statistics()
        monkeypatch.undo()
        assert (await queue.statistics()).in_flight == 0


async def test_a_waiting_task_gets_the_message_when_notifications_were_lost(tmp_path: Path) -> None:
    async with FileQueue(tmp_path / "q", fsync=False) as queue, FileQueue(tmp_path / "q", fsync=False) as other:
        receiving = asyncio.create_task(queue.receive(timeout=20))
        await asyncio.sleep(0.05)
        assert queue._store.watcher is not None
        await other.put(b"a")
        os.read(queue._store.fileno(), 65536)  # lost
        queue._store.watcher.stale = True
        await other.put(b"b")
        assert (await receiving).raw == b"a"


def test_file_systems_of_several_machines_are_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    device = os.fstat(fd).st_dev
    line = f"26 1 {os.major(device)}:{os.minor(device)} / /mnt rw - %s server:/export rw\n"
    for kind, remote in (("nfs4", True), ("fuse.sshfs", True), ("ext4", False), ("tmpfs", False)):
        monkeypatch.setattr(Path, "read_text", lambda self, kind=kind, **_: line % kind)
        assert apressure.files.storage.watcher.is_remote(fd) is remote
    os.close(fd)


async def test_without_the_package_that_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncinotify", None)
    with pytest.raises(MissingExtraError, match=r"apressure\[files\]") as caught:
        await FileQueue(tmp_path / "q").put(b"")
    assert caught.value.extra == "files"
    async with FileQueue(tmp_path / "q", notify=False) as queue:
        await queue.put(b"")


async def test_too_many_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncinotify

    def refuse(*_: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(asyncinotify.Inotify, "__init__", refuse)
    monkeypatch.setattr(asyncinotify.Inotify, "_finalizer", lambda self: None, raising=False)
    with pytest.raises(StorageError, match="max_user_instances"):
        await FileQueue(tmp_path / "q").put(b"")
