"""What `import apressure` costs beside `import redis.asyncio`, in interpreters of their own, in turn.

Usage: python -m tests.benchmarks.imports [--repetitions N] [--json FILE]

Processor time (user and system), since that is what another program beside this one disturbs least. Both run with
compiled bytecode, as an installed package has it, also where the environment forbids to write any.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

OURS = "import apressure"
BY_HAND = "import redis.asyncio"
GOAL = 1.15


def seconds(statement: str, environment: dict[str, str]) -> float:
    """Processor time of a fresh interpreter that runs a statement."""
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], env=environment, check=True)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime


def beyond() -> list[str]:
    """The modules that our import loads and redis-py's does not."""
    program = (
        f"import sys; {BY_HAND}; before = set(sys.modules); {OURS}; "
        "print(*sorted(set(sys.modules) - before), sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def measure_import(repetitions: int) -> dict[str, Any]:
    """Run both in turn, and take medians; the result has the form of the other comparisons, in seconds."""
    ours, by_hand = [], []
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        for _ in range(repetitions + 1):  # the first one compiles
            ours.append(seconds(OURS, environment))
            by_hand.append(seconds(BY_HAND, environment))
    ratio = statistics.median(a / b for a, b in zip(ours[1:], by_hand[1:], strict=True))
    figure = {
        "ours": statistics.median(ours[1:]),
        "by_hand": statistics.median(by_hand[1:]),
        "ratio": ratio,
        "goal": GOAL,
        "reached": ratio <= GOAL,
    }
    return {"case": f"{OURS} / {BY_HAND}", "figures": {"s": figure}}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.imports", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the result to this file, too")
    options = parser.parse_args()
    result = measure_import(options.repetitions)
    figure = result["figures"]["s"]
    mark = "" if figure["reached"] else "  not reached"
    print(
        f"{result['case']:48} {figure['ours'] * 1e3:6.1f} ms {figure['by_hand'] * 1e3:6.1f} ms"
        f"  ratio {figure['ratio']:.2f}  (goal <= {GOAL:g}){mark}"
    )
    modules = beyond()
    others = [name for name in modules if name.partition(".")[0] != "apressure"]
    print(f"modules beyond redis.asyncio: {len(modules)}, of them not ours: {', '.join(others) or 'none'}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
