"""Delayed messages: what is special to directories, beside `DelayContract`."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from apressure import FileQueue, QueueDoesNotExistError, QueueEmptyError, QueueFullError, StorageError
from apressure.dead_letters import Failure
from apressure.files.storage import names
from apressure.files.storage.directory import Directory
from apressure.files.storage.messages.renaming import Renaming
from tests import processes
from tests.integration.files.conftest import Clock, Make, drain, files, listing
from tests.processes import forked
from tests.vsqs import Vsqs

SOON = 0.3
PATIENCE = 60.0


async def in_time(waited_for: Any) -> Any:
    return await asyncio.wait_for(waited_for, PATIENCE)


def delayed(queue: FileQueue[Any]) -> list[str]:
    return [name for name in files(queue) if name.startswith(".queue-later-")]


def ready(queue: FileQueue[Any]) -> list[str]:
    """The names of the messages that any client may receive."""
    return sorted((name for name in files(queue) if name.isdigit()), key=int)


async def test_a_delayed_message_is_a_file_that_other_clients_ignore(make: Make, clock: Clock) -> None:
    queue = make(clock=clock)
    message_id = await queue.put(b"1", delay=2.5)
    assert files(queue) == [f".queue-later-1700000002500-{message_id}"]
    assert names.key_of(files(queue)[0].partition(".")[0]) is None
    assert (queue.path / files(queue)[0]).read_bytes() == b"1"


async def test_the_clock_says_when_it_is_due_also_when_it_is_set(make: Make, clock: Clock) -> None:
    queue, other = make(clock=clock), make(clock=clock)
    await queue.put(b"1", delay=3600)
    clock.now -= 7200
    with pytest.raises(QueueEmptyError):
        await other.receive(timeout=0)
    assert (await other.statistics()).next_due == pytest.approx(3 * 3600)
    clock.now += 3 * 3600 - 1
    with pytest.raises(QueueEmptyError):
        await other.receive(timeout=0)
    clock.now += 1
    delivery = await other.receive(timeout=0)
    assert (delivery.raw, delivery.attempts) == (b"1", 1)
    await delivery.ack()
    assert files(queue) == []


async def test_a_message_is_acknowledged_by_its_id_before_it_is_due(make: Make) -> None:
    queue, other = make(), make()
    message_id = await queue.put(b"1", delay=60)
    assert await other.ack(message_id)
    assert not await queue.ack(message_id)
    assert (await queue.statistics()).delayed == 0
    assert files(queue) == []


async def test_an_object_that_comes_later_knows_what_is_delayed(make: Make) -> None:
    queue = make()
    await queue.create(bound=2)
    await queue.put(b"1", delay=60)
    await queue.put(b"2", delay=30)
    other = make()
    with pytest.raises(QueueFullError):
        await other.put_nowait(b"3")
    await asyncio.sleep(0.001)  # the time is rounded up to a millisecond
    statistics = await other.statistics()
    assert (statistics.length, statistics.delayed) == (0, 2)
    assert 0 < statistics.next_due <= 30
    assert await other.purge() == 2
    assert files(queue) == [".queue-v1-bound-2"]


async def test_many_due_messages_join_the_line_in_order_behind_others(make: Make, clock: Clock) -> None:
    """A step takes 100 of them."""
    queue, other = make(clock=clock), make(clock=clock)
    items = [b"%d" % number for number in range(250)]
    await queue.put_many(items, delay=1)
    await queue.put(b"before")
    clock.now += 2
    await queue.put(b"behind the first 100")
    assert len(delayed(queue)) == 150
    got = [(await other.receive(timeout=0)).raw for _ in range(252)]
    assert [item for item in got if item.isdigit()] == items
    assert got[0] == b"before"
    assert got[101] == b"behind the first 100"


async def test_delayed_puts_bring_what_is_due_every_10_ms_and_any_other_put_at_once(make: Make, clock: Clock) -> None:
    queue = make(clock=clock)
    await queue.put(b"1", delay=1)
    await queue.put(b"2", delay=1.005)
    clock.now += 1
    await queue.put(b"later", delay=60)
    assert (len(ready(queue)), len(delayed(queue))) == (1, 2)
    clock.now += 0.006
    await queue.put(b"later", delay=60)
    assert (len(ready(queue)), len(delayed(queue))) == (1, 3)
    clock.now += 0.006
    await queue.put(b"later", delay=60)
    assert (len(ready(queue)), len(delayed(queue))) == (2, 3)
    clock.now += 0.001
    await queue.put(b"3", delay=0.001)
    clock.now += 0.002
    await queue.put(b"behind")
    assert (len(ready(queue)), len(delayed(queue))) == (4, 3)
    assert [(await queue.receive(timeout=0)).raw for _ in range(4)] == [b"1", b"2", b"3", b"behind"]


async def test_a_delayed_put_waits_quietly_while_others_become_due(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make(bound=20)
    for number in range(20):
        await queue.put(b"%d" % number, delay=0.1 + 0.005 * number)
    tries = mock.AsyncMock(wraps=queue._putter._reserve)
    monkeypatch.setattr(queue._putter, "_reserve", tries)
    with pytest.raises(QueueFullError):
        await queue.put(b"20", delay=60, timeout=0.4)
    assert tries.await_count < 60
    assert len(ready(queue)) == 20


async def test_several_clients_that_make_messages_due_keep_the_order(tmp_path: Path) -> None:
    """In threads, their steps are between those of the others. While the queue is paused, nothing is taken."""
    queues = [FileQueue(tmp_path / "orders", fsync=False, threads=True) for _ in range(4)]
    items = [b"%d" % number for number in range(400)]
    await queues[0].put_many(items, delay=0.2)
    await queues[0].pause()
    await asyncio.sleep(SOON)

    async def promote(queue: FileQueue[bytes]) -> None:
        while delayed(queue):
            with pytest.raises(QueueEmptyError):
                await queue.receive(timeout=0)

    await in_time(asyncio.gather(*map(promote, queues)))
    assert [(queues[0].path / name).read_bytes() for name in ready(queues[0])] == items
    assert len(files(queues[0])) == len(items) + 1
    for queue in queues:
        await queue.aclose()


async def test_a_client_that_is_slower_leaves_the_line_to_the_faster_one(
    make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the reservation of its names and their use, another client brings the first messages into the line."""
    queue = make(clock=clock)
    await queue.put_many([b"0", b"1", b"2"], delay=1)
    clock.now += 2
    reserve, told = Directory.reserve, []

    def overtaken(directory: Directory, key: int, data: bytes) -> Any:
        reservation = reserve(directory, key, data)
        if not told:
            told.extend(delayed(queue)[:2])
            for number, name in enumerate(told):
                other = names.id_of(key + 2000 * (500 + number))
                (queue.path / f"{other}.new").touch()
                (queue.path / name).rename(queue.path / other)
                (queue.path / f"{other}.new").unlink()
        return reservation

    monkeypatch.setattr(Directory, "reserve", overtaken)
    assert [(await queue.receive(timeout=0)).raw for _ in range(3)] == [b"0", b"1", b"2"]


PROMOTES = """
import asyncio, sys
from apressure import FileQueue, QueueClosedError

async def main():
    async with FileQueue(sys.argv[1], fsync=False) as queue, queue.consumer() as consumer:
        async for item in consumer:
            print(item.decode(), consumer.attempts, flush=True)

asyncio.run(main())
"""


async def test_several_processes_get_each_message_once(tmp_path: Path) -> None:
    async with FileQueue(tmp_path / "orders", fsync=False) as queue:
        await queue.put_many([b"%d" % number for number in range(300)], delay=1)
        await queue.close()
        command = [sys.executable, "-c", PROMOTES, str(queue.path)]
        running = [await processes.start(*command, stdout=asyncio.subprocess.PIPE) for _ in range(3)]
        outputs = await in_time(asyncio.gather(*(process.communicate() for process in running)))
    lines = [line for output, _ in outputs for line in output.decode().splitlines()]
    assert sorted(lines) == sorted(f"{number} 1" for number in range(300))
    assert [name for name in listing(tmp_path / "orders") if name != names.BLANK] == [".queue-v1-closed"]


# What a kill leaves.


def killed(place: Path, act: Callable[[FileQueue[bytes]], Awaitable[Any]], change: int, options: Any) -> bool:
    """Use a queue in a fork, which is killed before this change of the directory. Returns whether it was."""
    left = change

    def fatal(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **keywords: Any) -> Any:
            nonlocal left
            if call is not os_open or arguments[1] & os.O_CREAT:
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
            return call(*arguments, **keywords)

        return counting

    async def use() -> None:
        await act(FileQueue(place, **options))

    def work() -> None:
        os.open, os.rename, os.replace, os.unlink, os.utime, os.link = map(
            fatal, (os_open, os.rename, os.replace, os.unlink, os.utime, os.link)
        )
        Renaming.__call__ = fatal(Renaming.__call__)  # type: ignore[method-assign]
        asyncio.run(use())

    os_open = os.open
    code = forked(work)
    assert code in {0, -signal.SIGKILL}
    return code != 0


async def each_kill(
    make: Make,
    options: dict[str, Any],
    prepare: Callable[..., Awaitable[None]],
    act: Callable[..., Awaitable[None]],
    check: Callable[..., Awaitable[None]],
) -> None:
    for change in range(100):
        queue = make(f"jobs{change}", **options)
        await queue.create()
        await prepare(queue)
        if not killed(queue.path, act, change, {"fsync": False, **options}):
            assert change > 1
            return
        await check(queue)
        await queue.aclose()
    pytest.fail("there was no end")


async def test_kills_while_messages_become_due_neither_lose_nor_double_them(make: Make, clock: Clock) -> None:
    async def prepare(queue: FileQueue[bytes]) -> None:
        await queue.put(b"1")
        await (await queue.receive(timeout=0)).nack("not yet", delay=1)
        await queue.put(b"2", delay=2)
        clock.now += 3

    async def act(queue: FileQueue[bytes]) -> None:
        await queue.receive(timeout=0)

    async def check(queue: FileQueue[bytes]) -> None:
        clock.now += 60
        first = await queue.receive(timeout=0)
        assert (first.raw, 2 <= first.attempts <= 3) == (b"1", True)
        second = await queue.receive(timeout=0)
        assert (second.raw, second.attempts) == (b"2", 1)
        await first.ack()
        await second.ack()
        assert [name for name in files(queue) if not name.startswith(names.REASON)] == []

    await each_kill(make, {"max_attempts": 5, "clock": clock}, prepare, act, check)


async def test_kills_while_a_message_is_given_back_for_later(make: Make, clock: Clock) -> None:
    async def prepare(queue: FileQueue[bytes]) -> None:
        await queue.put(b"1")

    async def act(queue: FileQueue[bytes]) -> None:
        await (await queue.receive(timeout=0, lease=5)).nack(ValueError("not yet"), delay=10)

    async def check(queue: FileQueue[bytes]) -> None:
        is_delayed = (await queue.statistics()).delayed == 1
        clock.now += 6
        if is_delayed:
            with pytest.raises(QueueEmptyError):
                await queue.receive(timeout=0)
            clock.now += 5
        again = await queue.receive(timeout=0)
        assert again.raw == b"1"
        assert again.attempts == 2 or not is_delayed  # it may not have been received
        await again.ack()
        assert files(queue) == []

    await each_kill(make, {"max_attempts": 5, "clock": clock}, prepare, act, check)


async def test_kills_during_a_delayed_put(make: Make, clock: Clock) -> None:
    async def prepare(queue: FileQueue[bytes]) -> None:
        pass

    async def act(queue: FileQueue[bytes]) -> None:
        await queue.put(b"1", delay=1)
        await queue.put(b"2", delay=1)

    async def check(queue: FileQueue[bytes]) -> None:
        clock.now += 60
        assert (await drain(queue) if await settled(queue) else []) in ([], [b"1"], [b"1", b"2"])
        assert files(queue) == []

    async def settled(queue: FileQueue[bytes]) -> bool:
        try:
            await (await queue.receive(timeout=0)).nack()
        except QueueEmptyError:
            return False
        return True

    await each_kill(make, {"clock": clock}, prepare, act, check)


RETRIES = """
import asyncio, os, signal, sys
from apressure import FileQueue

async def main():
    async with FileQueue(sys.argv[1], max_attempts=2) as queue:
        delivery = await queue.receive()
        await delivery.nack(ValueError("not yet"), delay=1.0)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_killed_process_leaves_the_pause_as_it_was(make: Make) -> None:
    queue = make(max_attempts=2)
    await queue.put(b"1")
    process = await processes.start(sys.executable, "-c", RETRIES, str(queue.path))
    assert await in_time(process.wait()) == -signal.SIGKILL
    (name,) = delayed(queue)
    delivery = await in_time(queue.receive())
    assert time.time() * 1000 >= int(name.split("-")[2])
    assert (delivery.raw, delivery.attempts) == (b"1", 2)
    await delivery.nack()
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    (letter,) = await queue.dead_letters()
    assert (letter.item, letter.attempts, letter.error) == (b"1", 2, Failure("ValueError", "not yet", 1))
    assert files(queue) == []


# File systems that refuse, and what other programs do.


async def test_a_full_disk_keeps_messages_delayed_and_others_come(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make()
    await queue.put(b"1")
    await queue.put(b"2", delay=0.01)
    await asyncio.sleep(0.05)
    reserve, link, refusals = Directory.reserve, os.link, 0

    def refuse(directory: Directory, key: int, data: bytes) -> Any:
        nonlocal refusals
        refusals += 1
        raise directory.refused("put into", no_space())

    def refuse_link(*arguments: Any, **more: Any) -> None:
        raise no_space()

    monkeypatch.setattr(Directory, "reserve", refuse)
    monkeypatch.setattr(os, "link", refuse_link)
    with pytest.raises(StorageError, match="No space"):
        await queue.put(b"3", delay=1)
    assert await in_time(queue.get()) == b"1"
    waiting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0.2)
    assert not waiting.done()
    assert refusals < 10  # it does not try over and over
    assert "stay delayed" in caplog.text
    monkeypatch.setattr(Directory, "reserve", reserve)
    monkeypatch.setattr(os, "link", link)
    assert await in_time(waiting) == b"2"


async def test_what_is_due_comes_although_the_disk_has_no_space_for_a_new_file(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make()
    await queue.put(b"1", delay=0.01)
    assert await in_time(queue.get()) == b"1"  # now there is the file of which names are links
    await queue.put(b"2", delay=0.01)

    def refuse(directory: Directory, key: int, data: bytes) -> Any:
        raise directory.refused("put into", no_space())

    monkeypatch.setattr(Directory, "reserve", refuse)
    assert await in_time(queue.get()) == b"2"


@pytest.mark.parametrize("kind", ["directory", "link", "pipe", "message"])
async def test_names_are_reserved_whatever_has_the_name_of_the_blank_file(make: Make, kind: str) -> None:
    queue = make()
    await queue.create()
    blank, other = queue.path / names.BLANK, queue.path.parent / "other"
    other.write_bytes(b"other")
    if kind == "directory":
        blank.mkdir()
    elif kind == "link":
        blank.symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(blank)
    else:
        blank.write_bytes(b"somebody's")
    for item in (b"1", b"2"):
        await queue.put(item, delay=0.01)
        assert await in_time(queue.get()) == item
    assert files(queue) == []
    assert other.read_bytes() == b"other"


async def test_a_name_that_a_killed_process_has_reserved_is_deleted(
    make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make(clock=clock, bound=1)
    await queue.put(b"1", delay=1)
    clock.now += 2
    with monkeypatch.context() as patched:
        patched.setattr(Directory, "abandon", lambda *_: None)
        assert await in_time(queue.get()) == b"1"
    assert [name.partition(".")[2] for name in files(queue)] == ["new"]
    other = make(clock=clock, bound=1)
    with pytest.raises(QueueFullError):
        await other.put(b"2", timeout=0)
    clock.now += 31
    await other.put(b"2", timeout=0)
    assert ready(queue) == files(queue)
    assert await in_time(queue.get()) == b"2"


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("kind", ["directory", "link", "pipe"])
@pytest.mark.parametrize("first", [True, False])
async def test_what_is_called_like_a_delayed_message_and_is_none_is_left_alone(
    make: Make, kind: str, first: bool
) -> None:
    queue, name = make(), ".queue-later-1-1"
    await queue.create()
    if not first:
        await queue.qsize()
    path = queue.path / name
    if kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/etc/hostname")
    else:
        os.mkfifo(path)
    await queue.put(b"1", delay=0.05)
    assert await in_time(queue.get()) == b"1"
    assert (await queue.statistics()).delayed == 0
    with pytest.raises(StorageError, match="not part of a queue"):
        await queue.delete()
    path.rmdir() if kind == "directory" else path.unlink()
    await queue.delete()


async def test_names_that_say_no_time_are_no_messages(make: Make) -> None:
    queue = make()
    await queue.create()
    for name in (".queue-later-", ".queue-later-1", ".queue-later-x-1", ".queue-later-1-01", ".queue-later-1-1.new"):
        (queue.path / name).touch()
    assert (await queue.statistics()).delayed == 0
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)


async def test_a_delayed_message_that_another_program_deletes_is_gone(make: Make) -> None:
    queue = make()
    await queue.create(bound=1)
    await queue.put(b"1", delay=0.3)
    waiting = asyncio.ensure_future(queue.put(b"2"))
    await asyncio.sleep(0.05)
    (queue.path / delayed(queue)[0]).unlink()
    await in_time(waiting)
    assert await in_time(queue.get()) == b"2"
    assert (await queue.statistics()).delayed == 0


async def test_what_is_due_goes_into_the_line_although_only_a_put_waits(make: Make) -> None:
    """Another program, which knows no delays, receives."""
    queue = make()
    await queue.create(bound=1)
    await queue.put(b"1", delay=0.1)
    waiting = asyncio.ensure_future(queue.put(b"2"))
    async with asyncio.timeout(PATIENCE):
        while not ready(queue):
            await asyncio.sleep(0.01)
    assert not waiting.done()
    (queue.path / ready(queue)[0]).unlink()
    await in_time(waiting)
    assert await in_time(queue.get()) == b"2"


async def test_a_directory_that_goes_takes_delayed_messages_with_it(make: Make) -> None:
    queue = make()
    await queue.put(b"1")
    await queue.put(b"2", delay=0.05)
    delivery = await queue.receive()
    waiting = asyncio.ensure_future(queue.receive())
    await asyncio.sleep(0)
    shutil.rmtree(queue.path)
    for operation in (waiting, delivery.nack(delay=1)):
        with pytest.raises(QueueDoesNotExistError):
            await in_time(operation)


async def test_a_cancelled_nack_leaves_the_message_delayed_or_in_flight(make: Make) -> None:
    queue = make()
    for _ in range(20):
        await queue.put(b"1")
        delivery = await in_time(queue.receive(lease=0.5))
        task = asyncio.ensure_future(delivery.nack(delay=0.1))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        again = await in_time(queue.receive())
        assert (again.raw, again.attempts) == (b"1", 2)
        await again.ack()
        assert files(queue) == []


async def test_released_vsqs_sees_a_message_when_a_client_of_ours_has_made_it_due(tmp_path: Path) -> None:
    pytest.importorskip("vsqs", reason="vsqs 0.3")
    async with FileQueue(tmp_path / "jobs", unit="us") as queue:
        await queue.put(b"later", delay=0.3)
        (name,) = delayed(queue)
        with Vsqs(tmp_path, "jobs", 1) as client:
            assert client("size") == 0
            assert client("receive", 10, 0.5) is None
            assert delayed(queue) == [name]  # it is due, and no client of ours has come
            await queue.put(b"now")
            message_id, text = client("receive")
            assert text == "later"
            client("delete", message_id)
            message_id, text = client("receive")
            assert text == "now"
            client("delete", message_id)
    assert files(queue) == []
