"""Measure what delays cost, for each kind of queue: beside plain puts and gets, and how late delayed items come.

Usage: python -m tests.benchmarks.control [--quick] [--against DIRECTORY] [--kind NAME] [--repetitions N] [--json FILE]
                                          [--libraries DIRECTORY]

- "delayed / plain": items a second through put and then get, one at a time, each delayed by a millisecond, as a ratio
  to the same without a delay. Both take turns.
- "beside ten": plain items a second while ten delayed ones are kept for tomorrow, as a ratio to none.
- "beside many / ten": the same while a million are kept (of a FileQueue 10,000), as a ratio to ten.
- "late": milliseconds from the time when an item is due until a consumer that waits has it, the 99th percentile, alone
  and beside so many others.
- With `--libraries`, docket and BullMQ (its Python package) are installed there, and their lateness is measured, too.
- With `--against`, another checkout runs the plain puts and gets in turn: what a queue pays that uses no delays.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.cpu import opened
from tests.environments import ROOT, environment, last_line
from tests.servers import CannotRun

KINDS: Final = ("AsyncQueue", "EventQueue", "TaskQueue", "FileQueue")
GOALS: Final = {
    "delayed / plain": 0.7, "beside ten": 0.7, "beside many / ten": 0.9, "late": 50.0, "late beside": 50.0,
    "plain / before": 0.98,
}  # fmt: skip
"""The least ratios, and the most milliseconds."""

DAY: Final = 86400.0


async def rate(queue: Any, item: Any, count: int, **when: Any) -> float:
    """Return how many items a second pass through put and then get, one at a time."""
    begin = time.perf_counter()
    for _ in range(count):
        await queue.put(item, **when)
    for _ in range(count):
        await queue.get()
    return count / (time.perf_counter() - begin)


async def lateness(queue: Any, item: Callable[[str], Any], count: int, seconds: float) -> float:
    """Return how late items come to a consumer that waits: milliseconds, the 99th percentile."""
    late = []

    async def consume() -> None:
        for _ in range(count):
            got = await queue.get()
            late.append(1000 * (time.time() - float(got)))

    consuming = asyncio.ensure_future(consume())
    for _ in range(count):
        delay = random.uniform(0.2, seconds)
        await queue.put(item(repr(time.time() + delay)), delay=delay)
    await consuming
    return statistics.quantiles(late, n=100)[-1]


async def measure(kind: str, url: str, count: int, kept: int) -> dict[str, float]:
    """Return the figures of a kind."""
    async with opened(kind, url) as (queue, item):
        await queue.create()
        make: Callable[[str], Any] = str if kind == "TaskQueue" else str.encode
        await rate(queue, item, count // 10)
        pairs = [(await rate(queue, item, count, delay=0.001), await rate(queue, item, count)) for _ in range(3)]
        figures = {"delayed / plain": statistics.median(delayed / plain for delayed, plain in pairs)}
        figures["late"] = await lateness(queue, make, count // 10, 2.0)
        plain = await rate(queue, item, count)
        await queue.put_many([item] * 10, delay=DAY)
        few = await rate(queue, item, count)
        figures["beside ten"] = few / plain
        await queue.put_many((item for _ in range(kept)), delay=DAY)
        figures["beside many / ten"] = await rate(queue, item, count) / few
        figures["late beside"] = await lateness(queue, make, count // 10, 2.0)
        await queue.delete()
    return figures


async def plain_rate(kind: str, url: str, count: int) -> dict[str, float]:
    """Return the rate of plain puts and gets."""
    async with opened(kind, url) as (queue, item):
        await queue.create()
        await rate(queue, item, count // 10)
        found = {"plain": await rate(queue, item, count)}
        await queue.delete()
    return found


def in_a_process(root: Path, what: str, kind: str, url: str, count: int, kept: int) -> dict[str, float]:
    """Measure the package of a checkout in a fresh process."""
    here = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, __file__, "--measure", what, "--kind", kind, "--url", url, "--items", f"{count},{kept}"],
        env=os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{here}"}, cwd=root, stdout=subprocess.PIPE, text=True,
        check=True,
    )  # fmt: skip
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def of_libraries(place: Path, url: str, count: int, repetitions: int) -> list[dict[str, Any]]:
    """Print how late delayed jobs of other libraries come, and return it as rows."""
    rows = []
    for name, package in (("docket", "pydocket"), ("BullMQ", "bullmq")):
        try:
            python = environment(place / f"{name.lower()}-late", (package,))
            command = (str(python), "-m", "tests.benchmarks.others.late", name.lower(), url, str(count))
            found = [
                json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=300).stdout)
                for _ in range(repetitions)
            ]
        except (CannotRun, subprocess.SubprocessError) as error:
            print(f"{name:12}left out: {last_line(error)}", flush=True)
            continue
        late, version = statistics.median(one["late"] for one in found), found[0]["version"]
        print(f"{name:12}{'late':18}{late:9.3f} ms at the 99th percentile ({package} {version})", flush=True)
        rows.append({"kind": name, "what": "late", "value": late, "version": version})
    return rows


def shown(kind: str, what: str, value: float) -> dict[str, Any]:
    """Print a figure, and return it as a row."""
    goal, late = GOALS[what], what.startswith("late")
    reached = value <= goal if late else value >= goal
    unit = " ms at the 99th percentile" if late else ""
    print(f"{kind:12}{what:18}{value:9.3f}{unit} (goal {goal:g}: {'reached' if reached else 'missed'})", flush=True)
    return {"kind": kind, "what": what, "value": value, "goal": goal, "reached": reached}


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.control", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, once")
    parser.add_argument("--against", type=Path, metavar="DIRECTORY", help="another checkout, for what plain puts pay")
    parser.add_argument("--kind", choices=KINDS, help="this kind of queue only")
    parser.add_argument("--repetitions", type=int, metavar="N", help="3 by default")
    parser.add_argument("--libraries", type=Path, metavar="DIRECTORY", help="where docket and BullMQ are installed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, too")
    for hidden in ("--measure", "--url", "--items"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        count, kept = map(int, options.items.split(","))
        work = (
            measure(options.kind, options.url, count, kept)
            if options.measure == "delays"
            else (plain_rate(options.kind, options.url, count))
        )
        print(json.dumps(asyncio.run(work)))
        return
    import apressure
    from apressure.embedded import EmbeddedServer

    root = Path(apressure.__file__).parents[1]
    count, kept = (500, 10_000) if options.quick else (5_000, 1_000_000)
    repetitions = options.repetitions or (1 if options.quick else 3)
    rows = []
    with EmbeddedServer(tcp=True) as server:
        for kind in [options.kind] if options.kind else KINDS:
            most = kept if kind != "FileQueue" else kept // 100
            runs = [in_a_process(root, "delays", kind, server.url, count, most) for _ in range(repetitions)]
            rows += [shown(kind, what, statistics.median(run[what] for run in runs)) for what in runs[0]]
            if options.against:
                both = [
                    [in_a_process(one, "plain", kind, server.url, count, 0)["plain"] for one in (root, options.against)]
                    for _ in range(2 * repetitions + 1)
                ]
                rows.append(shown(kind, "plain / before", statistics.median(ours / theirs for ours, theirs in both)))
        if options.libraries:
            rows += of_libraries(options.libraries, server.url, count // 10, repetitions)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
