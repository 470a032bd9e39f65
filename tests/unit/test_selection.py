"""Which tests a usual run leaves out, and `--whole` includes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import processes

ROOT = Path(__file__).parents[2]


def collected(*arguments: str) -> set[str]:
    """Return the parameters of the tests that a run includes."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider", *arguments]
    done = processes.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=True)
    return {line.partition("[")[2].rstrip("]") for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.parametrize(
    ("test", "usual", "rest"),
    [
        (
            "integration/queue/test_get.py::test_what_was_got_is_gone",
            {"valkey-plain", "valkey-scripts"},
            {"redis-plain", "redis-scripts"},
        ),
        (
            "contract/test_contract.py::TestEventQueue::test_messages_come_in_the_order_in_which_they_were_put",
            {"valkey", "redis"},
            set(),
        ),
        (
            "integration/files/test_messages.py::test_the_story_of_the_document",
            {"notified", "fsync"},
            {"threads", "listed"},
        ),
    ],
    ids=["a second server", "the server is the subject", "combinations"],
)
def test_a_usual_run_leaves_out_repeats(test: str, usual: set[str], rest: set[str]) -> None:
    assert collected(f"tests/{test}") == usual
    assert collected(f"tests/{test}", "--whole") == usual | rest
