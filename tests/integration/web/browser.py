"""Chromium, and `apressure web` as a process: for tests of the page, and for pictures of it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import Callable, Coroutine, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

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


def is_installed() -> bool:
    return shutil.which("chromedriver") is not None and shutil.which("chromium") is not None


@contextlib.contextmanager
def browser(home: Path) -> Iterator[WebDriver]:
    """Open Chromium with a profile in this directory."""
    port = _free_port()
    command = [shutil.which("chromedriver") or "", f"--port={port}"]
    with running(command, env=environment(HOME=str(home)), stdout=None, stderr=None):
        wait_until(lambda: answers(port))
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*FLAGS, f"--user-data-dir={home / 'profile'}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        connection = ChromiumRemoteConnection(f"http://127.0.0.1:{port}", vendor_prefix="goog", browser_name="chrome")
        driver = webdriver.Remote(command_executor=connection, options=options)
        try:
            yield driver
        finally:
            driver.quit()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """Whether something listens at a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def emulate(chromium: WebDriver, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    chromium.execute("executeCdpCommand", {"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}})


class Served:
    """The page as a process, at a port that it keeps."""

    def __init__(self, url: str, *options: str) -> None:
        self.port = _free_port()
        self._command = [*COMMAND, "web", "--interval", "0.2", "--no-history", "--port", str(self.port), *options]
        self._environment = environment(url)
        self._process: processes.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = processes.Popen(self._command, env=self._environment, stdout=None, stderr=None)
        wait_until(lambda: answers(self.port))

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=60)
            self._process = None

    def __str__(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


def complaints(chromium: WebDriver) -> list[str]:
    """What the browser's console says: errors of scripts, and what the policy has refused."""
    logged: list[dict[str, Any]] = chromium.execute("getLog", {"type": "browser"})["value"]
    return [one["message"] for one in logged if one["level"] == "SEVERE" and "axe" not in one["message"]]


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
