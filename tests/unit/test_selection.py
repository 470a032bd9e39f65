"""Which tests a usual run leaves out, and `--whole` includes."""

from __future__ import annotations

import functools
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
"""For each a test, the parameters with which a usual run includes it, and those of the rest."""


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
