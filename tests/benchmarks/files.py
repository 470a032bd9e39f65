"""A queue in a directory beside the released vsqs 0.3, on the same file system, in turn.

Usage: python -m tests.benchmarks.files [--directory DIR] [--quick] [--repetitions N] [--json FILE]

Both name messages in microseconds, of 100 bytes. Each turn publishes messages behind a backlog, then receives and
deletes as many. The disk has them by then (`sync`), as after some seconds: a file that never came to it costs less to
delete. vsqs 0.3 lists the directory for each operation, so behind a backlog it does few. It brings each message to the
disk (fsync), and not the directory; ours do both, or neither. What is behind a backlog is compared with the empty queue
of the same repetition, too.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from apressure import FileQueue
from tests.benchmarks import show
from tests.benchmarks.figures import RATE, Figure, figure
from tests.vsqs import Vsqs

SIZE = 100
GOAL = 3.0
FAR = 1 / 1.5
"""What is left of our own rate behind the longest backlog."""

PORTION = 64


def fill(place: Path, backlog: int) -> None:
    """Messages that are there, as any client would have left them."""
    place.mkdir(parents=True)
    begin = int(time.time() * 1e6) - backlog - 10_000_000
    fd = os.open(place, os.O_RDONLY)
    for number in range(backlog):
        file = os.open(f"{begin + number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600, dir_fd=fd)
        os.write(file, b"." * SIZE)
        os.close(file)
    os.close(fd)


async def ours(place: Path, count: int, fsync: bool) -> Rates:
    """Messages a second, for each thing that one can do."""
    data = b"." * SIZE
    rates: Rates = {}

    async with FileQueue(place, unit="us", fsync=fsync) as queue:
        os.sync()
        begin = time.perf_counter()
        for _ in range(count):
            await queue.publish(data)
        rates["publish"] = count / (time.perf_counter() - begin)
        os.sync()
        begin = time.perf_counter()
        for _ in range(count):
            message = await queue.receive()
            await queue.delete(message.id)
        rates["receive and delete"] = count / (time.perf_counter() - begin)
        os.sync()
        begin = time.perf_counter()
        await queue.publish_many(data for _ in range(count))
        rates[f"publish_many {PORTION}"] = count / (time.perf_counter() - begin)
        os.sync()
        begin = time.perf_counter()
        left = count
        while left:
            for message in await queue.receive_many(min(PORTION, left)):
                await message.ack()
                left -= 1
        rates[f"receive_many {PORTION} and ack"] = count / (time.perf_counter() - begin)
        os.sync()
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(queue.publish(data))
        rates["publish by many tasks"] = count / (time.perf_counter() - begin)
        for message in await queue.receive_many(count):
            await message.ack()
    return rates


def theirs(place: Path, count: int) -> Rates:
    """The same by vsqs 0.3."""
    with Vsqs(place.parent, place.name) as queue:
        os.sync()
        published = queue("rate_publish", count, SIZE)
        return {"publish": published, "receive and delete": queue("rate_consume", count)}


Rates = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Turn:
    """What one repetition has measured behind one backlog."""

    without: Rates
    fsync: Rates
    other: Rates


def turn(place: Path, backlog: int, count: int) -> Turn:
    """Measure all sides behind a backlog that is there."""
    few = count if backlog < 1000 else max(3, count * 10 // backlog)
    other = theirs(place, few)
    return Turn(asyncio.run(ours(place, count, False)), asyncio.run(ours(place, count, True)), other)


def figures(turns: dict[int, list[Turn]]) -> Iterator[Figure]:
    """Compare with the other library, and with the empty queue."""
    empty = turns[0]
    for backlog, runs in turns.items():
        for fsync in (False, True):
            sides = [run.fsync if fsync else run.without for run in runs]
            nears = [run.fsync if fsync else run.without for run in empty]
            for what in sides[0]:
                case = f"{what}, {'fsync' if fsync else 'no fsync'}, " + (f"behind {backlog:,}" if backlog else "empty")
                beside = "publish" if "publish" in what else "receive and delete"
                pairs = [(side[what], run.other[beside]) for side, run in zip(sides, runs, strict=True)]
                yield figure("", case, "vsqs 0.3", "asyncio", RATE, GOAL, pairs)
                if backlog:
                    pairs = [(side[what], near[what]) for side, near in zip(sides, nears, strict=True)]
                    yield figure("", case, "ours, empty", "asyncio", RATE, FAR, pairs)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.files", description=__doc__)
    parser.add_argument("--directory", type=Path, help="where the queues are; by default where temporary files are")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--repetitions", type=int, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, too")
    options = parser.parse_args()
    count, repetitions = (200, 1) if options.quick else (1000, 3)
    backlogs = (0, 1_000, 2_000) if options.quick else (0, 10_000, 100_000)
    turns: dict[int, list[Turn]] = {backlog: [] for backlog in backlogs}
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, in {directory}")
        for backlog in backlogs:
            fill(Path(directory, f"behind-{backlog}"), backlog)
        for _ in range(options.repetitions or repetitions):
            for backlog in backlogs:
                turns[backlog].append(turn(Path(directory, f"behind-{backlog}"), backlog, count))
    found = list(figures(turns))
    for one in found:
        print(show.line(one))
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(one) for one in found], indent=2) + "\n")


if __name__ == "__main__":
    main()
