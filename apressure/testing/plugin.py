"""A pytest plugin: a server for each test, queues on it, faults, and a check of what the test leaves behind.

It is in effect where you ask for it, with `pytest_plugins = ["apressure.testing.plugin"]` in the top `conftest.py` or
with `-p apressure.testing.plugin`. There is no entry point, so installing apressure changes no test run.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest

from apressure.embedded import EmbeddedServer
from apressure.exceptions import MissingExtraError
from apressure.pressure.queue import AsyncQueue
from apressure.testing.faults import ask
from apressure.testing.leftovers import KINDS
from apressure.testing.proxy import Proxy
from apressure.testing.server import PressureServer, report

_SCOPES: Final = ("function", "class", "module", "package", "session")
_MARKER: Final = "pressure_leaves"

_failed = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the ini setting that choose the server."""
    text = "the server of apressure's fixtures: embedded, fake, or the URL of an empty database of a server"
    parser.getgroup("apressure").addoption("--pressure-server", metavar="SERVER", help=text)
    parser.addini("pressure_server", text, default="embedded")


def pytest_configure(config: pytest.Config) -> None:
    """Check the server's address, and register the marker."""
    config.addinivalue_line(
        "markers", f"{_MARKER}(*kinds): the test may leave these behind: {', '.join(KINDS)} (all without arguments)"
    )
    chosen = _chosen(config)
    if chosen not in ("embedded", "fake"):
        try:
            Proxy(chosen)
        except ValueError as error:
            raise pytest.UsageError(f"pressure_server must be embedded, fake or a URL: {error}") from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note which tests failed: one reason is enough."""
    made = yield
    if made.failed:
        item.stash[_failed] = True
    return made


@pytest.fixture(scope="session")
def _pressure_target(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The address of the server of this process of the run; None for fakeredis."""
    chosen = _chosen(request.config)
    if chosen == "fake":
        yield None
    elif chosen == "embedded":
        with EmbeddedServer() as server:
            yield server.url
    else:
        worker = getattr(request.config, "workerinput", {}).get("workerid", "gw0")
        yield _empty_database(chosen, int(worker.removeprefix("gw")))


@pytest.fixture
def _pressure_place(
    request: pytest.FixtureRequest, _pressure_target: str | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PressureServer]:
    """The server of one test, and at its end the verdict on what was left behind."""

    def directory() -> Any:
        return tmp_path_factory.mktemp("pressure")

    allowed: set[str] = set()
    for marker in request.node.iter_markers(_MARKER):
        allowed.update(marker.args or KINDS)
    if _pressure_target is None:
        server = PressureServer(None, True, _fake_server(), directory, allowed)
        yield server
        _finish(server)
    else:
        with Proxy(_pressure_target) as proxy:
            server = PressureServer(proxy, _chosen(request.config) == "embedded", None, directory, allowed)
            yield server
            _finish(server)
        ask(_pressure_target, b"FLUSHDB")
    if allowed.difference(KINDS):
        pytest.fail(f"{_MARKER} allows {', '.join(KINDS)}, and not {min(allowed.difference(KINDS))!r}", pytrace=False)
    if not request.node.stash.get(_failed, False) and (text := report(server.left, allowed)):
        pytest.fail(text, pytrace=False)


@pytest.fixture
def pressure_server(request: pytest.FixtureRequest, _pressure_place: PressureServer) -> PressureServer:
    """A server that is empty, with faults to inject: see `PressureServer`. What the test leaves behind fails it."""
    flavour = _flavour(request)
    if flavour is None:
        return _pressure_place
    server: PressureServer = request.getfixturevalue(f"_pressure_server_{flavour}")
    return server


@pytest.fixture
def pressure_queue(request: pytest.FixtureRequest, pressure_server: PressureServer) -> AsyncQueue[Any]:  # noqa: ARG001
    """An open `AsyncQueue` of bytes without a bound. `await pressure_server.queue(...)` opens others."""
    flavour = _flavour(request)
    if flavour is None:
        pytest.fail(
            "pressure_queue needs an async test, run by pytest-asyncio or anyio. In others, use pressure_server.url",
            pytrace=False,
        )
    queue: AsyncQueue[Any] = request.getfixturevalue(f"_pressure_queue_{flavour}")
    return queue


def _flavour(request: pytest.FixtureRequest) -> str | None:
    """Return which plugin, and which event loop of it, runs the test; None for a test that is not a coroutine."""
    if "anyio_backend" in request.fixturenames:
        if request.getfixturevalue("anyio_backend_name") != "asyncio":
            pytest.fail("apressure needs asyncio: write a fixture anyio_backend that returns 'asyncio'", pytrace=False)
        return "anyio"
    function = request.function
    function = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    if not inspect.iscoroutinefunction(function) or not request.config.pluginmanager.has_plugin("asyncio"):
        return None
    marker = request.node.get_closest_marker("asyncio")
    scope = marker.kwargs.get("loop_scope") if marker is not None else None
    return f"asyncio_{scope or request.config.getini('asyncio_default_test_loop_scope') or 'function'}"


def _fixtures(flavour: str, decorate: Callable[..., Callable[[Any], Any]]) -> dict[str, Any]:
    """Return fixtures that run on the event loop of the test."""

    async def server(_pressure_place: PressureServer) -> AsyncIterator[PressureServer]:
        _pressure_place.begin()
        yield _pressure_place
        await _pressure_place.finish()

    async def queue(_pressure_place: PressureServer) -> AsyncQueue[Any]:
        return await _pressure_place.queue()

    names = f"_pressure_server_{flavour}", f"_pressure_queue_{flavour}"
    return {name: decorate(name=name)(made) for name, made in zip(names, (server, queue), strict=True)}


# pytest finds fixtures among the names of the module. An async fixture is run by the plugin that it is made for, on the
# loop that it is made for, so there is one for each.
globals().update(_fixtures("anyio", pytest.fixture))
if importlib.util.find_spec("pytest_asyncio") is not None:
    import functools

    import pytest_asyncio

    for _scope in _SCOPES:
        globals().update(_fixtures(f"asyncio_{_scope}", functools.partial(pytest_asyncio.fixture, loop_scope=_scope)))


def _chosen(config: pytest.Config) -> str:
    return str(config.getoption("--pressure-server") or config.getini("pressure_server"))


def _finish(server: PressureServer) -> None:
    """Look at what a test left behind that no event loop of a plugin has run."""
    if not server.finished:
        with ThreadPoolExecutor(1) as thread:  # a loop of its own, which leaves that of the thread of the tests alone
            thread.submit(asyncio.run, server.finish()).result()


def _fake_server() -> Callable[[], Any]:
    try:
        import fakeredis
    except ImportError:
        raise MissingExtraError(
            "--pressure-server=fake needs fakeredis. Run pip install 'apressure[testing]'", extra="testing"
        ) from None
    server = fakeredis.FakeServer()
    return lambda: fakeredis.FakeAsyncRedis(server=server)


def _empty_database(url: str, worker: int) -> str:
    """Return the address of the database of a process of the run, which must be empty: each test empties it."""
    address = urlsplit(url)
    text = parse_qs(address.query).get("db", ["0"])[0] if address.scheme == "unix" else address.path.strip("/") or "0"
    number = int(text) + worker
    changed = (
        address._replace(query=f"db={number}") if address.scheme == "unix" else address._replace(path=f"/{number}")
    ).geturl()
    if keys := ask(changed, b"DBSIZE"):
        pytest.fail(
            f"database {number} of the server has {keys} keys, and the tests would delete them. Name an empty database "
            "in pressure_server: redis://host:port/DB. (Process N of pytest-xdist uses database DB + N.)",
            pytrace=False,
        )
    return changed
