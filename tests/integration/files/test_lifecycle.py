"""Creating and deleting a queue, and the files that say its bound and that it is closed."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
from pathlib import Path
from typing import Any

import pytest

from apressure import (
    ClientClosedError,
    FileQueue,
    QueueAlreadyExistsError,
    QueueDoesNotExistError,
    QueueFullError,
    StorageError,
)
from apressure.files.storage import lifecycle
from apressure.files.storage.place import opened
from apressure.files.storage.writing import lock_patiently
from tests.integration.conftest import in_time
from tests.integration.files.conftest import Make, drain, files, listing
from tests.integration.files.test_waiting import PATIENCE, parked


async def test_a_put_makes_the_directory_and_looking_does_not(make: Make) -> None:
    queue = make()
    async with make() as looking:
        assert not await looking.exists()
        for look in (looking.statistics, looking.qsize, looking.peek, looking.purge, looking.requeue, looking.delete):
            with pytest.raises(QueueDoesNotExistError, match=r"create\(\) makes it"):
                await look()
        await queue.put(b"a")
        assert await looking.exists()
        assert await looking.bound() == 0
        with pytest.raises(QueueAlreadyExistsError, match="exist_ok"):
            await looking.create(bound=3)


async def test_a_queue_below_a_symbolic_link_is_created(make: Make, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    queue = make("link/orders")
    assert await queue.create(bound=1)
    assert listing(tmp_path / "real" / "orders") == [".queue-v1-bound-1"]


async def test_the_bound_of_the_object_wins(make: Make) -> None:
    queue, own, unbounded = make(), make(bound=1), make(bound=0)
    assert await queue.create(bound=2)
    assert not await own.create(bound=5, exist_ok=True)
    assert [await one.bound() for one in (queue, own, unbounded)] == [2, 1, 0]
    await queue.put(b"a")
    with pytest.raises(QueueFullError, match="it has 1 messages"):
        await own.put_nowait(b"b")
    await queue.put_nowait(b"b")
    await unbounded.put_nowait(b"c")
    assert await drain(queue) == [b"a", b"b", b"c"]


async def test_a_bound_that_is_changed_counts_at_once(make: Make) -> None:
    queue = make()
    await queue.create(bound=1)
    await queue.put(b"a")
    putting = await parked(queue, queue.put(b"b", timeout=PATIENCE), putters=1)
    (queue.path / ".queue-v1-bound-1").rename(queue.path / ".queue-v1-bound-2")
    await putting
    assert await make().bound() == 2
    (queue.path / ".queue-v1-bound-9").touch()
    assert await queue.bound() == 2  # of several, the smallest
    await queue.set_bound(5)
    assert sorted(one for one in files(queue) if "bound" in one) == [".queue-v1-bound-5"]
    own = make(bound=7)
    await own.set_bound(6)
    assert (await own.bound(), await make().bound()) == (7, 6)
    await queue.set_bound(0)
    assert sorted(one for one in files(queue) if "bound" in one) == []
    await queue.set_bound(3)
    assert await make().bound() == 3


async def test_a_lock_of_the_directory_that_nobody_gives_up_is_a_clear_error(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make()
    await queue.create(bound=1)
    monkeypatch.setattr(lifecycle, "_PATIENCE", 0.05)
    with opened(queue.path) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        for change in (queue.set_bound(3), queue.delete()):
            with pytest.raises(StorageError, match="another process holds the lock of the directory") as raised:
                await in_time(change)
            assert raised.value.errno == errno.EAGAIN
        await queue.put(b"a")  # messages need no lock
    assert await queue.bound() == 1
    await queue.set_bound(3)
    await queue.delete()


async def test_a_delete_that_is_under_way_is_seen_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make()
    await queue.create(bound=1)
    monkeypatch.setattr(lifecycle, "_PATIENCE", 0.05)
    with opened(queue.path) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)

        def rename(fd: int, *arguments: Any, **options: Any) -> None:
            queue.path.rename(queue.path.with_name("deleting"))  # as a delete does
            lock_patiently(fd, *arguments, **options)

        monkeypatch.setattr(lifecycle, "lock_patiently", rename)
        with pytest.raises(QueueDoesNotExistError):
            await in_time(queue.set_bound(3))


@pytest.mark.parametrize("name", [".queue-v2-anything", ".queue-v1-bound-many", ".queue-v1-bound-0"])
async def test_a_state_that_this_version_does_not_know(make: Make, name: str) -> None:
    queue = make()
    await queue.put(b"a")
    receiving = asyncio.create_task(queue.receive())
    delivery = await receiving
    receiving = await parked(queue, queue.receive())
    (queue.path / name).touch()
    with pytest.raises(StorageError, match=f"does not understand the file '{name}'"):
        await asyncio.wait_for(receiving, PATIENCE)
    for operation in (queue.put(b"b"), make().receive(), queue.delete()):
        with pytest.raises(StorageError, match="does not understand"):
            await operation
    await delivery.nack()
    (queue.path / name).unlink()
    assert await drain(queue) == [b"a"]


async def test_a_queue_is_deleted_with_all_messages(make: Make, tmp_path: Path) -> None:
    queue, other = make(max_attempts=1), make()
    await queue.create(bound=10)
    await queue.put_many([b"a", b"b", b"c"])
    await (await queue.receive()).nack()
    delivery = await queue.receive()
    await queue.close()
    await other.delete()
    assert listing(tmp_path) == ["orders.dead"]
    for one in (queue, other):
        assert not await one.exists()
        for operation in (one.put(b"d"), one.receive(timeout=0), one.delete(), one.closed()):
            with pytest.raises(QueueDoesNotExistError, match="deleted or moved"):
                await operation
    with pytest.raises(QueueDoesNotExistError):
        await delivery.ack()


async def test_a_queue_is_created_anew_after_it_was_deleted(make: Make) -> None:
    queue, other = make(), make()
    await queue.create(bound=1)
    await queue.put(b"a")
    await queue.close()
    await queue.delete()
    assert await queue.create(bound=2)
    assert (await queue.bound(), await queue.closed(), await queue.qsize()) == (2, False, 0)
    receiving = await parked(queue, queue.receive(timeout=PATIENCE))
    await other.put(b"b")
    assert (await receiving).raw == b"b"
    await other.delete()
    await make().create()
    assert not await queue.create(exist_ok=True)  # and the object uses the new directory from now on
    await queue.put(b"c")
    assert await drain(queue) == [b"c"]


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
async def test_a_directory_with_strangers_is_not_deleted(make: Make, kind: str, tmp_path: Path) -> None:
    queue = make()
    await queue.put_many([b"a", b"b"])
    stranger = queue.path / ("1" if kind == "link" else "notes")
    {"file": stranger.touch, "directory": stranger.mkdir, "link": lambda: stranger.symlink_to(tmp_path)}[kind]()
    before = files(queue)
    with pytest.raises(StorageError, match=f"'{stranger.name}' in .* is not part of a queue"):
        await queue.delete()
    assert files(queue) == before
    assert listing(tmp_path) == ["orders"]
    assert await drain(queue) == [b"a", b"b"]


async def test_a_stranger_that_comes_at_the_last_moment_stays(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make()
    await queue.put(b"a")
    refuse = lifecycle._refuse_strangers

    def late(directory: object, path: Path) -> None:
        if path != queue.path:
            (path / "notes").touch()
        refuse(directory, path)  # type: ignore[arg-type]

    monkeypatch.setattr(lifecycle, "_refuse_strangers", late)
    with pytest.raises(StorageError, match="'notes'"):
        await queue.delete()
    assert "notes" in files(queue)


async def test_what_killed_processes_left_is_swept(make: Make, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f".queue-staged-{name}").mkdir()
        (tmp_path / f".queue-staged-{name}" / ".queue-v1-bound-5").touch()
    (tmp_path / ".queue-staged-b" / "mine").touch()  # belongs to no queue, so it must stay
    await make().create()
    assert listing(tmp_path) == [".queue-staged-b", "orders"]


async def test_a_queue_is_not_created_over_something_else(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        async with FileQueue(tmp_path / "sub" / "ok") as queue:
            assert await queue.create(exist_ok=True) in {True, False}
        other: FileQueue[bytes] = FileQueue(tmp_path / name)
        assert not await other.exists()
        with pytest.raises(QueueAlreadyExistsError):
            await other.create()
        await other.aclose()
    assert listing(tmp_path) == ["file", "link", "sub"]


async def test_a_file_system_without_renames_that_do_not_overwrite(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apressure.files.storage.messages.renaming._NOREPLACE", 1 << 30)
    queue = make()
    assert await queue.create(bound=1)
    with pytest.raises(QueueAlreadyExistsError):
        await make().create()
    await queue.put(b"a")
    await queue.delete()
    assert not os.path.lexists(queue.path)


async def test_looking_at_the_first_and_the_last(make: Make) -> None:
    queue = make()
    await queue.put_many([b"a", b"b", b"c"])
    delivery = await queue.receive()
    assert (await queue.peek(), await queue.peek_newest()) == (b"b", b"c")
    await delivery.nack()
    assert await queue.peek() == b"a"
    assert [one.attempts for one in await queue.receive_many(3)] == [2, 1, 1]


async def test_purge_deletes_what_waited_when_it_began(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, other = make(), make()
    await queue.put_many([b"old"] * 6)
    remove, removed = queue._receiver.remove, 0

    async def remove_beside_others(filename: str) -> bool:
        nonlocal removed
        removed += 1
        if removed == 1:
            assert await other.get_many(3) == [b"old"] * 3
            await other.put_many([b"new"] * 3)
        return await remove(filename)

    monkeypatch.setattr(queue._receiver, "remove", remove_beside_others)
    assert await queue.purge() == 3
    assert await other.get_many(9) == [b"new"] * 3


async def test_purge_of_a_queue_that_was_deleted(make: Make) -> None:
    queue, other = make(), make()
    await queue.create()
    await queue.close()
    await other.delete()
    with pytest.raises(QueueDoesNotExistError):
        await queue.purge()


async def test_a_put_makes_no_queue_again_that_create_has_found(make: Make) -> None:
    queue, other = make(), make()
    await other.create()
    with pytest.raises(QueueAlreadyExistsError, match=re.escape(str(queue.path))):
        await queue.create()
    await other.delete()
    with pytest.raises(QueueDoesNotExistError):
        await queue.put(b"1")


async def test_put_many_on_a_closed_object_reads_nothing(make: Make) -> None:
    queue = make()
    await queue.exists()
    await queue.aclose()
    items = iter([b"1"])
    with pytest.raises(ClientClosedError):
        await queue.put_many(items)
    assert list(items) == [b"1"]
