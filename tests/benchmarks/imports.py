"""Compare `import apressure` with `import redis.asyncio`, in fresh interpreters, in turn.

Usage: python -m tests.benchmarks.imports [--repetitions N]

The figure is processor time (user and system), which other programs disturb least. Both sides run from compiled
bytecode, as an installed package does, even if the environment forbids writing bytecode.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile

from tests.benchmarks import show
from tests.benchmarks.figures import Figure, figure

OURS = "import apressure"
BY_HAND = "import redis.asyncio"
GOAL = 1.15


def seconds(statement: str, environment: dict[str, str]) -> float:
    """Return the processor time of a fresh interpreter that runs a statement."""
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], env=environment, check=True)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime


def beyond() -> list[str]:
    """Return the modules that our import loads and redis-py's does not."""
    program = (
        f"import sys; {BY_HAND}; before = set(sys.modules); {OURS}; "
        "print(*sorted(set(sys.modules) - before), sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def measure_import(repetitions: int) -> Figure:
    """Run both imports in turn."""
    pairs = []
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        for _ in range(repetitions + 1):  # the first one compiles
            pairs.append((seconds(OURS, environment), seconds(BY_HAND, environment)))
    return figure("", OURS, BY_HAND, "", "s", GOAL, pairs[1:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.imports", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=15)
    options = parser.parse_args()
    print(show.line(measure_import(options.repetitions)))
    modules = beyond()
    others = [name for name in modules if name.partition(".")[0] != "apressure"]
    print(f"modules beyond redis.asyncio: {len(modules)}, of them not ours: {', '.join(others) or 'none'}")


if __name__ == "__main__":
    main()
