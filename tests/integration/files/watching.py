"""Programs for tests of scarce notifications: `python -m tests.integration.files.watching PROGRAM DIRECTORY`.

Each has a process of its own, since it lowers the limits of its process, or of its user namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from apressure import FileQueue
from tests import processes

ROOT = Path(__file__).parents[3]

_CLONE_NEWUSER: Final = 0x10000000
NO_NAMESPACE: Final = 3
"""The exit code where this machine has no user namespaces for this user, or another limit in them cannot be set."""


class Warnings(logging.Handler):
    """The warnings of apressure, and how many there were."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[Any] = []
        logging.getLogger("apressure").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def lower(limit: str) -> Callable[[], None]:
    """Lower a limit of inotify for this process alone, in a user namespace. Returns what raises it again."""
    file = Path(f"/proc/sys/user/{limit}")
    if ctypes.CDLL(None).unshare(_CLONE_NEWUSER):
        sys.exit(NO_NAMESPACE)
    before = file.read_text()
    try:
        file.write_text("0")
    except OSError:
        sys.exit(NO_NAMESPACE)

    def restore() -> None:
        file.write_text(before)

    return restore


def instances() -> list[str]:
    """The descriptors of this process that are inotify instances."""
    found = []
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own
            if str(file.readlink()) == "anon_inode:inotify":
                found.append(file.name)
    return found


def watches() -> int:
    """How many directories this process watches."""
    info = [Path(f"/proc/self/fdinfo/{name}").read_text() for name in instances()]
    return sum(text.count("inotify wd:") for text in info)


async def without_watches(place: Path, restore: Callable[[], None]) -> None:
    """Use queues while none can be watched, and until they are."""
    warnings = Warnings()
    one, other = (FileQueue(place / "q", fsync=False, bound=2, poll_interval=0.05) for _ in range(2))
    third = FileQueue(place / "third", fsync=False, poll_interval=0.05)
    for queue in (one, other, third):
        await queue.put(b"first")
        await (await queue.receive()).ack()
        assert not (await queue.statistics()).notified
    receiving = asyncio.create_task(one.receive(timeout=60))
    while not (await one.statistics()).waiting_receivers:
        await asyncio.sleep(0.01)
    await other.put_many([b"a", b"b"], timeout=60)
    message = await receiving
    assert message.raw == b"a"
    putting = asyncio.create_task(one.put(b"c", timeout=60))
    while not (await one.statistics()).waiting_putters:
        await asyncio.sleep(0.01)
    await message.ack()
    await putting
    (warning,) = warnings.records
    assert warning.event == "not_watched", warning.getMessage()
    print(warning.getMessage())
    assert (watches(), len(instances())) in {(0, 0), (0, 1)}

    restore()
    for queue in (one, other, third):
        while not (await queue.statistics()).notified:
            await asyncio.sleep(0.05)
    assert (watches(), len(instances())) == (2, 1)
    assert [(await other.receive(timeout=0)).raw for _ in range(2)] == [b"b", b"c"]
    for queue in (one, other, third):
        await queue.aclose()
    assert len(warnings.records) == 1
    assert (watches(), len(instances())) == (0, 1)


async def without_descriptors(place: Path) -> None:
    """Use a queue while there is room for its directory and for a put, which is too little to watch it."""
    warnings = Warnings()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [*os.pipe(), *os.pipe()]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free) + 1, before[1]))
    for fd in free:
        os.close(fd)
    async with FileQueue(place / "q", fsync=False, poll_interval=0.01) as queue:
        for number in range(20):  # also while it is tried again, each second
            await queue.put(b"%d" % number)
            await (await queue.receive()).ack()
            assert not (await queue.statistics()).notified
            await asyncio.sleep(0.1)
        (warning,) = warnings.records
        print(warning.getMessage())
        assert (instances(), warning.error) == ([], "OSError")
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        while not (await queue.statistics()).notified:
            await asyncio.sleep(0.05)
    assert (watches(), len(instances())) == (0, 1)


async def a_thousand(place: Path) -> None:
    """Open 1,000 queues in a process that may have 1,024 files open, as is usual, and use all of them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    warnings = Warnings()
    queues = [FileQueue(place / f"queue {number}", fsync=False) for number in range(1000)]
    for number, queue in enumerate(queues):
        await queue.put(b"%d" % number)
    for number, queue in enumerate(queues):
        message = await queue.receive(timeout=0)
        assert message.raw == b"%d" % number
        await message.ack()
    receiving = [asyncio.create_task(queue.receive(timeout=120)) for queue in queues]
    while not (await queues[-1].statistics()).waiting_receivers:
        await asyncio.sleep(0.01)
    for number, queue in enumerate(queues):
        assert (await queue.statistics()).notified
        await queue.put(b"again %d" % number)
    assert [(await one).raw for one in receiving] == [b"again %d" % number for number in range(1000)]
    assert (watches(), len(instances())) == (1000, 1)
    for queue in queues:
        await queue.aclose()
    assert (watches(), len(instances())) == (0, 1)
    assert warnings.records == []


def run(program: str, place: Path) -> None:
    """Run a program in a process of its own."""
    done = processes.run([sys.executable, "-m", __name__, program, str(place)], cwd=ROOT, timeout=300)
    if done.returncode == NO_NAMESPACE:
        pytest.skip("limits of inotify for one process need user namespaces")
    assert done.returncode == 0


def main(program: str, place: Path) -> None:
    """Run a program to its end."""
    if program.startswith("max_"):
        asyncio.run(without_watches(place, lower(program)))
    else:
        asyncio.run({"descriptors": without_descriptors, "a thousand": a_thousand}[program](place))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
