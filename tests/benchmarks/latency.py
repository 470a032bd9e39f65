"""Measure how soon a job begins after it was put, beside other libraries: what users feel.

Usage: python -m tests.benchmarks.latency [--libraries DIRECTORY] [--rates N,N] [--seconds N] [--repetitions N]
       [--only LIBRARY]... [--json FILE] [--draw FILE]

For each library, one process puts jobs at a steady rate, and another one does them: each takes 10 milliseconds, in
which it waits, and 32 are done at a time. All take turns on one server. A figure is the median of the repetitions:
milliseconds from the call that puts a job until its handler begins, at the 50th and the 99th percentile, and
microseconds of processor time for a job of the process that puts, of the worker and of the server together.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import redis

from apressure.embedded import EmbeddedServer
from tests.benchmarks import libraries
from tests.benchmarks.__main__ import machine
from tests.benchmarks.compare import title
from tests.benchmarks.libraries import Library, python_of
from tests.benchmarks.svg import GREY, Axis, dot, picture, rectangle, text
from tests.benchmarks.watch import cpu
from tests.environments import ROOT
from tests.servers import CannotRun

OURS: Final = ("AsyncQueue", "TaskQueue")
CELERY: Final = Library("Celery", ("celery[redis]", "hiredis"), 0, 0)
OTHERS: Final[dict[str, Library]] = {
    **{one.name: one for one in libraries.LIBRARIES if one.name in ("arq", "SAQ", "taskiq", "streaQ", "BullMQ")},
    "arq, poll_delay=0.01": libraries.LIBRARIES[0],
    "Celery": CELERY,
}
ROW: Final = 34
OURS_COLOUR: Final = "#2f6fde"
PATIENCE: Final = 60.0
"""Seconds after the time of the jobs in which a worker must have done them: it does not keep up otherwise."""


def once(python: Path, name: str, server: EmbeddedServer, rate: float, count: int) -> dict[str, Any]:
    """Put and do so many jobs of a library on an empty server, and return the figures.

    Raises:
        CannotRun: It failed, or did not keep up.
    """
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        before = cpu(client)
        command = (str(python), "-m", "tests.benchmarks.others.steady", name)

        with contextlib.ExitStack() as processes, tempfile.TemporaryFile("w+") as errors:

            def started(what: str, *arguments: str) -> subprocess.Popen[str]:
                process = subprocess.Popen(
                    [*command, what, server.url, *arguments], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
                    stdout=subprocess.PIPE, stderr=errors, text=True,
                )  # fmt: skip
                processes.enter_context(process)
                processes.callback(process.kill)
                return process

            put = done = ""
            try:
                worker = started("work", str(count))
                if started("produce", "0", "1").communicate(timeout=PATIENCE)[0] and _is_ready(worker):
                    put, _ = started("produce", str(count), str(rate)).communicate(
                        timeout=1.2 * count / rate + PATIENCE
                    )
                    done = worker.communicate(timeout=PATIENCE)[0].partition("\n")[0] if put else ""
            except subprocess.TimeoutExpired:
                raise CannotRun(f"does not keep up with {rate:g} jobs a second") from None
            if not put or not done:
                errors.seek(0)
                lines = errors.read().strip().splitlines()
                raise CannotRun(lines[-1] if lines else "it ended without a result")
        spent = cpu(client) - before
    produced, worked = json.loads(put), json.loads(done)
    late = statistics.quantiles([1000 * one for one in worked["late"]], n=100)
    each = (produced["cpu"] + worked["cpu"]) / count + spent / (1.2 * count)
    return {
        "p50": late[49], "p99": late[98], "cpu": 1e6 * each, "reached": produced["rate"], "version": worked["version"],
    }  # fmt: skip


def measured(
    pythons: dict[str, Path], server: EmbeddedServer, rate: float, seconds: float, repetitions: int
) -> list[dict[str, Any]]:
    """Measure all in turn at a rate; prints a line for each, and returns the rows."""
    count = int(rate * seconds)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in pythons}
    for _ in range(repetitions):
        for name in list(found):
            try:
                found[name].append(once(pythons[name], name, server, rate, count))
            except CannotRun as error:
                if name in OURS:
                    raise
                print(f"{name:22}{rate:6g}/s  left out: {error}", flush=True)
                del found[name]
    rows = []
    for name, each in found.items():
        row = {figure: statistics.median(one[figure] for one in each) for figure in ("p50", "p99", "cpu", "reached")}
        rows.append({"library": name, "version": each[0]["version"], "rate": rate, **row})
        print(
            f"{name:22}{rate:6g}/s{row['p50']:10.2f} ms p50{row['p99']:10.2f} ms p99{row['cpu']:9.0f} µs of CPU"
            f"{row['reached']:9.0f} puts a second",
            flush=True,
        )
    return rows


def _is_ready(worker: subprocess.Popen[str]) -> bool:
    """Wait until a worker says so. Celery's has a banner."""
    return worker.stdout is not None and any(line == "ready\n" for line in worker.stdout)


def table(results: dict[str, Any]) -> str:
    """Return the results as a table: a row for each library."""
    rates = sorted({row["rate"] for row in results["rows"]})
    cells: dict[str, dict[float, dict[str, Any]]] = {}
    for row in results["rows"]:
        cells.setdefault(f"{row['library']} ({row['version']})", {})[row["rate"]] = row
    heads = [f"{rate:g}/s: {what}" for rate in rates for what in ("p50", "p99", "CPU a job")]
    lines = [f"| | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    for name, by_rate in cells.items():
        texts: list[str] = []
        for rate in rates:
            row = by_rate.get(rate, {})
            texts += [f"{row['p50']:.1f} ms", f"{row['p99']:.1f} ms", f"{row['cpu']:.0f} µs"] if row else ["-"] * 3
        lines.append(f"| {name} | {' | '.join(texts)} |")
    return "\n".join(lines)


def drawing(results: dict[str, Any]) -> str:
    """Return a plot: a panel for each rate, with a row for each library and a dot for each percentile."""
    rates = sorted({row["rate"] for row in results["rows"]})
    names = list(dict.fromkeys(row["library"] for row in results["rows"]))
    top, bottom, width = 96, 96 + ROW * len(names), 360
    axis_values = [row[percentile] for row in results["rows"] for percentile in ("p50", "p99")]
    parts = [text(24, top + ROW * (place + 0.5) + 5, name, size=14) for place, name in enumerate(names)]
    for panel, rate in enumerate(rates):
        left = 220.0 + width * panel
        axis = Axis(axis_values, left, left + width - 60)
        parts += [text(left, top - 12, f"{rate:g} jobs a second", size=14), *axis.grid(top, bottom)]
        for row in results["rows"]:
            if row["rate"] == rate:
                y = top + ROW * (names.index(row["library"]) + 0.5)
                colour = OURS_COLOUR if row["library"] in OURS else GREY
                low, high = axis.x(row["p50"]), axis.x(row["p99"])
                parts += [rectangle(low, y - 1, high - low, 2, colour), dot(low, y, colour), dot(high, y, colour, True)]
    about = f"a full dot is the median, an empty one the 99th percentile; {results['machine']['machine']}"
    total = 220 + width * len(rates)
    return picture(total, bottom + 36, "Milliseconds from put until the handler begins", about, parts)


def pythons_of(names: Sequence[str], place: Path) -> dict[str, Path]:
    """Return the Python of each side, after installing what is not there yet."""
    found = {name: Path(sys.executable) for name in OURS}
    for name in names:
        try:
            found[name] = python_of(OTHERS[name], place)
        except CannotRun as error:
            print(f"{name:22}left out: {error}", flush=True)
    return found


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.latency", description=__doc__)
    parser.add_argument("--libraries", type=Path, default=Path("libraries"), metavar="DIRECTORY", help="environments")
    parser.add_argument("--rates", default="100,1000", metavar="N,N", help="jobs a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each is measured at each rate")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--only", choices=OTHERS, action="append", help="compare with this library only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, too")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="draw them")
    options = parser.parse_args()
    rates = [float(rate) for rate in options.rates.split(",")]
    pythons = pythons_of(options.only or list(OTHERS), options.libraries)
    with EmbeddedServer(tcp=True) as server:
        results = {"machine": {**machine(), "server": title(server)}, "rows": []}
        for rate in rates:
            results["rows"] += measured(pythons, server, rate, options.seconds, options.repetitions)
    print(f"\n{table(results)}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    if options.draw:
        options.draw.write_text(drawing(results))


if __name__ == "__main__":
    main()
