"""The randomness of a chaos test, and its rows in the table (see table.py)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.chaos.support import SEED, Recorder
from tests.chaos.table import PROPERTY


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/chaos/" in item.nodeid:
            item.add_marker(pytest.mark.chaos)


@pytest.fixture
def recorder(request: pytest.FixtureRequest) -> Iterator[Recorder]:
    """Collects the rows of the table."""
    recorder = Recorder()
    yield recorder
    request.node.user_properties.append((PROPERTY, recorder.rows()))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """The randomness of one test: its own, whatever ran before."""
    print(f"APRESSURE_SEED={SEED}")  # pytest shows it when the test fails
    return random.Random(f"{SEED} {request.node.nodeid}")
