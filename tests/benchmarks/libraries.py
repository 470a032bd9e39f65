"""The other libraries: names, goals, and an environment for each."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.environments import ROOT, environment, installed, last_line, mark, run
from tests.servers import CannotRun

DIFFERENCE = (
    "The libraries: one worker process each, on uvloop (BullMQ: on Node). Theirs are jobs that have ids and retries, "
    "and results if wanted, for any number of workers; ours are the messages of one bounded queue, in order, for one "
    "consumer at a time. A worker that dies loses a batch of FastStream's lists; the others' jobs, and our messages, "
    "are not lost."
)
"""What has to be known to read the comparison."""


@dataclasses.dataclass(frozen=True)
class Library:
    """A library to compare with.

    Attributes:
        name: The name, as its authors spell it.
        requirements: What pip installs.
        enqueue, consume: How many jobs are measured, for about a second each. A queue to consume from has as many as
            were enqueued, and one fifth more.
        goals: How many times as fast apressure should enqueue and consume.
        node: What npm installs if there is Node; the .cjs file is then measured.
    """

    name: str
    requirements: tuple[str, ...]
    enqueue: int
    consume: int
    goals: tuple[float, float] = (10.0, 10.0)
    node: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """The module that measures the library."""
        return f"tests.benchmarks.others.{self.name.lower()}"

    def counts(self, scale: float) -> dict[str, int]:
        """How many jobs are enqueued and consumed when so much of the work is done."""
        return {"enqueue": int(self.enqueue * scale), "consume": int(self.consume * scale)}


BULLMQ = Library("BullMQ", ("bullmq", "hiredis"), 30_000, 20_000, node=("bullmq", "ioredis"))

LIBRARIES = (
    Library("arq", ("arq",), 6_000, 4_000),
    # SAQ imports typing_extensions without declaring it.
    Library("SAQ", ("saq[redis,hiredis]", "typing-extensions"), 10_000, 4_000),
    Library("taskiq", ("taskiq", "taskiq-redis", "hiredis"), 6_000, 4_000),
    Library("streaQ", ("streaq",), 15_000, 3_000),
    BULLMQ,
    Library("RQ", ("rq", "hiredis"), 10_000, 1_000),
    Library("FastStream", ("faststream[redis]", "hiredis"), 200_000, 100_000, goals=(2.0, 5.0)),
)

OURS = Library("apressure", (), 400_000, 300_000)

DOCKET = Library("docket", ("pydocket", "hiredis"), 5_000, 5_000)
"""What only `nox -s bench -- control` compares with."""


@dataclasses.dataclass(frozen=True)
class Program:
    """The program that measures a library on this machine."""

    command: tuple[str, ...]
    environment: dict[str, str]

    def measure(self, what: str, url: str, count: int, *terms: str) -> tuple[float, dict[str, str]]:
        """Return jobs a second, and the versions.

        Raises:
            CannotRun: The program failed; the message has its last line of output.
        """
        try:
            done = subprocess.run(
                [*self.command, what, url, str(count), *terms],
                cwd=ROOT,
                env={**os.environ, **self.environment},
                capture_output=True,
                text=True,
                check=True,
                timeout=120,
            )
        except subprocess.SubprocessError as failure:
            raise CannotRun(f"{what}: {last_line(failure)}") from None
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result["rate"], result["versions"]


def ours() -> Program:
    """Return the same measurement of apressure."""
    return Program((sys.executable, "-m", "tests.benchmarks.ours"), {})


def install(library: Library, environments: Path) -> Program:
    """Install a library into its environment, if it is not there yet.

    Raises:
        CannotRun: The library cannot be installed here.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if library.node and node and npm:
        place = environments / f"{library.name.lower()}-node"
        if not installed(place, library.node):
            run(npm, "install", "--prefix", str(place), "--no-audit", "--no-fund", "--loglevel=error", *library.node)
            mark(place, library.node)
        script = ROOT / "tests/benchmarks/others" / f"{library.name.lower()}.cjs"
        return Program((node, str(script)), {"NODE_PATH": str(place / "node_modules")})
    return Program((str(python_of(library, environments)), "-m", library.module), {})


def python_of(library: Library, environments: Path) -> Path:
    """Return the Python of a library's environment, after installing what is not there yet.

    Raises:
        CannotRun: The library cannot be installed here.
    """
    requirements = (*library.requirements, "uvloop; sys_platform != 'win32'")
    return environment(environments / library.name.lower(), requirements)
