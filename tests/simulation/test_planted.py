"""Faults that are planted in a copy of the package: the simulation finds each of them within 2,000 seeds.

`nox -s simulate -- --planted` runs this, and nothing else of the simulation; its end lists what each fault took.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import apressure
from tests.simulation.planted import FAULTS, SEEDS, Fault, copy_of

TESTS = Path(__file__).parents[1]


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_is_found(fault: Fault, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    fault.plant(copy_of(Path(apressure.__path__[0]), tmp_path))
    (tmp_path / "tests").symlink_to(TESTS)
    hunting = subprocess.run(
        [sys.executable, "-m", "tests.simulation.hunt", str(SEEDS), os.fspath(tmp_path)],
        cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert hunting.returncode == 0, hunting.stderr
    found = json.loads(hunting.stdout)
    assert found is not None, f"not found within {SEEDS:,} seeds: {fault.name}"
    assert re.search(fault.shows, found["what"]), found
    record_property("planted", f"{fault.name}: {found['runs']:,} seeds, {found['test']}: {found['what'][:120]}")
