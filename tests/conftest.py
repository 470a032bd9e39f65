"""Fixtures with real servers.

* `server`: each server of this machine in turn (`valkey`, `redis`), one process for the whole run.
* `url`: its address, with an empty database; a test that leaves keys fails, unless it has the marker `leaves_keys`.
* `make_server`: servers of one test, to freeze, kill, protect by a password, or run out of memory.
* `blueque_python`: the Python that has the released blueque.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import apressure.logs
from apressure.embedded import EmbeddedServer
from tests.blueque import NAME, REQUIREMENTS
from tests.environments import shared_environment
from tests.servers import KINDS, SERVERS, CannotRun, binary_of, keys_left_behind, refresh

# Here, because every process of a run reads this file.
pytest_plugins = ("tests.parallel", "tests.processes", "tests.selection", "tests.chaos.table")

_failed = pytest.StashKey[bool]()

# A run starts hundreds of processes. With this variable, which images of containers like to set, each of them compiles
# the package and the tests again, which takes three times as long as to start it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A run in the background or under nohup ignores signals, and so would every command that tests interrupt.
for _signal, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_signal) == signal.SIG_IGN:
        signal.signal(_signal, _handler)


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    """Reset what the process remembers of other tests: which warnings were logged often, and the length of previews."""
    # Not with the fixture `monkeypatch`: a test's own patches would last until other fixtures have ended.
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(apressure.logs, "_limit", apressure.logs.Limit())
        patches.setattr(apressure.logs, "_previewed", 0)
        yield


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
    """The address of an empty database. Keys that the test leaves there fail it, unless `leaves_keys` allows them."""
    refresh(server)
    yield server.url
    if request.node.stash.get(_failed, False):
        return  # one reason is enough
    allowed: list[str] = []
    for marker in request.node.iter_markers("leaves_keys"):
        allowed += marker.args or ["*"]
    if "*" not in allowed and (left := keys_left_behind(server, allowed)):
        pytest.fail(f"the test left keys behind: {', '.join(left[:20])} ({len(left)} in all)", pytrace=False)


@pytest.fixture
def make_server() -> Iterator[Callable[..., EmbeddedServer]]:
    """Start a server for one test: `make_server("redis", config={"maxmemory": "20mb"})`."""
    with contextlib.ExitStack() as stack:

        def make(kind: str = "valkey", **arguments: Any) -> EmbeddedServer:
            made = EmbeddedServer(**{"binary": _binary_or_skip(kind), "tcp": True, **arguments})
            made.start()
            stack.callback(_thaw_and_stop, made)
            return made

        yield make


@pytest.fixture(scope="session")
def blueque_python() -> Path:
    """The Python of an environment with the released blueque. The first run of all makes it, which takes seconds."""
    try:
        return shared_environment(NAME, REQUIREMENTS)
    except CannotRun as missing:
        pytest.skip(str(missing))


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
    for kind in KINDS:
        with contextlib.suppress(CannotRun):
            program = EmbeddedServer(binary=binary_of(kind))
            lines.append(f"server: {program.software} {program.version}")
    return lines
