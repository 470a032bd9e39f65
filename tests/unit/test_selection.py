"""Which tests a usual run leaves out, and `--slow` and `--whole` include."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import pytest

from tests import processes

ROOT = Path(__file__).parents[2]


CASES = {
    "a second server": (
        "tests/integration/queue/test_get.py::test_what_was_got_is_gone",
        {"valkey-plain", "valkey-scripts"},
        {"redis-plain", "redis-scripts"},
    ),
    "the server is the subject": (
        "tests/contract/test_contract.py::TestEventQueue::test_messages_come_in_the_order_in_which_they_were_put",
        {"valkey", "redis"},
        set(),
    ),
    "combinations": (
        "tests/integration/files/test_messages.py::test_the_story_of_the_document",
        {"notified", "fsync"},
        {"threads", "listed"},
    ),
}
"""For each a test, the parameters with which a run that names it includes it, and those of the rest."""

FILES = {
    "tests/chaos/test_kills.py": "def test_kills(): pass",
    "tests/integration/test_queue.py": """
import pytest
def test_usual(): pass
@pytest.mark.slow
def test_slow(): pass
""",
    "tests/contract/test_contract.py": """
import pytest
from tests.servers import SERVERS
@pytest.mark.parametrize("kind", SERVERS)
def test_contract(kind): pass
""",
    "tests/integration/test_get.py": """
import pytest
from tests.servers import SERVERS
@pytest.mark.parametrize("kind", SERVERS)
def test_get(kind): pass
""",
}
"""Tests of another project, whose runs are short."""
USUAL = {"test_usual", "test_contract[valkey]", "test_get[valkey]"}
SLOW = {"test_kills", "test_slow", "test_contract[redis]"}
REST = {"test_get[redis]"}


@functools.cache
def collected(*arguments: str) -> set[str]:
    """Return the names of the tests of all cases that a run includes: one process, since pytest takes long to start."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider", *arguments]
    tests = [test for test, *_ in CASES.values()]
    done = processes.run([*command, *tests], cwd=ROOT, capture_output=True, text=True, timeout=500, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


def parameters(test: str, *arguments: str) -> set[str]:
    """Return the parameters with which a run includes a test."""
    names = (line.partition("[") for line in collected(*arguments))
    return {given.rstrip("]") for name, _, given in names if name == test}


@pytest.mark.parametrize(("test", "usual", "rest"), CASES.values(), ids=CASES)
def test_a_usual_run_leaves_out_repeats(test: str, usual: set[str], rest: set[str]) -> None:
    assert parameters(test) == usual
    assert parameters(test, "--whole") == usual | rest


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with the tests of the other project."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    return tmp_path


def run(place: Path, *arguments: str, **variables: str) -> tuple[set[str], list[str]]:
    """Run tests of the other project in a directory; return which ones ran, and the list of what could not run."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("APRESSURE_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "tests.selection", *arguments]
    done = processes.run(
        command,
        cwd=place,
        env={**clean, "PYTHONPATH": os.fspath(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line and "simulation" not in line]
    ran = {word.rpartition("::")[2] for line in lines if "PASSED" in line for word in line.split() if "::" in word}
    (begin,) = (number for number, line in enumerate(lines) if "what this machine could not run" in line)
    return ran, lines[begin + 1 : -1]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_usual_run_leaves_out_slow_tests_and_says_so(project: Path, workers: str) -> None:
    ran, said = run(project, "-n", workers)
    assert ran == USUAL
    assert said == ["it could run everything", "not part of this run: 3 slow tests (nox -s tests -- --slow)"]


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        (["--slow"], {}, USUAL | SLOW),
        (["--whole"], {}, USUAL | SLOW | REST),
        ([], {"APRESSURE_REQUIRE_ALL": "1"}, USUAL | SLOW),
        (["-m", "slow"], {}, SLOW),
    ],
    ids=["--slow", "--whole", "APRESSURE_REQUIRE_ALL", "-m"],
)
def test_who_asks_for_slow_tests_gets_them(
    project: Path, arguments: list[str], variables: dict[str, str], expected: set[str]
) -> None:
    ran, said = run(project, "-n", "0", *arguments, **variables)
    assert (ran, said) == (expected, ["it could run everything"])


def test_a_slow_test_that_is_named_runs(project: Path) -> None:
    """By its folder, by its name, and by its file."""
    named = ("chaos", "./integration/test_queue.py::test_slow", "../tests/contract/test_contract.py")
    ran, said = run(project / "tests", "-n", "0", *named)
    assert (ran, said) == (SLOW | {"test_contract[valkey]"}, ["it could run everything"])


def test_a_folder_with_a_slow_test_names_it_not(project: Path) -> None:
    ran, said = run(project, "-n", "0", "tests/integration", "-k", "not get")
    assert ran == {"test_usual"}
    assert said[-1] == "not part of this run: 1 slow test (nox -s tests -- --slow)"
