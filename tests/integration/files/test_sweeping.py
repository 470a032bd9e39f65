"""What publishers leave that died while they wrote: deleted, but never while it may be that they live."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import apressure.files.storage.writing
from apressure.files import FileQueue
from tests import processes
from tests.integration.files.conftest import MODES, Clock, Make, drain, files
from tests.vsqs import Vsqs

SWEEP = 31.0
HOUR = 3601.0


class Later:
    """A clock that is ahead by so much."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Vsqs]:
    pytest.importorskip("vsqs", reason="vsqs 0.3")
    with Vsqs(tmp_path, "orders") as theirs:
        yield theirs


async def swept(queue: FileQueue[bytes]) -> bool:
    """Let it sweep, and say whether nothing that is being written is left."""
    seen = await queue.statistics()
    assert seen.unfinished == len([name for name in files(queue) if name.endswith(".new")])
    return not seen.unfinished


async def test_a_live_publisher_of_vsqs_is_never_swept(make: Make, theirs: Vsqs) -> None:
    clock = Later()
    queue = make(clock=clock, unit="us")
    assert theirs("publish_slowly", "a") == "writing"
    for ahead in (0, SWEEP, HOUR, 100 * HOUR):
        clock.ahead = ahead
        assert not await swept(queue), ahead
        assert not await swept(make(clock=clock, unit="us")), ahead
    message_id = theirs("go on")
    clock.ahead = 0.0
    message = await queue.receive(timeout=0)
    assert (message.id, message.raw) == (message_id, b"a")


@pytest.mark.parametrize("mode", [MODES["notified"], MODES["fsync"], MODES["threads"]], ids=["", "fsync", "threads"])
async def test_a_publisher_of_vsqs_that_was_killed_is_swept(make: Make, theirs: Vsqs) -> None:
    clock = Later()
    queue = make(clock=clock, unit="us", bound=1)
    assert theirs("publish_slowly", "a") == "writing"
    theirs.kill()
    assert not await swept(queue)
    clock.ahead = SWEEP
    assert await swept(queue)
    await queue.put(b"b", timeout=0)


@pytest.mark.parametrize("mode", [MODES["listed"]], ids=["listed"])
async def test_where_other_machines_publish_it_is_swept_after_an_hour(make: Make, theirs: Vsqs) -> None:
    clock = Later()
    queue = make(clock=clock, unit="us")
    assert theirs("publish_slowly", "a") == "writing"
    theirs.kill()
    for ahead, expected in ((SWEEP, False), (HOUR - 60, False), (HOUR, True)):
        clock.ahead = ahead
        assert await swept(queue) is expected, ahead


async def test_what_our_own_publishers_leave_is_swept_everywhere(make: Make, clock: Clock) -> None:
    queue = make(clock=clock)
    await queue.create()
    await queue.statistics()
    left = queue.path / f"{int(clock.now * 1000)}.new"
    os.close(os.open(left, os.O_CREAT | os.O_WRONLY, 0o600))
    clock.now += 29
    assert not await swept(queue)
    clock.now += 2
    assert await swept(queue)


async def test_a_file_system_without_leases_waits_for_an_hour_and_asks_the_processes(
    make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apressure.files.storage.writing, "_is_written", lambda fd: None)
    queue = make(clock=clock)
    await queue.create()
    await queue.statistics()
    names = [queue.path / f"{int(clock.now * 1000) + number}.new" for number in range(3)]
    for name in names:
        name.touch(0o644)
    writer = os.open(names[1], os.O_WRONLY)
    reader = os.open(names[2], os.O_RDONLY)  # as another client that sweeps
    clock.now += SWEEP
    await queue.statistics()
    assert len(files(queue)) == 3
    clock.now += HOUR
    await queue.statistics()
    assert files(queue) == [names[1].name]
    os.close(writer)
    os.close(reader)
    clock.now += 2
    assert await swept(queue)


async def test_a_file_that_cannot_be_deleted_stays_and_stops_no_operation(
    make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like another user's file in a directory with the sticky bit, where each user deletes only files of its own."""
    queue = make(clock=clock)
    await queue.put(b"a")
    (queue.path / f"{int(clock.now * 1000) + 1}.new").touch(0o600)
    unlink = os.unlink

    def refuse(name: str, *, dir_fd: int | None = None) -> None:
        if name.endswith(".new"):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    clock.now += HOUR
    assert not await swept(queue)
    assert await drain(queue) == [b"a"]


ANOTHER_USER = """
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o755)
os.fchown(fd, 65534, 65534)
os.setuid(65534)
print("open", flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a process of another user (that takes root)")
async def test_a_publisher_of_another_user_is_not_swept(make: Make, clock: Clock) -> None:
    queue = make(clock=clock)
    await queue.create()
    await queue.statistics()
    name = queue.path / f"{int(clock.now * 1000)}.new"
    command = [sys.executable, "-c", ANOTHER_USER, str(name)]
    with processes.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        clock.now += HOUR
        assert not await swept(queue)
        process.communicate()
    clock.now += HOUR
    assert await swept(queue)
