"""Compare delays, limits, keys and idempotent puts with those of docket and BullMQ, where they have them.

`nox -s bench -- control` does it. Jobs are put one at a time, and then a worker in a new process does them, 32 at a
time; ours is `serve`. In each repetition all take turns on the same server. A figure is the median of the ratios.

- "plain": none of it.
- "once": each job has an id of its own, and is known by it until it is done (`dedup_id=`, docket's `key=`, BullMQ's
  `deduplication`).
- "again": each job has the id of one that waits, and is refused.
- "rate": a rate that is never reached (`set_rate`, `RateLimit`, `limiter`).
- "keys": each job has one of 10,000 keys, and one of a key is done at a time (`key=`, `ConcurrencyLimit`). BullMQ has
  that in its Pro version only, which is not free.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from apressure.embedded import EmbeddedServer
from tests.benchmarks import compare, show
from tests.benchmarks.figures import RATE, figure
from tests.benchmarks.libraries import BULLMQ, DOCKET, Library, Program, install, python_of
from tests.environments import ROOT, last_line
from tests.servers import CannotRun

LIBRARIES: Final = (DOCKET, BULLMQ)
OURS: Final = ("EventQueue", "TaskQueue")
BOTH: Final = ("enqueue", "consume")
WHAT: Final = {"plain": BOTH, "once": BOTH, "again": ("enqueue",), "rate": BOTH, "keys": BOTH}
"""What is measured, by the terms. What is refused cannot be done."""

LACKS: Final = {(BULLMQ.name, "keys")}


def lateness(place: Path, url: str, count: int, repetitions: int) -> list[dict[str, Any]]:
    """Print how late delayed jobs of other libraries come, and return it as rows."""
    rows = []
    for library in LIBRARIES:
        name, module = library.name, "tests.benchmarks.others.late"
        try:
            command = (str(python_of(library, place)), "-m", module, name.lower(), url, str(count))
            found = [
                json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=300).stdout)
                for _ in range(repetitions)
            ]
        except (CannotRun, subprocess.SubprocessError) as error:
            print(f"{name:12}left out: {last_line(error)}", flush=True)
            continue
        late, version = statistics.median(one["late"] for one in found), found[0]["version"]
        print(f"{name:12}{'late':18}{late:9.3f} ms at the 99th percentile (version {version})", flush=True)
        rows.append({"kind": name, "what": "late", "value": late, "version": version})
    return rows


def programs(place: Path, libraries: Sequence[Library] = LIBRARIES) -> Iterator[tuple[str, Program]]:
    """Return what measures our queues and libraries, after installing these."""
    for kind in OURS:
        yield kind, Program((sys.executable, "-m", "tests.benchmarks.served", kind), {})
    for library in libraries:
        try:
            yield library.name, install(library, place)
        except CannotRun as error:
            print(f"{library.name:12}left out: {error}", flush=True)


def rates(place: Path, server: EmbeddedServer, count: int, repetitions: int) -> list[dict[str, Any]]:
    """Print how fast ours and the libraries are with each of the terms, and return it as rows."""
    everyone = dict(programs(place))
    rows = []
    for terms, what in WHAT.items():
        counts = dict.fromkeys(what, count)
        sides = {name: program for name, program in everyone.items() if (name, terms) not in LACKS}
        found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        versions: dict[str, dict[str, str]] = {}
        for _ in range(repetitions):
            for name, program in list(sides.items()):
                try:
                    measured, versions[name] = compare.one_round(program, server.url, counts, terms)
                    found[name].append(measured)
                except CannotRun as error:
                    if name in OURS:
                        raise
                    print(f"{name:12}{terms:18}left out: {error}", flush=True)
                    del sides[name]
        for other in [name for name in sides if name not in OURS]:
            for each in what:
                for kind in OURS:
                    pairs = [(a[each], b[each]) for a, b in zip(found[kind], found[other], strict=True)]
                    rows.append(row(kind, f"{terms}, {each}", other, pairs, versions[other]))
    return rows


def row(kind: str, what: str, other: str, pairs: list[tuple[float, float]], versions: dict[str, str]) -> dict[str, Any]:
    """Print the ratio of ours to another one, and return it as a row. Our goal is not to be slower."""
    one = figure("", f"{kind}, {what}", other, compare.loop_of(versions), RATE, 1.0, pairs, versions)
    print(show.line(one), flush=True)
    return {
        "kind": kind, "what": f"{what} / {other}", "value": one.ratio, "goal": one.goal, "reached": one.reached,
        "ours": one.ours, "theirs": one.theirs, "versions": versions,
    }  # fmt: skip
