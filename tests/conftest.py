"""Fixtures that give tests real servers, and the account of what could not be run.

* `server`: each server of this machine in turn (`valkey`, `redis`), one process for the whole run.
* `url`: its address, empty; a test that leaves keys behind fails (marker `leaves_keys` for those that mean to).
* `make_server`: servers of the test's own, to freeze, to kill, to give a password, to run out of memory.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import apressure
from apressure.embedded import EmbeddedServer
from tests.servers import SERVERS, CannotRun, binary_of, keys_left_behind, refresh

REQUIRE_ALL = os.environ.get("APRESSURE_REQUIRE_ALL") == "1"

_failed = pytest.StashKey[bool]()

# A run in the background, or under nohup, inherits ignored signals, and so would every command that tests interrupt.
for _signal, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_signal) == signal.SIG_IGN:
        signal.signal(_signal, _handler)


@pytest.fixture(scope="session")
def valkey() -> Iterator[EmbeddedServer]:
    """A Valkey server for the whole run."""
    yield from _run_server("valkey")


@pytest.fixture(scope="session")
def redis() -> Iterator[EmbeddedServer]:
    """A Redis server for the whole run."""
    yield from _run_server("redis")


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> EmbeddedServer:
    """Each of the servers in turn."""
    found: EmbeddedServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def url(request: pytest.FixtureRequest, server: EmbeddedServer) -> Iterator[str]:
    """The address of an empty database. What the test leaves in it, beyond `leaves_keys`, is an error."""
    refresh(server)
    yield server.url
    if request.node.stash.get(_failed, False):
        return  # one cause is enough
    allowed: list[str] = []
    for marker in request.node.iter_markers("leaves_keys"):
        allowed += marker.args or ["*"]
    if "*" not in allowed and (left := keys_left_behind(server, allowed)):
        pytest.fail(f"the test left keys behind: {', '.join(left[:20])} ({len(left)} in all)", pytrace=False)


@pytest.fixture
def make_server() -> Iterator[Callable[..., EmbeddedServer]]:
    """Start a server of the test's own: `make_server("redis", config={"maxmemory": "20mb"})`."""
    with contextlib.ExitStack() as stack:

        def make(kind: str = "valkey", **arguments: Any) -> EmbeddedServer:
            made = EmbeddedServer(**{"binary": _binary_or_skip(kind), "tcp": True, **arguments})
            made.start()
            stack.callback(_thaw_and_stop, made)
            return made

        yield make


def _run_server(kind: str) -> Iterator[EmbeddedServer]:
    running = EmbeddedServer(binary=_binary_or_skip(kind), tcp=True)
    running.start()
    yield running
    _thaw_and_stop(running)


def _binary_or_skip(kind: str) -> Path:
    try:
        return binary_of(kind)
    except CannotRun as missing:
        pytest.skip(str(missing))


def _thaw_and_stop(running: EmbeddedServer) -> None:
    if running.running:
        os.kill(running.pid, signal.SIGCONT)
    running.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


def pytest_report_header() -> list[str]:
    lines = [f"apressure: {Path(apressure.__path__[0])}"]
    for kind in SERVERS:
        with contextlib.suppress(CannotRun):
            program = EmbeddedServer(binary=binary_of(kind))
            lines.append(f"server: {program.software} {program.version}")
    return lines


def _left_out(config: pytest.Config) -> Counter[str]:
    """Why tests were skipped, and how many for each reason."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reasons: Counter[str] = Counter()
    for report in reporter.stats.get("skipped", []) if reporter else []:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")] += 1
    return reasons


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if REQUIRE_ALL and exitstatus == pytest.ExitCode.OK and _left_out(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.section("what this machine could not run")
    reasons = _left_out(config)
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"could not run on this machine: {reason} [{count} skipped]")
    if not reasons:
        terminalreporter.line("everything ran")
    elif REQUIRE_ALL:
        terminalreporter.line("APRESSURE_REQUIRE_ALL is set: the run fails for what was left out", red=True)
