"""Measure how much processor time of the client an item costs, for each kind of queue.

Usage: python -m tests.benchmarks.cpu [--against DIRECTORY] [--kind NAME] [--items N] [--repetitions N] [--json FILE]

A put is one of many that follow each other in one task; an item is one of `async for item in queue.consumer()`. Other
programs on the machine only add to a figure. So each is taken in bursts: of puts the fastest one counts, of a consumer
the faster half, since it receives many items at a time. That is repeated in fresh processes, and the least counts. With
`--against`, another checkout runs in turn, and the ratio is that of the least figures. The goals are the figure itself,
on a machine like that of docs/internals/benchmarks, and the ratio to the code from before the kinds shared a core.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

MESSAGE: Final = b"x" * 100
GOALS: Final = {
    ("AsyncQueue", "put"): (40.7, 1.03),
    ("AsyncQueue", "consumer"): (1.55, 1.03),
    ("EventQueue", "put"): (42.0, 0.90),
    ("EventQueue", "consumer"): (3.0, 0.59),
    ("TaskQueue", "put"): (42.0, 0.89),
    ("TaskQueue", "consumer"): (8.0, 0.63),
}
"""At most so many microseconds of the client's processor time, and so much of what the code needed before."""

BURST: Final = {"put": 50, "consumer": 1000}

KINDS: Final = ("AsyncQueue", "EventQueue", "TaskQueue", "FileQueue")


@contextlib.asynccontextmanager
async def opened(kind: str, url: str, name: str = "cpu") -> AsyncIterator[tuple[Any, Any]]:
    """Open a queue of a kind; yields it, and the item that its codec takes."""
    import apressure

    if kind == "FileQueue":
        with tempfile.TemporaryDirectory() as directory:
            async with apressure.FileQueue(Path(directory) / "queue", fsync=False) as files:
                yield files, MESSAGE
    else:
        made: Callable[..., Any] = getattr(apressure, kind)
        async with made(name, url=url) as queue:
            yield queue, MESSAGE.decode() if kind == "TaskQueue" else MESSAGE


async def measure(kind: str, url: str, items: int) -> dict[str, float]:
    """Return microseconds of this process's processor time for a put, and for an item of a consumer."""
    async with opened(kind, url) as (queue, item):
        await queue.create()
        await queue.put(item)
        puts = items // 10
        put = []
        for _ in range(puts // BURST["put"]):
            begin = time.process_time()
            for _ in range(BURST["put"]):
                await queue.put(item)
            put.append((time.process_time() - begin) / BURST["put"])
        await queue.put_many([item] * (items - len(put) * BURST["put"] - 1))
        await queue.close()
        count, consumed = 0, []
        begin = time.process_time()
        async with queue.consumer() as consumer:
            async for _ in consumer:
                count += 1
                if count % BURST["consumer"] == 0:
                    now = time.process_time()
                    consumed.append((now - begin) / BURST["consumer"])
                    begin = now
        assert count == items, (count, items)
        faster = sorted(consumed)[: len(consumed) // 2]
        await queue.delete()
    return {"put": 1e6 * min(put), "consumer": 1e6 * sum(faster) / len(faster)}


def in_a_process(root: Path, kind: str, url: str, items: int) -> dict[str, float]:
    """Measure the package of a checkout in a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, "--measure", kind, "--url", url, "--items", str(items)],
        env=os.environ | {"PYTHONPATH": str(root)}, cwd=root, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def compare(kind: str, url: str, items: int, repetitions: int, roots: list[Path]) -> list[dict[str, float]]:
    """Measure the checkouts in turn; returns the least figures of each."""
    runs: list[list[dict[str, float]]] = [[] for _ in roots]
    for _ in range(repetitions):
        for root, done in zip(roots, runs, strict=True):
            done.append(in_a_process(root, kind, url, items))
    return [{what: min(one[what] for one in done) for what in done[0]} for done in runs]


def shown(kind: str, figures: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Print the figures of a kind, ours first; returns them as rows."""
    rows = []
    for what, ours in figures[0].items():
        row: dict[str, Any] = {"kind": kind, "what": what, "microseconds": ours}
        line = f"{kind + ' ' + what:22}{ours:8.2f} µs"
        most, share = GOALS.get((kind, what), (None, None))
        if most is not None:
            line += f" (goal {most:g})"
        if len(figures) > 1:
            row["ratio"] = ratio = ours / figures[1][what]
            line += f", against {figures[1][what]:.2f}: {ratio:.3f}"
            if share is not None:
                line += f" (goal {share:g}: {'reached' if ratio <= share else 'missed'})"
        print(line, flush=True)
        rows.append(row)
    return rows


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.cpu", description=__doc__)
    parser.add_argument("--against", type=Path, metavar="DIRECTORY", help="another checkout, which runs in turn")
    parser.add_argument("--kind", choices=KINDS, help="this kind of queue only")
    parser.add_argument("--items", type=int, default=50_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, too")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(asyncio.run(measure(options.measure, options.url, options.items))))
        return
    import apressure
    from apressure.embedded import EmbeddedServer

    roots = [Path(apressure.__file__).parents[1], *([options.against.absolute()] if options.against else [])]
    rows = []
    with EmbeddedServer(tcp=True) as server:
        for kind in [options.kind] if options.kind else KINDS:
            rows += shown(kind, compare(kind, server.url, options.items, options.repetitions, roots))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
