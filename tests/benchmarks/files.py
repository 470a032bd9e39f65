"""Compare a queue in a directory with the released vsqs 0.3, on the same file system.

Usage: python -m tests.benchmarks.files [--quick] [--repetitions N] [--directory DIR]...
                                        [--libraries DIRECTORY] [--json FILE]

Both name messages in microseconds. A turn puts messages behind a backlog, then receives and deletes as many: vsqs 0.3,
ours without fsync, ours with it. Everything written before is on the disk by then (`sync`), because a file that never
reached the disk costs less to delete. vsqs 0.3 lists the directory for each operation, so it does only few behind a
backlog. It syncs each message and not the directory; ours syncs both, or neither. Figures behind a backlog are also
compared with the empty queue of the same repetition.

ext4 searches a new file's inode behind all inodes that were freed in the last minute, so measuring makes it slower
(20,000 new files a second become 3,000). The first side has an advantage: the sides take turns at being first.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import psutil

from apressure import FileQueue
from tests.benchmarks import show
from tests.benchmarks.figures import RATE, Figure, figure
from tests.benchmarks.libraries import Library, install
from tests.servers import CannotRun
from tests.vsqs import Vsqs

SIZE = 100
"""Bytes of a message."""

PORTION = 64
GOAL = 3.0
FAR = 1 / 1.5
"""The least share of our own rate that must remain behind the backlog."""

OTHER = Library("vsqs", ("vsqs==0.3",), 1000, 1000)

Rates = dict[str, float]
"""Messages a second, for each thing that one can do."""


Turn = dict[str, Rates]
"""What one repetition has measured behind one backlog: `"no fsync"` and `"fsync"`, which are ours, and `"vsqs"`."""

SIDES = ("vsqs", "no fsync", "fsync")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.files", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--repetitions", type=int, metavar="N", help="5 by default")
    parser.add_argument(
        "--directory", type=Path, action="append", dest="directories", metavar="DIR",
        help="where queues are; by default where temporary files are, and /dev/shm",
    )  # fmt: skip
    parser.add_argument(
        "--libraries", type=Path, metavar="DIRECTORY", help="install vsqs there, not in this environment"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, too")
    options = parser.parse_args()
    repetitions = options.repetitions or (1 if options.quick else 5)
    count, backlog = (100, 1_000) if options.quick else (500, 100_000)
    try:
        python = install(OTHER, options.libraries.absolute()).command[0] if options.libraries else sys.executable
    except CannotRun as missing:
        parser.exit(1, f"vsqs 0.3 is {missing}\n")
    about = machine()
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    figures: list[Figure] = []
    for place in options.directories or filter(Path.is_dir, (Path(tempfile.gettempdir()), Path("/dev/shm"))):
        print(f"\n{place} ({kind(place)}): ours, theirs, and the median ratio of {repetitions} repetitions in turn")
        with tempfile.TemporaryDirectory(dir=place) as directory:
            turns = list(measure(Path(directory), python, repetitions, count, backlog))
        found = list(compare(turns, backlog, kind(place)))
        for one in found:
            print(f"{one.server:16}{show.line(one)}")
        figures += found
    if options.json:
        results = {
            "title": "files: ours / theirs",
            "machine": about,
            "repetitions": repetitions,
            "figures": [dataclasses.asdict(one) for one in figures],
            "left_out": [],
        }
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def measure(directory: Path, python: str, repetitions: int, count: int, backlog: int) -> Iterator[tuple[Turn, Turn]]:
    """Measure the empty queue and the queue with a backlog, in turn."""
    empty, behind = directory / "empty", directory / "behind"
    fill(empty, 0)
    fill(behind, backlog)
    os.sync()
    time.sleep(3)  # not on the disk yet
    few = max(3, 10_000 // backlog)
    for number in range(repetitions):
        sides = [*SIDES[number % 3 :], *SIDES[: number % 3]]
        yield turn(sides, empty, python, count, count), turn(sides, behind, python, count, few)


def fill(place: Path, backlog: int) -> None:
    """Write messages as any client leaves them, with names of the last seconds."""
    place.mkdir()
    begin = int(time.time() * 1e6) - backlog - 10_000_000
    fd = os.open(place, os.O_RDONLY)
    for number in range(backlog):
        file = os.open(f"{begin + number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600, dir_fd=fd)
        os.write(file, b"." * SIZE)
        os.close(file)
    os.close(fd)


def turn(sides: list[str], place: Path, python: str, count: int, few: int) -> Turn:
    """Measure all sides in a directory, in this order."""
    return {
        side: theirs(place, python, few) if side == "vsqs" else asyncio.run(ours(place, count, side == "fsync"))
        for side in sides
    }


async def ours(place: Path, count: int, fsync: bool) -> Rates:
    """Measure our five ways."""
    data = b"." * SIZE
    rates: Rates = {}
    begin = 0.0

    def start() -> None:
        nonlocal begin
        os.sync()
        begin = time.perf_counter()

    def stop(what: str) -> None:
        rates[what] = count / (time.perf_counter() - begin)

    async def drain() -> None:
        left = count
        while left:
            for message in await queue.receive_many(min(PORTION, left)):
                await message.ack()
                left -= 1

    async with FileQueue(place, unit="us", fsync=fsync) as queue:
        start()
        for _ in range(count):
            await queue.put(data)
        stop("publish")
        start()
        for _ in range(count):
            message = await queue.receive()
            await queue.ack(message.id)
        stop("receive and delete")
        start()
        await queue.put_many(data for _ in range(count))
        stop("publish_many")
        start()
        await drain()
        stop(f"receive_many {PORTION}, ack")
        start()
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(queue.put(data))
        stop("publish by many tasks")
        await drain()
    return rates


def theirs(place: Path, python: str, count: int) -> Rates:
    """Measure vsqs 0.3."""
    with Vsqs(place.parent, place.name, python=python) as queue:
        os.sync()
        published = queue("rate_publish", count, SIZE)
        os.sync()
        return {"publish": published, "receive and delete": queue("rate_consume", count)}


def compare(turns: list[tuple[Turn, Turn]], backlog: int, where: str) -> Iterator[Figure]:
    """Compare with the other library, and with the empty queue."""
    behind = f"behind {backlog:,}"
    for side in ("fsync", "no fsync"):
        server = f"{where}, {side}"
        for place, name in ((0, "empty"), (1, behind)):
            runs = [each[place] for each in turns]
            for what in runs[0][side] if place == 0 else runs[0]["vsqs"]:
                beside = "publish" if what.startswith("publish") else "receive and delete"
                pairs = [(run[side][what], run["vsqs"][beside]) for run in runs]
                yield figure(server, f"{what}, {name}", "vsqs 0.3", "asyncio", RATE, GOAL, pairs, {"vsqs": "0.3"})
        for what in turns[0][1][side]:
            pairs = [(far[side][what], near[side][what]) for near, far in turns]
            yield figure(server, f"{what}, {behind}", "ours, empty", "asyncio", RATE, round(FAR, 3), pairs)


def kind(directory: Path) -> str:
    """Return the kind of a directory's file system."""
    mounts = [mount for mount in psutil.disk_partitions(all=True) if directory.is_relative_to(mount.mountpoint)]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else "unknown"


def machine() -> dict[str, str]:
    """Describe the machine and the versions."""
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "apressure": version("apressure"),
    }


if __name__ == "__main__":
    main()
