"""Which tests a run includes, and the list of what it left out.

* A usual run leaves out the tests that take long for what they find: the slow ones.
* `--slow` includes them (`nox -s tests -- --slow`), and so does APRESSURE_REQUIRE_ALL=1. A slow test also runs if the
  command line names it, its file, or a folder that is slow as a whole, and if an expression of `-m` chooses it.
* `--whole` also includes what repeats others: all tests on Valkey and on Redis, and all combinations (`nox -s whole`).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Any

import pytest

REQUIRE_ALL = os.environ.get("APRESSURE_REQUIRE_ALL") == "1"
"""Whether a run fails for each test that was left out."""

SLOW = (
    "tests/chaos/",
    "tests/contract/test_contract.py::TestFakeRedis",
    "tests/contract/test_remote.py",
    "tests/documentation/test_blocks.py::test_the_code_of_a_page_runs[do/migrate/",
    "tests/documentation/test_site.py",
    "tests/integration/cli/test_cli_health.py",
    "tests/integration/cli/test_cli_top.py::test_it_follows_the_size",
    "tests/integration/cli/test_cli_top.py::test_the_terminal_is_restored",
    "tests/integration/cli/test_cli_workers.py::test_the_processes_of_a_worker_are_listed",
    "tests/integration/event_server/test_delays.py",
    "tests/integration/event_server/test_other_languages.py",
    "tests/integration/events/remote/test_delays.py",
    "tests/integration/events/remote/test_trouble.py",
    "tests/integration/events/remote/test_words.py",
    "tests/integration/events/test_trouble.py",
    "tests/integration/files/test_cli.py",
    "tests/integration/files/test_vsqs.py",
    "tests/integration/integrations/test_web.py",
    "tests/integration/interoperability/test_traffic.py",
    "tests/integration/leases/test_lease_servers.py",
    "tests/integration/leases/test_lease_thread.py",
    "tests/integration/recovery/test_delays_deaths.py",
    "tests/integration/servers/test_all_replicas.py",
    "tests/integration/servers/test_cluster.py",
    "tests/integration/servers/test_sentinel.py",
    "tests/integration/servers/test_topologies.py",
    "tests/integration/service/test_worker.py::test_a_module_that_fails",
    "tests/integration/service/test_worker.py::test_a_process_that_somebody_else_ends",
    "tests/integration/service/test_worker.py::test_it_starts_again",
    "tests/integration/service/test_worker.py::test_the_processes_end_in_order",
    "tests/integration/shared/test_schedules_in_trouble.py",
    "tests/integration/spark/test_servers.py",
    "tests/integration/tasks/runner/test_deaths.py",
    "tests/integration/tasks/test_delays_in_trouble.py",
    "tests/integration/tasks/test_main_job.py",
    "tests/integration/tasks/test_release.py",
    "tests/integration/tasks/test_trouble.py",
    "tests/integration/test_benchmarks.py",
    "tests/integration/test_demo.py",
    "tests/integration/test_documentation.py::test_an_example_runs",
    "tests/integration/test_documentation.py::test_the_examples_show",
    "tests/integration/test_together.py",
    "tests/integration/testing/test_plugin.py::test_the_code_of_the_page_runs",
    "tests/integration/waiting/test_cost.py",
    "tests/integration/waiting/test_idle.py",
    "tests/integration/web/test_browser.py",
    "tests/integration/web/test_views.py::test_a_server_that_is_down",
    "tests/property/test_member_model.py",
    "tests/property/test_permit_model.py",
    "tests/property/test_queue_machine.py",
    "tests/property/test_role_model.py",
    "tests/spark/",
    "tests/unit/test_autoscaling.py::test_no_worker",
    "tests/unit/test_autoscaling.py::test_the_picture",
    "tests/unit/test_collection.py",
    "tests/unit/test_parallel.py",
    "tests/unit/test_processes.py::test_what_a_process_has_written",
    "tests/unit/test_selection.py",
)
"""All tests here are slow. The marker `slow` says it of single ones elsewhere."""

SERVER_IS_THE_SUBJECT = (
    "tests/chaos/test_failover.py",
    "tests/chaos/test_members_failover.py",
    "tests/contract/",
    "tests/integration/interoperability/",
    "tests/integration/recovery/",
    "tests/integration/servers/",
    "tests/integration/waiting/test_behind.py",
    "tests/property/",
)
"""These test what the servers answer. On the second server they are slow; all others run there only with --whole."""

MARKERS = (
    "slow: takes long for what it finds; runs with --slow, and if it is named",
    "second_server: repeats a test on Redis; runs with --slow where the server is the subject, and with --whole",
    "combination: repeats a test with arguments whose code other tests run; runs with --whole",
)

_slow_left_out = pytest.StashKey[int]()
_SENT = "slow_left_out"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("selection")
    group.addoption("--slow", action="store_true", help="the slow tests, too")
    group.addoption(
        "--whole", action="store_true", help="all tests on both servers, and all combinations of their arguments"
    )

    group = parser.getgroup("simulation", "the simulated world of tests/simulation")
    group.addoption("--seeds", type=int, default=0, help="how many simulated runs; 0 leaves the simulation out")
    group.addoption("--seed", type=int, default=None, help="repeat the run of one seed")
    group.addoption("--planted", action="store_true", help="prove that the simulation finds faults that are planted")


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def is_subject(item: pytest.Item) -> bool:
    """Return whether the server is what a test is about."""
    return item.nodeid.startswith(SERVER_IS_THE_SUBJECT)


def repeats(item: pytest.Item) -> bool:
    """Return whether a test repeats what others of a run show."""
    if item.get_closest_marker("combination"):
        return True
    return bool(item.get_closest_marker("second_server")) and not is_subject(item)


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.nodeid.startswith(SLOW) or (item.get_closest_marker("second_server") and is_subject(item)):
        item.add_marker("slow")


def names(config: pytest.Config) -> tuple[str, ...]:
    """Return how the ids of the tests begin that the command line names.

    A folder names its tests if it is slow as a whole: in others, people look for what usually runs there.
    """
    found: list[str] = []
    for argument in config.args:
        given, _, test = argument.partition("::")
        place = os.path.relpath(config.invocation_params.dir / given, config.rootpath).replace(os.sep, "/")
        if test:
            found.append(f"{place}::{test}")
        elif place.endswith(".py"):
            found.append(f"{place}::")
        elif f"{place}/".startswith(SLOW):
            found.append(f"{place}/")
    return tuple(found)


def includes_slow(config: pytest.Config) -> bool:
    """Return whether a run includes all slow tests."""
    chosen = re.search(r"\b(slow|chaos)\b", config.getoption("markexpr", ""))
    return bool(REQUIRE_ALL or config.getoption("slow") or config.getoption("whole") or chosen)


# At the end: without what `-k` and `-m` leave out.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    named = names(config)
    repeated: list[pytest.Item] = []
    left: list[pytest.Item] = []
    kept: list[pytest.Item] = []
    for item in items:
        if repeats(item) and not config.getoption("whole"):
            repeated.append(item)
        elif item.get_closest_marker("slow") and not includes_slow(config) and not item.nodeid.startswith(named):
            left.append(item)
        else:
            kept.append(item)
    config.stash[_slow_left_out] = len(left)
    if repeated or left:
        config.hook.pytest_deselected(items=[*repeated, *left])
        items[:] = kept


def skipped(config: pytest.Config) -> Counter[str]:
    """Return the reasons for skipped tests, and how many tests each one skipped."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reasons: Counter[str] = Counter()
    for report in reporter.stats.get("skipped", []) if reporter else []:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")] += 1
    return reasons


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput[_SENT] = config.stash.get(_slow_left_out, 0)
    if REQUIRE_ALL and exitstatus == pytest.ExitCode.OK and skipped(config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    # Each worker collects all tests. One that crashed sends nothing.
    sent = getattr(node, "workeroutput", {}).get(_SENT, 0)
    node.config.stash[_slow_left_out] = max(sent, node.config.stash.get(_slow_left_out, 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.section("what this machine could not run")
    reasons = skipped(config)
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"could not run on this machine: {reason} [{count} skipped]")
    if not reasons:
        terminalreporter.line("it could run everything")
    elif REQUIRE_ALL:
        terminalreporter.line("APRESSURE_REQUIRE_ALL is set: the run fails for what was left out", red=True)
    if count := config.stash.get(_slow_left_out, 0):
        found = f"{count:,} slow {'tests' if count > 1 else 'test'}"
        terminalreporter.line(f"not part of this run: {found} (nox -s tests -- --slow)")
    if not (config.getoption("seeds") or config.getoption("planted")) and config.getoption("seed") is None:
        terminalreporter.line("not part of this run: the simulation (nox -s simulate, with Python 3.12 or later)")
