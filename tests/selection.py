"""Which tests a run includes: by default, each test on one server, and not every combination of its arguments.

`--whole` includes the rest: all tests on Valkey and on Redis, and all combinations (`nox -s whole`).
"""

from __future__ import annotations

import pytest

SERVER_IS_THE_SUBJECT = (
    "tests/chaos/test_failover.py",
    "tests/chaos/test_members_failover.py",
    "tests/contract/",
    "tests/integration/interoperability/",
    "tests/integration/recovery/",
    "tests/integration/servers/",
    "tests/property/",
)
"""These run on both servers in every run: what they test is what the servers answer."""

MARKERS = (
    "second_server: repeats a test on Redis; runs where the server is the subject, and with --whole",
    "combination: repeats a test with arguments whose code other tests run; runs with --whole",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("selection").addoption(
        "--whole", action="store_true", help="all tests on both servers, and all combinations of their arguments"
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def repeats(item: pytest.Item) -> bool:
    """Return whether a test repeats what others of a usual run show."""
    if item.get_closest_marker("combination"):
        return True
    return bool(item.get_closest_marker("second_server")) and not item.nodeid.startswith(SERVER_IS_THE_SUBJECT)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("whole"):
        return
    repeated = [item for item in items if repeats(item)]
    if repeated:
        config.hook.pytest_deselected(items=repeated)
        items[:] = [item for item in items if not repeats(item)]
