"""Every test file can be read on a machine that lacks what only some tests need."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import processes

TESTS = Path(__file__).parents[1]
ONLY_SOME_NEED = ("pyspark", "pyarrow")
LACKING = f"""
import sys
import pytest

class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ONLY_SOME_NEED}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Lacking())
sys.exit(pytest.main(sys.argv[1:]))
"""


def test_without_spark() -> None:
    """On a machine without Java, nox installs no PySpark. Files that never name Spark need not be read for this."""
    files = [
        str(path)
        for path in sorted(TESTS.rglob("test_*.py"))
        if "spark" in path.read_text().lower() and "simulation" not in path.parts
    ]
    options = ("--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "no:randomly")
    command = [sys.executable, "-c", LACKING, *options, *files]
    environment = {name: value for name, value in os.environ.items() if name != "APRESSURE_REQUIRE_ALL"}
    done = processes.run(
        command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == pytest.ExitCode.OK, done.stdout[-3000:] + done.stderr[-1000:]
