"""Notifications of the kernel: read, dropped, and replaced by listings where there are none."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from apressure import FileQueue, MissingExtraError, QueueDoesNotExistError, StorageError, logs
from apressure.files.storage import inotify, store, watcher
from tests.integration.commands import wait_until
from tests.integration.conftest import eventually, in_time
from tests.integration.files import watching
from tests.integration.files.conftest import files
from tests.integration.files.test_waiting import parked
from tests.processes import forked


@pytest.fixture
def long_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that waits looks again after an hour only, unless the kernel tells it to."""
    monkeypatch.setattr(store, "_ROUND", 3600.0)


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
        monkeypatch.setattr(queue._store, "_list", lambda watcher: [made.append(1), listed(watcher)][1])
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
        instance = inotify.instance_of(asyncio.get_running_loop())

        def cut(fd: int, size: int) -> bytes:
            nonlocal rest
            if fd != instance.fd:
                return real(fd, size)
            data, rest = rest or real(fd, size), b""
            first = 16 + int.from_bytes(data[12:16], sys.byteorder)
            rest = data[first:]
            return data[:first]

        monkeypatch.setattr(inotify.os, "read", cut)
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


@pytest.mark.usefixtures("long_rounds")
async def test_waiting_tasks_get_messages_when_notifications_were_lost(tmp_path: Path) -> None:
    """All queues of an event loop share what the kernel remembers. It drops what is too much, whosesoever it is."""
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 1_200_000:
        pytest.skip(f"fs.inotify.max_queued_events is {limit}")
    async with FileQueue(tmp_path / "busy", fsync=False) as busy, FileQueue(tmp_path / "quiet", fsync=False) as quiet:
        receiving = [await parked(queue, queue.receive()) for queue in (busy, quiet)]
        for _ in range(limit // 2 + 1):  # while the event loop stands still
            (busy.path / "x").touch()
            (busy.path / "x").unlink()
        for number, queue in enumerate((busy, quiet)):
            (queue.path / f"{1_700_000_000_000 + number}").write_bytes(b"%d" % number)
        assert [(await in_time(one)).raw for one in receiving] == [b"0", b"1"]
        receiving = [await parked(queue, queue.receive()) for queue in (busy, quiet)]
        for number, queue in enumerate((busy, quiet)):
            (queue.path / f"{1_700_000_000_002 + number}").write_bytes(b"%d" % number)
        assert [(await in_time(one)).raw for one in receiving] == [b"0", b"1"]


@pytest.mark.usefixtures("long_rounds")
async def test_changes_during_a_listing_are_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another queue reads the notifications meanwhile; too many changes to keep make another listing."""
    async with FileQueue(tmp_path / "other", fsync=False) as other, FileQueue(tmp_path / "q", fsync=False) as queue:
        await other.put(b"")
        await queue.create()
        await queue.statistics()
        assert queue._store.watcher.opened
        real, turns = queue._store._list, 0

        def listing(watcher: Any) -> Any:
            nonlocal turns
            turns += 1
            found = real(watcher)
            (queue.path / f"{1_700_000_000_000 + turns}").write_bytes(b"")
            read = asyncio.run_coroutine_threadsafe(other.statistics(), loop)
            assert not read.result(60).in_flight
            return found

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(queue._store, "_list", listing)
        queue._store.watcher.stale = True
        assert (await queue.statistics()).length == turns == 1
        monkeypatch.setattr(watcher, "_MOST_KEPT", 0)
        queue._store.watcher.stale = True
        several = asyncio.create_task(queue.statistics())
        await eventually(lambda: turns > 3)
        monkeypatch.setattr(watcher, "_MOST_KEPT", 10)
        assert (await several).length == turns


def test_file_systems_of_several_machines_are_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    device = os.fstat(fd).st_dev
    line = f"26 1 {os.major(device)}:{os.minor(device)} / /mnt rw - %s server:/export rw\n"
    for kind, remote in (("nfs4", True), ("fuse.sshfs", True), ("ext4", False), ("tmpfs", False)):
        monkeypatch.setattr(Path, "read_text", lambda self, kind=kind, **_: line % kind)
        assert watcher.is_remote(fd) is remote
    os.close(fd)


async def test_without_the_package_that_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncinotify", None)
    with pytest.raises(MissingExtraError, match=r"apressure\[files\]") as caught:
        await FileQueue(tmp_path / "q").put(b"")
    assert caught.value.extra == "files"
    async with FileQueue(tmp_path / "q", notify=False) as queue:
        await queue.put(b"")


@pytest.mark.parametrize("limit", ["max_inotify_instances", "max_inotify_watches", "descriptors"])
def test_a_directory_that_cannot_be_watched_is_listed_until_it_can(tmp_path: Path, limit: str) -> None:
    watching.run(limit, tmp_path)


@pytest.mark.slow
def test_a_thousand_queues_are_open_in_one_process(tmp_path: Path) -> None:
    watching.run("a thousand", tmp_path)


async def test_a_system_without_inotify_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import asyncinotify

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(asyncinotify.Inotify, "add_watch", refuse)
    monkeypatch.setattr(logs, "_limit", logs.Limit())
    for name in "abc":
        async with FileQueue(tmp_path / name, poll_interval=0.01) as queue:
            receiving = await parked(queue, queue.receive())
            await queue.put(b"a")
            assert (await in_time(receiving)).raw == b"a"
    (record,) = caplog.records
    assert record.getMessage().endswith("With notify=False, this warning does not come")


def fresh(place: Path, name: str = "q") -> FileQueue[bytes]:
    return FileQueue(place / name, fsync=False)


@pytest.mark.usefixtures("long_rounds")
async def test_objects_of_one_directory_share_a_watch(tmp_path: Path) -> None:
    before = watching.watches()
    one, other, publisher = fresh(tmp_path), fresh(tmp_path), fresh(tmp_path)
    receiving = [await parked(queue, queue.receive()) for queue in (one, other)]
    await publisher.put(b"a")
    assert watching.watches() == before + 1
    (first,), _ = await asyncio.wait(receiving, return_when=asyncio.FIRST_COMPLETED)
    await (one if first is receiving[0] else other).aclose()
    assert watching.watches() == before + 1
    await publisher.put(b"b")
    assert {(await in_time(task)).raw for task in receiving} == {b"a", b"b"}
    await publisher.aclose()
    for queue in (one, other):
        await queue.aclose()
    assert watching.watches() == before
    assert inotify.instance_of(asyncio.get_running_loop())._inotify.watches == []


@pytest.mark.usefixtures("long_rounds")
async def test_a_directory_that_was_replaced_or_moved_is_watched(tmp_path: Path) -> None:
    async with fresh(tmp_path) as queue, fresh(tmp_path) as other:
        await queue.put(b"a")
        await other.delete()
        await queue.create()
        receiving = await parked(queue, queue.receive())
        async with fresh(tmp_path) as publisher:
            await publisher.put(b"b")
            assert (await in_time(receiving)).raw == b"b"
        queue.path.rename(tmp_path / "elsewhere")
        with pytest.raises(QueueDoesNotExistError):
            await queue.statistics()
        (tmp_path / "elsewhere").rename(queue.path)
        receiving = await parked(queue, queue.receive())
        async with fresh(tmp_path) as publisher:
            await publisher.put(b"c")
        assert (await in_time(receiving)).raw == b"c"


@pytest.mark.slow
async def test_a_queue_that_is_dropped_ends_its_watch_when_its_directory_changes(tmp_path: Path) -> None:
    before = watching.watches()
    async with fresh(tmp_path, "kept") as kept:
        await fresh(tmp_path).put(b"")
        await kept.put(b"")
        gc.collect()
        (tmp_path / "q" / "1").touch()
        await kept.statistics()
        assert watching.watches() == before + 1
        for _ in range(20):
            await fresh(tmp_path, "kept").put(b"")
            gc.collect()
        (told,) = inotify.instance_of(asyncio.get_running_loop())._watches.values()
        assert len(told[1]) <= 2


class Abandonable(asyncio.SelectorEventLoop):
    """A loop to forget unclosed: Python may finalize its sockets first, and then it cannot close them."""

    def __del__(self) -> None:
        with contextlib.suppress(ValueError):
            super().__del__()  # type: ignore[misc]


@pytest.mark.slow
def test_event_loops_that_end_leave_their_instance_to_the_next_one(tmp_path: Path) -> None:
    """Whether or not they are closed, and their queues; also in several threads at a time."""

    async def use(close: bool) -> None:
        queue = fresh(tmp_path)
        await queue.put(b"a")
        assert (await queue.statistics()).notified
        if close:
            await queue.aclose()

    async def none_has_ended() -> None:
        await use(True)
        assert not [one for one in inotify._living if one.ended and one.fd != -1]

    def turn(close: bool, close_loop: bool) -> None:
        loop = Abandonable()
        loop.run_until_complete(use(close))
        if close_loop:
            loop.close()
        else:
            warnings.simplefilter("ignore", ResourceWarning)
            del loop

    def few() -> None:
        def are_kept() -> bool:
            gc.collect()  # a queue's thread may still have a reference
            return len(watching.instances()) <= inotify._SPARES

        wait_until(are_kept)

    def turns() -> None:
        for number in range(30):
            turn(bool(number % 2), closed := bool(number % 3))
            if not closed:
                gc.collect()

    with warnings.catch_warnings():
        turns()
        few()
        threads = [threading.Thread(target=turns) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        few()
        asyncio.run(none_has_ended())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.usefixtures("long_rounds")
async def test_a_forked_child_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    async with fresh(tmp_path) as queue, fresh(tmp_path) as publisher:
        receiving = await parked(queue, queue.receive())
        before = watching.watches()

        def child() -> None:
            assert watching.instances() == []
            queue._waits.__del__()
            queue._store.release()
            asyncio.run(use())

        async def use() -> None:
            async with fresh(tmp_path, "its own") as own:
                task = await parked(own, own.receive())
                async with fresh(tmp_path, "its own") as other:
                    await other.put(b"b")
                assert (await in_time(task)).raw == b"b"

        assert await asyncio.to_thread(forked, child) == 0
        assert watching.watches() == before
        await publisher.put(b"a")
        assert (await in_time(receiving)).raw == b"a"


async def test_an_instance_that_outlives_the_interpreter_is_left_to_the_kernel() -> None:
    """Then the names that its end needs are gone: it would print a traceback."""
    instance = inotify.Instance(asyncio.get_running_loop())
    instance.__del__(lambda: True)
    assert instance.fd != -1
    instance.__del__(lambda: False)
    assert instance.fd == -1
