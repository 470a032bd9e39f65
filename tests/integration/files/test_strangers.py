"""Files that are called like messages and are none, or that have names elsewhere, in a queue that is open."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import apressure.files.storage.messages.renaming
from apressure import FileQueue, StorageError
from tests.integration.files.conftest import Clock, Make, drain, files


def make_socket(path: Path) -> None:
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"/proc/self/fd/{directory}/{path.name}")  # the path of a socket has at most 107 bytes
    finally:
        os.close(directory)


STRANGERS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "symbolic link": lambda path: path.symlink_to("nowhere"),
    "directory": Path.mkdir,
    "socket": make_socket,
}


@pytest.fixture(params=STRANGERS)
def stranger(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    return STRANGERS[request.param]


async def test_a_stranger_takes_no_room(make: Make, stranger: Callable[[Path], object]) -> None:
    names = ["1", "2.new", "3.4", "5.99999999999999"]
    queue = make(bound=1)
    await queue.create()
    await queue.statistics()
    for name in names:
        stranger(queue.path / name)
    seen = await queue.statistics()
    assert (seen.length, seen.in_flight, seen.unfinished) == (0, 0, 0)
    await queue.put(b"a", timeout=0)
    assert await drain(queue) == [b"a"]
    assert files(queue) == names


async def test_a_stranger_that_is_renamed_takes_no_room(make: Make, stranger: Callable[[Path], object]) -> None:
    queue = make(bound=1)
    await make().create()
    stranger(queue.path / "early")  # in the listing already
    await queue.statistics()
    stranger(queue.path / "late")
    (queue.path / "late").rename(queue.path / "1")
    (queue.path / "early").rename(queue.path / "2")
    assert (await queue.statistics()).length == 0
    (queue.path / "1").rename(queue.path / "3")
    assert (await queue.statistics()).length == 0
    await queue.put(b"a", timeout=0)
    assert await drain(queue) == [b"a"]


async def test_a_stranger_takes_the_place_of_a_message(make: Make) -> None:
    queue = make(bound=1)
    message_id = await queue.put(b"a")
    os.mkfifo(queue.path / "pipe")
    (queue.path / "pipe").replace(queue.path / message_id)
    assert (await queue.statistics()).length == 0
    assert await queue.put(b"b", timeout=0) != message_id
    (queue.path / message_id).unlink()
    assert await drain(queue) == [b"b"]


async def test_a_file_that_is_renamed_into_a_message_counts(make: Make, tmp_path: Path) -> None:
    queue = make(bound=3)
    await queue.create()
    await queue.statistics()
    (tmp_path / "outside").write_bytes(b"a")
    (tmp_path / "outside").rename(queue.path / "1")
    (queue.path / "inside").write_bytes(b"b")
    (queue.path / "inside").rename(queue.path / "2")
    (queue.path / "3").symlink_to("nowhere")
    (queue.path / "3").unlink()
    (queue.path / "3").write_bytes(b"c")
    assert (await queue.statistics()).length == 3
    assert await drain(queue) == [b"a", b"b", b"c"]


async def test_a_stranger_does_not_wait_for_its_time_to_run_out(make: Make, clock: Clock) -> None:
    queue = make(clock=clock)
    await queue.create()
    await queue.statistics()
    os.mkfifo(queue.path / "1.2")
    assert (await queue.statistics()).next_expiry is None


async def test_a_message_that_is_another_file_too_is_refused(
    make: Make, tmp_path: Path, queue: FileQueue[bytes]
) -> None:
    await queue.create()
    await queue.statistics()
    thesis = tmp_path / "thesis"
    thesis.write_bytes(b"years")
    os.utime(thesis, (1_500_000_000.5,) * 2)
    (queue.path / "1").hardlink_to(thesis)
    await queue.put(b"behind it")
    for one in (queue, make(max_attempts=1), make(max_attempts=1)):
        with pytest.raises(StorageError, match=r"message 1\).*has 2 names.*put a copy in its place"):
            await one.receive(timeout=0)
    assert thesis.stat().st_mtime == 1_500_000_000.5
    assert "1" in files(queue)
    thesis.unlink()
    assert await drain(queue) == [b"years", b"behind it"]


async def test_a_file_with_two_names_comes_again_and_keeps_its_time(make: Make, tmp_path: Path, clock: Clock) -> None:
    queue, dead = make(clock=clock), make("orders.dead", clock=clock)
    await queue.put(b"a")
    message = await queue.receive()
    await queue.statistics()
    backup = tmp_path / "backup"
    os.link(queue.path / next(iter(files(queue))), backup)
    os.utime(backup, (1_500_000_000.5,) * 2)
    clock.now += 60
    assert await make(clock=clock).give_back_in_flight() == 1
    assert backup.stat().st_mtime == 1_500_000_000.5
    (queue.path / message.id).rename(tmp_path / "letter")
    await dead.create()
    (tmp_path / "letter").rename(dead.path / message.id)
    assert await queue.requeue() == 1
    assert backup.stat().st_mtime == 1_500_000_000.5


async def test_where_renames_take_two_steps_a_second_name_is_allowed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a client that died between the two steps has left: the message is delivered at once."""
    monkeypatch.setattr(apressure.files.storage.messages.renaming, "_NOREPLACE", 1 << 30)
    queue = make()
    message_id = await queue.put(b"a")
    (queue.path / f"{message_id}.new").hardlink_to(queue.path / message_id)
    assert (await queue.receive(timeout=0)).raw == b"a"
