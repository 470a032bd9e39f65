"""Run the comparisons on every server of this machine: medians of interleaved repetitions, as ratios.

Usage: python -m tests.benchmarks [--quick] [--only WORD] [--loop asyncio|uvloop] [--repetitions N]
                                  [--libraries DIRECTORY] [--json FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from apressure.embedded import EmbeddedServer
from tests.benchmarks import compare, show
from tests.benchmarks.cases import CASES
from tests.benchmarks.figures import Figure
from tests.benchmarks.libraries import DIFFERENCE, LIBRARIES, Library, Program, install
from tests.servers import KINDS, CannotRun, binary_of


def main() -> None:
    """Parse the arguments, measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, once, on asyncio")
    parser.add_argument("--loop", choices=compare.loops(), help="on this event loop only")
    parser.add_argument("--only", default="", metavar="WORD", help="only comparisons whose name has this")
    parser.add_argument("--repetitions", type=int, metavar="N", help="5 by default; of libraries, 3 at the most")
    parser.add_argument("--libraries", type=Path, metavar="DIRECTORY", help="install and compare others there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, too")
    options = parser.parse_args()
    plan = Plan(
        options.only,
        0.1 if options.quick else 1.0,
        options.repetitions or (1 if options.quick else 5),
        [options.loop] if options.loop else ["asyncio"] if options.quick else compare.loops(),
    )
    about = machine()
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    left_out: list[str] = []
    figures = list(run(plan, options.libraries, left_out))
    if versions := show.versions(figures):
        print(f"\n{DIFFERENCE}\nVersions: {versions}")
    for what in left_out:
        print(f"left out: {what}")
    if options.json:
        results = {
            "machine": about,
            "repetitions": plan.repetitions,
            "figures": [dataclasses.asdict(figure) for figure in figures],
            "left_out": left_out,
        }
        options.json.write_text(json.dumps(results, indent=2) + "\n")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        only: Only comparisons whose name contains this.
        scale: How much of the work to do.
        repetitions: How often to repeat each measurement.
        loops: The event loops for benchmarks of one process.
    """

    only: str
    scale: float
    repetitions: int
    loops: list[str]

    def has(self, name: str) -> bool:
        """Return whether to make a comparison of that name."""
        return self.only in name


def run(plan: Plan, environments: Path | None, left_out: list[str]) -> Iterator[Figure]:
    """Measure and print. Add to `left_out` what cannot be measured here."""
    programs = dict(installed(plan, environments, left_out))
    for server in servers(left_out):
        print(
            f"\n{compare.title(server)}: ours, theirs, and the median ratio of {plan.repetitions} repetitions in turn"
        )
        yield from code_by_hand(plan, server)
        yield from libraries(plan, programs, server, left_out)


def code_by_hand(plan: Plan, server: EmbeddedServer) -> Iterator[Figure]:
    """Compare with code by hand."""
    for case in CASES:
        if plan.has(f"{case.name} / {case.other}"):
            for loop in plan.loops if case.one_process else ["asyncio"]:
                yield from shown(*compare.with_code_by_hand(case, server, loop, plan.scale, plan.repetitions))


def libraries(
    plan: Plan, programs: dict[Library, Program], server: EmbeddedServer, left_out: list[str]
) -> Iterator[Figure]:
    """Compare with other libraries."""
    for library, program in programs.items():
        try:
            yield from shown(*compare.with_library(library, program, server, plan.scale, min(3, plan.repetitions)))
        except CannotRun as failure:
            left_out.append(f"{library.name} on {compare.title(server)}: {failure}")


def installed(plan: Plan, environments: Path | None, left_out: list[str]) -> Iterator[tuple[Library, Program]]:
    """Return the selected libraries that can be installed."""
    for library in LIBRARIES:
        if plan.has(f"enqueue / {library.name}") or plan.has(f"consume / {library.name}"):
            try:
                if environments is None:
                    raise CannotRun("`--libraries DIRECTORY` would install it")
                yield library, install(library, environments.absolute())
            except CannotRun as missing:
                left_out.append(f"{library.name}: {missing}")


def servers(left_out: list[str]) -> Iterator[EmbeddedServer]:
    """Run the servers of this machine."""
    for kind in KINDS:
        try:
            binary = binary_of(kind)
        except CannotRun as missing:
            left_out.append(str(missing))
            continue
        with EmbeddedServer(binary=binary, tcp=True) as server:
            yield server


def shown(*figures: Figure) -> Iterator[Figure]:
    """Print figures as they come."""
    for figure in figures:
        print(show.line(figure), flush=True)
        yield figure


def machine() -> dict[str, str]:
    """Describe the machine and the versions."""
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "system": platform.system(),
        "python": platform.python_version(),
        "apressure": version("apressure"),
        "redis-py": version("redis"),
        "hiredis": version("hiredis"),
    }


if __name__ == "__main__":
    main()
