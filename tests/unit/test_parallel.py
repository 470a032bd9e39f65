"""The list of tests that could not run, and the order of the tests, with several processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.chaos.support import Recorder, Row
from tests.parallel import node_of, share, unit_of, workers
from tests.processes import run

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("cores", "expected"), [(1, 2), (2, 5), (4, 10), (64, 16)])
def test_there_are_more_workers_than_cores(cores: int, expected: int) -> None:
    assert workers(cores) == expected


def test_the_files_that_share_a_spark_session_are_one_unit_and_begin_first() -> None:
    assert unit_of("tests/spark/test_ending.py::test_a") == unit_of("tests/spark/test_writing.py::test_b[c::d]")
    assert unit_of("tests/spark/test_reading.py::test_a") != unit_of("tests/spark/test_writing.py::test_a")
    assert unit_of("tests/spark/test_kills.py::test_a") != unit_of("tests/spark/test_kills.py::test_b")
    units = {unit_of(f"tests/{file}::test") for file in ("spark/test_kills.py", "unit/test_a.py", "chaos/test_a.py")}
    assert sorted(units, key=node_of) == [
        "tests/spark/test_kills.py::test",
        "tests/chaos/test_a.py",
        "tests/unit/test_a.py",
    ]


def test_the_classes_of_the_contract_are_units() -> None:
    file = "tests/contract/test_contract.py"
    assert unit_of(f"{file}::TestA::test_a[a::b]") == unit_of(f"{file}::TestA::test_b") == f"{file}::TestA"
    assert unit_of("tests/contract/test_pipe.py::test_a[c::d]") == "tests/contract/test_pipe.py"


def test_each_file_is_compiled_by_one_of_the_workers() -> None:
    files = [f"tests/test_{letter}.py" for letter in "gfedcba"]
    shares = [share(files, number, 3) for number in range(3)]
    assert sorted(file for one in shares for file in one) == sorted(files)
    assert {len(one) for one in shares} == {2, 3}


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_test_that_could_not_run_is_listed_and_fails_the_run_that_requires_all(
    tmp_path: Path, processes: str
) -> None:
    """The inner run has no redis-server on its PATH, and none of the variables of this one's pytest-xdist."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("APRESSURE_", "PYTEST_"))}
    done = run(
        [sys.executable, "-m", "pytest", "-q", "-n", processes, "-p", "no:cacheprovider", f"--basetemp={tmp_path}/t",
         "tests/integration/queue/test_get.py", "-k", "test_what_was_got_is_gone", "--whole"],
        cwd=ROOT,
        env={**clean, "APRESSURE_REQUIRE_ALL": "1", "PATH": os.fspath(tmp_path)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "could not run on this machine: redis-server (not installed: apt-get install redis-server) [" in done.stdout
    assert "APRESSURE_REQUIRE_ALL is set: the run fails for what was left out" in done.stdout
    assert "failed" not in done.stdout.splitlines()[-1]
    assert " passed, " in done.stdout.splitlines()[-1]


def test_tables_of_several_processes_are_added_up() -> None:
    one, other, total = Recorder(), Recorder(), Recorder()
    one.add("CLIENT KILL", "Valkey", Row(tried=2, acknowledged=5))
    other.add("CLIENT KILL", "Valkey", Row(tried=1, lost=1))
    other.add("memory full", "Redis", Row(tried=4))
    for part in (one, other):
        total.merge(part.rows())
    assert [(row["cell"], row["tried"], row["acknowledged"], row["lost"]) for row in total.rows()] == [
        ("CLIENT KILL", 3, 5, 1),
        ("memory full", 4, 0, 0),
    ]
