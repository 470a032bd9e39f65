"""The seed of a chaos run, and the table of what came of it."""

from __future__ import annotations

import json
import os
import random
import secrets
from pathlib import Path

import pytest

from tests.chaos.support import LONG, Recorder

_SEED = os.environ.get("APRESSURE_SEED") or secrets.token_hex(4)
_recorder = pytest.StashKey[Recorder]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_recorder] = Recorder()


def pytest_report_header() -> str:
    return f"chaos: {'long' if LONG else 'short'} form, APRESSURE_SEED={_SEED}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/chaos/" in item.nodeid:
            item.add_marker(pytest.mark.chaos)


@pytest.fixture
def recorder(request: pytest.FixtureRequest) -> Recorder:
    """Collects the rows of the table."""
    return request.config.stash[_recorder]


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """The randomness of one test: its own, whatever ran before."""
    print(f"APRESSURE_SEED={_SEED}")  # what is captured is shown when the test fails
    return random.Random(f"{_SEED} {request.node.nodeid}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    recorder = config.stash[_recorder]
    if lines := recorder.lines():
        terminalreporter.section("chaos")
        for line in lines:
            terminalreporter.line(line)
        terminalreporter.line(f"APRESSURE_SEED={_SEED}")
    if path := os.environ.get("APRESSURE_CHAOS_JSON"):
        document = {"form": "long" if LONG else "short", "seed": _SEED, "rows": recorder.rows()}
        Path(path).write_text(json.dumps(document, indent=1))
