"""Measure what delays cost, for each kind of queue: beside plain puts and gets, and how late delayed items come.

Usage: python -m tests.benchmarks.control [--quick] [--against DIRECTORY] [--kind NAME] [--repetitions N] [--json FILE]

- "delayed / plain": items a second through put and then get, one at a time, each delayed by a millisecond, as a ratio
  to the same without a delay. Both take turns.
- "beside delayed": plain items a second while so many delayed ones are kept for tomorrow, as a ratio to none.
- "late": milliseconds from the time when an item is due until a consumer that waits has it, the 99th percentile, alone
  and beside so many others.
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

KINDS: Final = ("AsyncQueue", "EventQueue", "TaskQueue", "FileQueue")
GOALS: Final = {
    "delayed / plain": 0.7, "beside delayed": 0.7, "late": 50.0, "late beside": 50.0, "plain / before": 0.98,
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
        await queue.put_many((item for _ in range(kept)), delay=DAY)
        figures["beside delayed"] = await rate(queue, item, count) / plain
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
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
