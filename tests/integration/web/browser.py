"""A real browser for tests of the page, and the page as a process."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Callable, Coroutine, Iterator
from importlib.resources import files
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chromium.remote_connection import ChromiumRemoteConnection
from selenium.webdriver.remote.webdriver import WebDriver

from apressure import Client
from tests import processes
from tests.integration.commands import COMMAND, environment, running, wait_until

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1200,900",
)  # fmt: skip


@pytest.fixture(scope="module")
def chromedriver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of what drives Chromium."""
    program = shutil.which("chromedriver")
    if program is None or shutil.which("chromium") is None:
        pytest.skip("Chromium (not installed: apt-get install chromium chromium-driver)")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    home = {"HOME": str(tmp_path_factory.mktemp("home"))}
    with running([program, f"--port={port}"], env=environment(**home), stdout=None, stderr=None):
        wait_until(lambda: _answers(port))
        yield f"http://127.0.0.1:{port}"


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def chromium(chromedriver: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    """A browser with a profile of its own."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    connection = ChromiumRemoteConnection(chromedriver, vendor_prefix="goog", browser_name="chrome")
    driver = webdriver.Remote(command_executor=connection, options=options)
    yield driver
    driver.quit()


def emulate(chromium: WebDriver, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    chromium.execute("executeCdpCommand", {"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}})


def complaints(chromium: WebDriver) -> list[str]:
    """What the browser's console says: errors of scripts, and what the policy has refused."""
    logged: list[dict[str, Any]] = chromium.execute("getLog", {"type": "browser"})["value"]
    return [one["message"] for one in logged if one["level"] == "SEVERE" and "axe" not in one["message"]]


class Served:
    """The page as a process, at a port that it keeps."""

    def __init__(self, url: str, *options: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._command = [*COMMAND, "web", "--interval", "0.2", "--no-history", "--port", str(self.port), *options]
        self._environment = environment(url)
        self._process: processes.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = processes.Popen(self._command, env=self._environment, stdout=None, stderr=None)
        wait_until(lambda: _answers(self.port))

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=60)
            self._process = None

    def __str__(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


@pytest.fixture
def serve(url: str) -> Iterator[Callable[..., Served]]:
    """Start the page: `serve("--show-bodies")`."""
    started: list[Served] = []

    def start(*options: str) -> Served:
        started.append(Served(url, *options))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.stop()


def do(url: str, work: Callable[[Client], Coroutine[Any, Any, Any]]) -> None:
    async def done() -> None:
        async with Client(url) as client:
            await work(client)

    asyncio.run(done())


def text_of(chromium: WebDriver) -> str:
    # In one step: elements come and go while the page is open.
    text: str = chromium.execute_script(
        "const main = document.querySelector('main'); return main ? main.innerText : ''"
    )
    return text


def loaded(chromium: WebDriver, address: str, word: str) -> None:
    """Load a page, and wait until it says something."""

    def there() -> bool:
        chromium.get(address)
        return word in text_of(chromium)

    wait_until(there)


def links(chromium: WebDriver, path: str) -> list[str]:
    found: list[str] = chromium.execute_script("return [...document.querySelectorAll('a')].map((link) => link.href)")
    return sorted({link for link in found if path in link})


def problems(chromium: WebDriver) -> list[Any]:
    """What is not accessible on the page that is shown."""
    chromium.execute_script((files("axe_core_python") / "axe.min.js").read_text())
    found = chromium.execute_async_script(
        "const done = arguments[arguments.length - 1]; axe.run(document).then(done, error => done({error: `${error}`}))"
    )
    return [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found["violations"]]
