"""Run the comparisons on every server of this machine: medians of interleaved repetitions, as ratios.

Usage: python -m tests.benchmarks [--quick] [--only WORD] [--repetitions N] [--uvloop] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import redis.asyncio

from apressure import AsyncQueue
from apressure.embedded import EmbeddedServer
from tests.benchmarks.cases import CASES, NAME, Bench, Case
from tests.servers import SERVERS, CannotRun, binary_of


def servers() -> Iterator[EmbeddedServer]:
    """The servers that this machine has."""
    for kind in SERVERS:
        try:
            binary = binary_of(kind)
        except CannotRun as missing:
            print(f"left out: {missing}", file=sys.stderr)
            continue
        with EmbeddedServer(binary=binary, tcp=True) as server:
            yield server


async def compare(case: Case, url: str, scale: float, repetitions: int) -> dict[str, Any]:
    """Measure both sides in turn, so that the machine's moods meet both, and take the medians."""
    ours: list[list[float]] = []
    by_hand: list[list[float]] = []
    async with AsyncQueue(NAME, url=url) as queue, redis.asyncio.Redis.from_url(url) as client:
        bench = Bench(url, queue, client, scale)
        for _ in range(repetitions + 1):
            for measure, figures in ((case.ours, ours), (case.by_hand, by_hand)):
                await client.flushall()
                await queue.create()
                figures.append(await measure(bench))
        await queue.delete()
    figures = {}
    for index, (unit, goal) in enumerate(zip(case.unit, case.goal, strict=True)):
        # The first repetition warms up.
        pairs = [(a[index], b[index]) for a, b in zip(ours[1:], by_hand[1:], strict=True)]
        figures[unit] = {
            "ours": statistics.median(a for a, _ in pairs),
            "by_hand": statistics.median(b for _, b in pairs),
            "ratio": statistics.median(a / b for a, b in pairs),
            "goal": goal,
            "reached": (statistics.median(a / b for a, b in pairs) >= goal) is (unit == "/s"),
        }
    return {"case": case.name, "figures": figures}


def show(result: dict[str, Any]) -> None:
    """Print one comparison."""
    for unit, row in result["figures"].items():
        ours, by_hand = (
            (f"{row['ours']:12,.0f}/s", f"{row['by_hand']:12,.0f}/s")
            if unit == "/s"
            else (f"{row['ours'] * 1e6:9,.0f} µs {unit[2:]}", f"{row['by_hand'] * 1e6:9,.0f} µs {unit[2:]}")
        )
        goal = f"goal {'>=' if unit == '/s' else '<='} {row['goal']:g}"
        mark = "" if row["reached"] else "  not reached"
        print(f"  {result['case']:48} {ours} {by_hand}  ratio {row['ratio']:7.2f}  ({goal}){mark}", flush=True)


def main() -> None:
    """Parse the arguments, measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--only", default="", help="only comparisons whose name has this word")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--uvloop", action="store_true", help="on uvloop, which must be installed")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    options = parser.parse_args()
    if options.uvloop:
        import uvloop

        uvloop.install()
    machine = {
        "python": platform.python_version(),
        "redis-py": version("redis"),
        "apressure": version("apressure"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "loop": "uvloop" if options.uvloop else "asyncio",
    }
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    results: dict[str, Any] = {"machine": machine, "servers": {}}
    for server in servers():
        title = f"{server.software} {server.version}"
        print(f"\n{title}: ours, by hand, the median of the ratios of {options.repetitions} interleaved repetitions")
        rows = results["servers"][title] = []
        for case in CASES:
            if options.only in case.name:
                rows.append(asyncio.run(compare(case, server.url, 0.1 if options.quick else 1.0, options.repetitions)))
                show(rows[-1])
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
