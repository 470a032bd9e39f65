"""Messages that expire: what is special to directories, beside `ExpiryContract`."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apressure import FileQueue, QueueEmptyError, StorageError
from apressure.dead_letters import Failure
from apressure.files.storage import names, store
from apressure.files.storage.directory import Directory
from apressure.files.storage.messages import reasons
from apressure.files.storage.messages.renaming import Renaming
from tests import processes
from tests.integration.files.conftest import MODES, Clock, Make, drain, files
from tests.integration.files.test_delays import each_kill, in_time
from tests.vsqs import Vsqs

COUNT = names.EXPIRED_COUNT


def times(queue: FileQueue[Any]) -> list[str]:
    """The names of the files that say why messages failed, or when they expire."""
    return [name for name in files(queue) if name.startswith(names.REASON)]


async def expired(queue: FileQueue[Any]) -> list[tuple[bytes, int | None]]:
    """The dead letters that have expired, and their attempts."""
    letters = await queue.dead_letters()
    assert {letter.reason for letter in letters} <= {"expired"}
    return [(letter.raw, letter.attempts) for letter in letters]


async def test_the_time_is_in_a_small_file_that_goes_with_the_message(make: Make, clock: Clock) -> None:
    queue = make(clock=clock)
    ids = [await queue.put(b"1", expires=60), await queue.put(b"2")]
    assert times(queue) == [names.REASON + ids[0]]
    assert await drain(queue) == [b"1", b"2"]
    assert files(queue) == []


@pytest.mark.parametrize("unit", ["ms", "us"])
async def test_the_clock_of_the_queue_decides(make: Make, clock: Clock, unit: str) -> None:
    queue = make(clock=clock, unit=unit)
    await queue.put(b"1", expires=60)
    clock.now += 59.9
    await (await queue.receive()).nack()
    clock.now += 0.1
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    (letter,) = await queue.dead_letters()
    assert (letter.raw, letter.attempts, letter.error) == (b"1", 1, Failure("expired", "", 1))
    assert letter.when == clock.now
    assert files(queue) == [COUNT]


async def test_an_error_leaves_the_time_as_it_was(make: Make, clock: Clock) -> None:
    queue = make(clock=clock, max_attempts=5)
    await queue.put(b"1", expires=60)
    await (await queue.receive()).nack(ValueError("no"), delay=10)
    clock.now += 30
    delivery = await queue.receive(timeout=0)
    assert delivery.attempts == 2
    await delivery.nack(ValueError("no"))
    clock.now += 30
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    assert await expired(queue) == [(b"1", 2)]
    assert times(queue) == []


async def test_what_was_tried_too_often_is_a_dead_letter_with_its_error(make: Make, clock: Clock) -> None:
    queue = make(clock=clock, max_attempts=1)
    await queue.put(b"1", expires=60)
    await (await queue.receive()).nack(ValueError("no"))
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    (letter,) = await queue.dead_letters()
    assert letter.reason == "ValueError: no"
    clock.now += 120
    assert await queue.requeue() == 1
    assert await queue.get(timeout=0) == b"1"  # its time went with the reason


async def test_it_goes_to_the_dead_letter_queue_that_was_chosen(make: Make, clock: Clock) -> None:
    queue = make(clock=clock, max_attempts=3, dead_letters="old")
    await queue.put(b"1", expires=1)
    clock.now += 1
    with pytest.raises(QueueEmptyError):
        await queue.get(timeout=0)
    assert await drain(make("old")) == [b"1"]
    assert (await queue.statistics()).dead_lettered_count == 1


@pytest.mark.parametrize("mode", [MODES["threads"]], ids=["threads"])
async def test_a_cancelled_get_gives_a_message_back_with_its_time(
    make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, delete = make(clock=clock), Directory.delete
    reached, goes_on = threading.Event(), threading.Event()

    def slow(directory: Directory, filename: str) -> bool:
        deleted = delete(directory, filename)
        reached.set()
        goes_on.wait(60)
        return deleted

    await queue.put(b"1", expires=60)
    monkeypatch.setattr(Directory, "delete", slow)
    getting = asyncio.ensure_future(queue.get())
    await asyncio.to_thread(reached.wait, 60)
    getting.cancel()
    goes_on.set()
    await asyncio.gather(getting, return_exceptions=True)
    monkeypatch.setattr(Directory, "delete", delete)
    await (await in_time(queue.receive())).nack()
    clock.now += 60
    with pytest.raises(QueueEmptyError):
        await queue.get(timeout=0)
    assert len(await expired(queue)) == 1


# Other clients, and several of ours.


async def test_released_vsqs_delivers_what_has_expired(tmp_path: Path) -> None:
    pytest.importorskip("vsqs", reason="vsqs 0.3")
    async with FileQueue(tmp_path / "jobs", unit="us") as queue:
        await queue.put(b"old", expires=0.05)
        await asyncio.sleep(0.1)
        with Vsqs(tmp_path, "jobs", 1) as client:
            assert client("size") == 1
            message_id, text = client("receive")
            assert text == "old"
            client("delete", message_id)
        assert (await queue.statistics()).expired == 0
        assert times(queue) == [names.REASON + message_id]
        await queue.put(b"new")
        assert await queue.get() == b"new"
        await queue.delete()


async def test_an_id_that_is_used_again_does_not_expire(make: Make, clock: Clock) -> None:
    """Another program deletes the message, and writes one of the same name: the time is not that one's."""
    queue = make(clock=clock)
    message_id = await queue.put(b"1", expires=60)
    path = queue.path / message_id
    path.rename(queue.path.parent / "elsewhere")
    path.write_bytes(b"2")
    clock.now += 60
    assert await queue.get(timeout=0) == b"2"


async def test_several_clients_make_messages_due_and_none_loses_its_time(tmp_path: Path) -> None:
    async with FileQueue(tmp_path / "jobs", fsync=False) as queue:
        await queue.put_many([b"%d" % number for number in range(100)], delay=0.3, expires=0.4)
        await queue.put_many([b"last"] * 4, delay=0.6)

        async def consume() -> bytes:
            async with FileQueue(tmp_path / "jobs", fsync=False) as other:
                return await other.get()

        await asyncio.sleep(0.5)
        assert await in_time(asyncio.gather(*(consume() for _ in range(4)))) == [b"last"] * 4
        assert (await queue.statistics()).expired == 100
        assert times(queue) == []


async def test_it_knows_the_time_as_soon_as_it_sees_the_message(
    make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client takes the message between the two renames of another one, which makes it due."""
    queue, other, follow = make(clock=clock), make(clock=clock), reasons.follow
    await queue.put(b"1", delay=1, expires=2)
    clock.now += 3
    took: list[Any] = []

    def slow(*arguments: Any) -> None:
        taken = Directory(queue.path.parent, "orders", 1000, False)
        taken.open(False)
        took.append(
            taken.take(names.key_of(arguments[2]) or 0, f"{arguments[2]}.1800000000000", None, other._store.now)
        )
        follow(*arguments)

    monkeypatch.setattr(reasons, "follow", slow)
    await queue.qsize()
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    ((data, before, expires),) = took
    assert (data, before, expires) == (b"1", 0, 1_700_000_002_000_000)


async def test_a_file_system_without_links(make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    queue = make(clock=clock)
    await queue.put(b"1", delay=1, expires=2)
    clock.now += 1.5
    await (await queue.receive(timeout=0)).nack()
    clock.now += 1
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    assert await expired(queue) == [(b"1", 1)]


# Kills.


async def test_kills_during_a_put_of_messages_that_expire(make: Make, clock: Clock) -> None:
    async def prepare(queue: FileQueue[bytes]) -> None:
        pass

    async def act(queue: FileQueue[bytes]) -> None:
        await queue.put(b"1", expires=50)
        await queue.put(b"2", delay=10, expires=50)

    async def check(queue: FileQueue[bytes]) -> None:
        clock.now += 60
        with pytest.raises(QueueEmptyError):
            await queue.receive(timeout=0)
        letters = [raw for raw, _ in await expired(queue)]
        assert letters in ([], [b"1"], [b"1", b"2"], [b"2", b"1"])
        await queue.purge()

    await each_kill(make, {"clock": clock}, prepare, act, check)


async def test_kills_while_messages_expire_neither_lose_nor_deliver_them(make: Make, clock: Clock) -> None:
    async def prepare(queue: FileQueue[bytes]) -> None:
        await queue.put_many([b"1", b"2"], delay=10, expires=50)
        await queue.put(b"3", expires=50)
        clock.now += 60

    async def act(queue: FileQueue[bytes]) -> None:
        with contextlib.suppress(QueueEmptyError):
            await queue.receive(timeout=0)

    async def check(queue: FileQueue[bytes]) -> None:
        clock.now += 60
        with pytest.raises(QueueEmptyError):
            await queue.receive(timeout=0)
        letters = await queue.dead_letters()
        assert sorted(letter.raw for letter in letters) == [b"1", b"2", b"3"]
        # The reason of the one that was on its way when the process died may be unknown.
        assert [letter.reason for letter in letters].count("expired") >= 2

    await each_kill(make, {"clock": clock}, prepare, act, check)


DIES = """
import asyncio, os, signal, sys
from apressure import FileQueue

async def main():
    async with FileQueue(sys.argv[1], lease=0.5) as queue:
        await queue.put(b"1", expires=0.7)
        await queue.receive()
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_message_that_comes_back_from_a_dead_process_too_late(make: Make) -> None:
    queue = make()
    process = await processes.start(sys.executable, "-c", DIES, str(queue.path))
    assert await in_time(process.wait()) == -signal.SIGKILL
    await asyncio.sleep(0.8)
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0.5)
    assert await expired(queue) == [(b"1", 1)]


# File systems that refuse, and what other programs do.


async def test_a_full_disk_puts_nothing_that_would_not_expire(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, refused = make(), False

    def refuse(self: reasons.Reason, inode: int) -> bytes:
        nonlocal refused
        refused = True
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(reasons.Reason, "encode", refuse)
    with pytest.raises(StorageError, match="No space"):
        await queue.put(b"1", expires=60)
    assert refused
    assert files(queue) == []
    await queue.put(b"2")
    assert await queue.get() == b"2"


def make_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def make_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def make_link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize("harm", [make_directory, make_pipe, make_link])
async def test_a_count_that_another_program_has_replaced_breaks_nothing(
    make: Make, clock: Clock, harm: Callable[[Path], None]
) -> None:
    queue = make(clock=clock)
    await queue.put(b"1", expires=1)
    harm(queue.path / COUNT)
    clock.now += 1
    with pytest.raises(QueueEmptyError):
        await queue.get(timeout=0)
    assert await expired(queue) == [(b"1", 0)]
    assert (await queue.statistics()).expired == 0


async def test_the_time_of_a_message_that_is_being_written_is_kept(
    make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk holds up the last rename, and meanwhile others look for files of messages that are gone."""
    monkeypatch.setattr(store, "_FORGET", 0.0)
    monkeypatch.setattr(store, "_ROUND", 0.0)
    queue, other, renaming = make(clock=clock), make(clock=clock), Renaming.__call__
    await other.create()

    def slow(self: Renaming, *arguments: Any) -> bool:
        for _ in range(4):
            other._store.watcher.drain()
            gone = other._store.index.orphans()
            other._store.directory.forget_orphans(gone)
        return renaming(self, *arguments)

    await other.qsize()
    monkeypatch.setattr(Renaming, "__call__", slow)
    await queue.put(b"1", expires=60)
    monkeypatch.undo()
    clock.now += 60
    with pytest.raises(QueueEmptyError):
        await queue.get(timeout=0)
    assert await expired(queue) == [(b"1", 0)]


async def test_deleting_the_queue_forgets_the_count(make: Make, clock: Clock) -> None:
    queue = make(clock=clock)
    await queue.put_many([b"1", b"2"], expires=1)
    clock.now += 1
    await queue.put(b"3", expires=1)
    assert await queue.get(timeout=0) == b"3"
    await queue.delete()
    again = make(clock=clock)
    await again.create()
    assert (await again.statistics()).expired == 0
