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

MISSING = sys.version_info < (3, 12) or importlib.util.find_spec("simloom") is None


PLANTED = "test_planted.py"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the tests out of a run that has not asked for seeds, or for planted faults."""
    planted = config.getoption("planted")
    if not (planted or config.getoption("seeds") or config.getoption("seed") is not None):
        return True
    if MISSING:
        raise pytest.UsageError("the simulation needs Python 3.12 or later, and simloom. Run: nox -s simulate")
    is_test = collection_path.name.startswith("test_")
    return True if is_test and (collection_path.name == PLANTED) is not planted else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test its share of the seeds, or the one that is to be repeated."""
    if "seed" in metafunc.fixturenames:
        from tests.simulation.hunt import count_of  # it needs simloom

        one = metafunc.config.getoption("seed")
        count = count_of(metafunc.function.__name__, metafunc.config.getoption("seeds"))
        metafunc.parametrize("seed", range(count) if one is None else [one])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what it took to find each planted fault."""
    reports = terminalreporter.stats.get("passed", [])
    if lines := [text for report in reports for name, text in report.user_properties if name == "planted"]:
        terminalreporter.section("planted faults, all found")
        for line in sorted(lines):
            terminalreporter.line(line)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.CRITICAL):
        yield
