"""Pages for tests: the application in this process, asked without a socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Protocol

import httpx
import pytest
from selenium.webdriver.remote.webdriver import WebDriver

import apressure.web
from tests.integration.conftest import PATIENCE
from tests.integration.web.browser import Served, browser, is_installed


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    """A browser with a profile of its own."""
    if not is_installed():
        pytest.skip("Chromium (not installed: apt-get install chromium chromium-driver)")
    with browser(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


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


class OpenPage(Protocol):
    """`await open_page("orders", show_bodies=True)`: a client of a page that has begun to watch."""

    async def __call__(self, *queues: str, **options: Any) -> httpx.AsyncClient: ...


@pytest.fixture
async def open_page(url: str) -> AsyncIterator[OpenPage]:
    """Open pages on the server of the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def opener(*queues: str, **options: Any) -> httpx.AsyncClient:
            page = apressure.web.app(*queues, **{"url": url, "interval": 0.05, "history": False, **options})
            await stack.enter_async_context(page.router.lifespan_context(page))
            client = httpx.AsyncClient(transport=httpx.ASGITransport(page), base_url="http://127.0.0.1")
            return await stack.enter_async_context(client)

        yield opener


async def until(
    page: httpx.AsyncClient, where: str, condition: Callable[[Any], Any], headers: Mapping[str, str] | None = None
) -> Any:
    """Wait until the JSON twin of a page says something; return it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await page.get(where, params=None, headers=headers)
            if answer.status_code == httpx.codes.OK and condition(found := answer.json()):
                return found
            await asyncio.sleep(0.02)


async def shown(page: httpx.AsyncClient, count: int) -> list[dict[str, Any]]:
    """Wait until the overview has so many queues; return them."""
    found = await until(page, "/?format=json", lambda found: found["watched"] == count)
    queues: list[dict[str, Any]] = found["queues"]
    return queues
