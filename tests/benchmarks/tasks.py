"""Compare a queue of tasks with the released blueque 1.0.1, on the same server.

Usage: python -m tests.benchmarks.tasks --libraries DIRECTORY [--quick] [--repetitions N] [--server valkey|redis]
                                        [--json FILE]

A turn enqueues tasks, then listens, starts and completes as many: blueque one by one, ours one by one and many at a
time. blueque has no operation for many tasks, so its loop is the other side of all rows. A turn also measures how long
a waiting listener waits for a task that is enqueued at a random moment, and how late our Scheduler enqueues a task that
is due; blueque looks once a second, and has no process for scheduled tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from apressure.embedded import EmbeddedServer
from apressure.tasks import Scheduler, TaskClient
from tests.benchmarks import show
from tests.benchmarks.figures import RATE, Figure, figure
from tests.benchmarks.files import machine
from tests.blueque import NAME, REQUIREMENTS, Release
from tests.environments import environment
from tests.servers import KINDS, CannotRun, admin, binary_of

PARAMETERS = json.dumps({"file": "a" * 80})
BATCH = 1000
WAKE_UP = "s p50"

GOALS = {
    "enqueue, one by one": 1.5, "listen, start and complete, one by one": 3.0,
    "enqueue, many tasks": 10.0, "receive, start and complete, many tasks": 10.0,
}  # fmt: skip
BESIDE = {"enqueue": "rate_enqueue", "listen": "rate_process", "receive": "rate_process"}
LATENCY = 0.005
"""The goal for the time from enqueue to a waiting listener, in seconds (p50)."""
LATENESS = 0.05
"""The goal for the time from a task's eta until it is pending, in seconds (the latest one)."""

Rates = dict[str, float]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.tasks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--repetitions", type=int, metavar="N", help="5 by default")
    parser.add_argument("--libraries", type=Path, metavar="DIRECTORY", help="install blueque there", required=True)
    parser.add_argument("--server", choices=KINDS, action="append", help="only this one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, too")
    options = parser.parse_args()
    repetitions = options.repetitions or (1 if options.quick else 5)
    count, waits = (300, 2) if options.quick else (5000, 8)
    try:
        python = environment(options.libraries.absolute() / NAME, REQUIREMENTS)
    except CannotRun as missing:
        parser.exit(1, f"blueque 1.0.1 is {missing}\n")
    about = {**machine(), "redis-py": version("redis"), "blueque": "1.0.1"}
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    figures: list[Figure] = []
    times: dict[str, dict[str, float]] = {}
    left_out: list[str] = []
    for kind in options.server or KINDS:
        try:
            storage = EmbeddedServer(binary=binary_of(kind), tcp=True)
        except CannotRun as missing:
            left_out.append(str(missing))
            continue
        name = f"{storage.software} {storage.version}"
        print(f"\n{name}: ours, theirs, and the median ratio of {repetitions} repetitions in turn")
        with storage:
            turns = [turn(storage, python, count, waits) for _ in shown(range(repetitions), name)]
        found = list(compare(name, turns))
        for one in found:
            print(show.line(one))
        figures += found
        times[name] = latenesses(turns)
        for what, goal in (("wait", LATENCY), ("lateness", LATENESS)):
            taken = times[name][what]
            mark = "" if taken <= goal else "  not reached"
            print(f"  {what}: {show.amount(taken, 's').strip()} (goal <= {goal * 1e3:g} ms){mark}")
    if options.json:
        results = {
            "title": "tasks: ours / blueque 1.0.1",
            "machine": about,
            "repetitions": repetitions,
            "figures": [dataclasses.asdict(one) for one in figures],
            "times": times,
            "left_out": left_out,
        }
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def shown(numbers: Sequence[int], label: str) -> Iterator[int]:
    """Show a progress bar for repetitions, on standard error."""
    from rich.console import Console
    from rich.progress import track

    yield from track(numbers, label, console=Console(file=sys.stderr), transient=True)


@dataclasses.dataclass(frozen=True)
class Turn:
    """What one repetition has measured.

    Attributes:
        ours, theirs: Tasks a second, for each operation.
        our_waits, their_waits: Seconds until a waiting listener got a task.
        lateness: Seconds from the eta of a task until it was pending.
    """

    ours: Rates
    theirs: Rates
    our_waits: list[float]
    their_waits: list[float]
    lateness: list[float]


def turn(storage: EmbeddedServer, python: Path, count: int, waits: int) -> Turn:
    """Measure both sides, each with an empty server."""
    with admin(storage) as db, Release(python, storage.url) as release:
        theirs = {
            "rate_enqueue": release("rate_enqueue", "bench", PARAMETERS, count),
            "rate_process": release("rate_process", "bench", count),
        }
        their_waits = [wait_of(release, storage.url) for _ in range(waits)]
        db.flushall()
        ours = asyncio.run(our_rates(storage.url, count))
        db.flushall()
        our_waits, lateness = asyncio.run(our_times(storage.url, waits * 5))
        db.flushall()
    return Turn(ours, theirs, our_waits, their_waits, lateness)


async def our_rates(url: str, count: int) -> Rates:
    """Measure our four ways."""
    rates: Rates = {}
    begin = 0.0
    many = [json.loads(PARAMETERS)] * count * 4

    def start() -> None:
        nonlocal begin
        begin = time.perf_counter()

    def stop(what: str, number: int) -> None:
        rates[what] = number / (time.perf_counter() - begin)

    async with TaskClient(url) as client:
        queue = client.queue("bench")
        parameters = json.loads(PARAMETERS)
        await queue.enqueue(parameters)  # so that the connection is there
        async with client.listener("bench") as listener:
            await client.processor(await anext(listener)).complete("done")
            start()
            for _ in range(count):
                await queue.enqueue(parameters)
            stop("enqueue, one by one", count)
            start()
            for _ in range(count):
                processor = client.processor(await anext(listener))
                await processor.start()
                await processor.complete("done")
            stop("listen, start and complete, one by one", count)
        start()
        await queue.put_many(many)
        stop("enqueue, many tasks", len(many))
        start()
        left = len(many)
        while left:
            got = await queue.receive_many(min(BATCH, left))
            await asyncio.gather(*(each.start() for each in got))
            await asyncio.gather(*(each.complete("done") for each in got))
            left -= len(got)
        stop("receive, start and complete, many tasks", len(many))
    return rates


async def our_times(url: str, waits: int) -> tuple[list[float], list[float]]:
    """Measure how long a waiting listener waits for a task, and how late the Scheduler is."""
    took, late = [], []
    async with TaskClient(url) as client, TaskClient(url) as other:
        queue = other.queue("bench")
        async with client.listener("bench") as listener:
            for _ in range(waits):
                waiting = asyncio.ensure_future(anext(listener))
                await asyncio.sleep(random.uniform(0.02, 0.06))
                began = time.perf_counter()
                await queue.enqueue(PARAMETERS)
                task = await waiting
                took.append(time.perf_counter() - began)
                await client.processor(task).complete("done")
        scheduling = asyncio.create_task(Scheduler(client).run())
        begin = time.time() + 0.5
        ids = [await queue.schedule(PARAMETERS, begin + 0.03 * number) for number in range(waits)]
        await asyncio.sleep(begin + 0.03 * waits + 0.3 - time.time())
        for task_id in ids:
            task = await other.task(task_id)
            assert task.status == "pending"
            late.append(task.updated - task.eta)
        scheduling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await scheduling
    return took, late


def wait_of(release: Release, url: str) -> float:
    """Return how long a listener of blueque waits for a task."""
    release.ask("listen", "waits")
    time.sleep(random.uniform(0.1, 1.1))

    async def enqueue() -> float:
        async with TaskClient(url) as client:
            queue = client.queue("waits")
            await queue.qsize()
            began = time.perf_counter()
            await queue.enqueue(PARAMETERS)
            return began

    began = asyncio.run(enqueue())
    release.answer()
    return time.perf_counter() - began


def compare(server: str, turns: Sequence[Turn]) -> Iterator[Figure]:
    """Compare with the other library."""
    for what, goal in GOALS.items():
        beside = BESIDE[what.partition(",")[0].partition(" ")[0]]
        pairs = [(each.ours[what], each.theirs[beside]) for each in turns]
        yield figure(server, what, "blueque 1.0.1", "asyncio", RATE, goal, pairs)
    waited = [(statistics.median(each.our_waits), statistics.median(each.their_waits)) for each in turns]
    goal = LATENCY / statistics.median(theirs for _, theirs in waited)
    yield figure(server, "enqueue to a waiting listener", "blueque 1.0.1", "asyncio", WAKE_UP, round(goal, 4), waited)


def latenesses(turns: Sequence[Turn]) -> dict[str, float]:
    """Return the seconds that count by themselves."""
    return {
        "wait": statistics.median(one for each in turns for one in each.our_waits),
        "lateness": max(one for each in turns for one in each.lateness),
    }


if __name__ == "__main__":
    main()
