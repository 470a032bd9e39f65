"""Spread the tests over processes with pytest-xdist, as `nox -s tests` does. Each worker has its own servers.

Most tests wait for servers and for other processes, so there are more workers than cores.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections import Counter
from typing import Any

import pytest

WORKERS_PER_CORE = 2.5
MOST_WORKERS = 16  # more processes would only wait for the longest files

LONGEST_FIRST = (
    "tests/spark/",
    "tests/contract/",
    "tests/chaos/",
    "tests/integration/testing/test_plugin.py",
    "tests/integration/cli/test_cli.py",
    "tests/integration/test_demo.py",
    "tests/integration/interoperability/",
    "tests/integration/servers/",
    "tests/integration/shared/",
    "tests/property/",
    "tests/integration/",
)
OWN_JAVA = tuple(f"tests/spark/test_{name}.py" for name in ("kills", "pipeline", "connect", "local_cluster"))
"""These start Spark in processes of their own. All other files of tests/spark share a session, but the largest one."""
OWN_SESSION = "tests/spark/test_reading.py"
BY_CLASS = ("tests/contract/",)
"""The classes in these files take long, and share nothing."""


def workers(cores: int) -> int:
    """Return how many processes run tests on a number of cores."""
    return min(max(2, round(WORKERS_PER_CORE * cores)), MOST_WORKERS)


def unit_of(nodeid: str) -> str:
    """Return what one worker runs as a whole: a file, a class, all files that share a Spark session, or one test."""
    file, _, test = nodeid.partition("::")
    if file in OWN_JAVA:
        return nodeid
    if file.startswith(BY_CLASS) and test.startswith("Test"):
        return f"{file}::{test.partition('::')[0]}"
    return "tests/spark/" if file.startswith("tests/spark/") and file != OWN_SESSION else file


def node_of(unit: str) -> int:
    """Return the order of the units: the longest first, so that none of them starts last."""
    return next((place for place, prefix in enumerate(LONGEST_FIRST) if unit.startswith(prefix)), len(LONGEST_FIRST))


def share(files: list[str], number: int, count: int) -> list[str]:
    """Return which of the files one of several workers compiles."""
    return sorted(files)[number::count]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import a share of all test files, before each worker collects all of them.

    pytest rewrites the assertions of a file when it is first imported, which takes most of the time of a collection.
    Every worker would do that for every file. What it does for its share, the others find compiled.
    """
    config = session.config
    if not hasattr(config, "workerinput") or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    given = config.workerinput
    root = config.rootpath
    files = [str(path.relative_to(root)) for place in config.args for path in (root / place).rglob("test_*.py")]
    for file in share(files, int(given["workerid"].removeprefix("gw")), given["workercount"]):
        # A file that cannot be imported fails again in the collection, which says so.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(file.removesuffix(".py").replace(os.sep, "."))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None  # pytest-xdist reads it
    return workers(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadfile":
        return None

    from xdist.scheduler import LoadFileScheduling

    class Units(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False  # the order of the list below
    return Units(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):
        return
    tests = Counter(unit_of(item.nodeid) for item in items)
    items.sort(key=lambda item: (node_of(unit := unit_of(item.nodeid)), -tests[unit]))
