"""How many seeds each test gets, and where these tests do not run.

They are a session of their own, since they need Python 3.12 and simloom: `nox -s simulate -- --seeds 2000`. Elsewhere
they are not collected, and the end of the output says so.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SHARES = {"test_members": 8, "test_pipe": 5, "test_leases": 4, "test_deletion": 2, "test_blocked_event_loops": 1}
"""How the seeds are shared out."""

MISSING = sys.version_info < (3, 12) or importlib.util.find_spec("simloom") is None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the tests out of a run that has not asked for seeds."""
    wanted = config.getoption("seeds") or config.getoption("seed") is not None
    if wanted and MISSING:
        raise pytest.UsageError("the simulation needs Python 3.12 or later, and simloom. Run: nox -s simulate")
    return None if wanted else True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test its share of the seeds, or the one that is to be repeated."""
    if "seed" in metafunc.fixturenames:
        one = metafunc.config.getoption("seed")
        share = SHARES[metafunc.function.__name__] / sum(SHARES.values())
        count = max(1, round(metafunc.config.getoption("seeds") * share))
        metafunc.parametrize("seed", range(count) if one is None else [one])


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.CRITICAL):
        yield
