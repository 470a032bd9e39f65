"""The examples for Flask and Django: real servers over HTTP, and real processes that handle the orders."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import processes
from tests.integration.commands import PATIENCE, ended, environment, running
from tests.integration.conftest import Opener
from tests.processes import free_port

pytestmark = [
    pytest.mark.parametrize("server", ["valkey"], indirect=True),  # the other tests use each server
    pytest.mark.parametrize("framework", ["flask", "django"]),
]

WEB = Path(__file__).parents[3] / "examples" / "web"
FLASK = [sys.executable, "-m", "flask", "--app", str(WEB / "flask_orders.py")]
DJANGO = [sys.executable, str(WEB / "django_orders.py")]


class Example:
    """Processes of one of the examples."""

    def __init__(self, framework: str, url: str, place: Path) -> None:
        self.framework = framework
        self.place = place
        self.environment = environment(url, ORDERS_BOUND="2", PYTHONUNBUFFERED="1")
        if framework == "django":
            processes.run([*DJANGO, "migrate"], cwd=place, env=self.environment, timeout=PATIENCE, check=True)

    @contextlib.asynccontextmanager
    async def web(self) -> AsyncIterator[httpx.AsyncClient]:
        """The web application, ready, and a client."""
        port = str(free_port())
        command = [*FLASK, "run", "--port", port] if self.framework == "flask" else [*DJANGO, "runserver", port]
        with running(command, cwd=self.place, env=self.environment, stderr=subprocess.STDOUT) as process:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client:

                async def ready() -> bool:
                    assert process.poll() is None, process.stdout and process.stdout.read()
                    with contextlib.suppress(httpx.TransportError):
                        return (await client.get("/")).status_code == 404
                    return False

                await until(ready)
                yield client

    def worker(self) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        command = [*FLASK, "handle-orders"] if self.framework == "flask" else [*DJANGO, "handle_orders"]
        return running(command, cwd=self.place, env=self.environment)

    async def billed(self, open_queue: Opener) -> list[int]:
        """The orders that have an invoice."""
        if self.framework == "flask":
            invoices = await open_queue("invoices", create=False, codec="json")
            return sorted(invoice["order"] for invoice in await invoices.get_many(1000, timeout=0))
        with contextlib.closing(sqlite3.connect(self.place / "shop.db")) as database:
            return [number for (number,) in database.execute("SELECT number FROM invoices ORDER BY number")]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.05)


async def test_a_full_queue_is_a_503_and_every_order_that_was_taken_is_handled(
    framework: str, url: str, open_queue: Opener, tmp_path: Path
) -> None:
    example = await asyncio.to_thread(Example, framework, url, tmp_path)
    async with example.web() as client:
        assert (await client.post("/orders", json={"number": "?"})).status_code == 422
        assert (await client.post("/orders", json=[])).status_code == 422
        answers = [await client.post("/orders", json={"number": number}) for number in range(3)]
        assert [answer.status_code for answer in answers] == [202, 202, 503]
        assert (answers[2].headers["Retry-After"], answers[2].text) == ("1", "try again later")
        orders = await open_queue("orders", create=False)
        with example.worker() as worker:
            taken = [0, 1]
            for number in range(3, 40):
                while (await client.post("/orders", json={"number": number})).status_code == 503:
                    pass
                taken.append(number)

            async def handled() -> bool:
                statistics = await orders.statistics()
                return not statistics.length + statistics.in_flight

            await until(handled)
            worker.send_signal(signal.SIGTERM)
            code, output, errors = await asyncio.to_thread(ended, worker)
        assert (code, errors) == (0, b""), errors
        assert b"handled=39, failed=0" in output
    assert await example.billed(open_queue) == taken


async def test_a_server_that_is_away_is_a_503_that_does_not_name_it(framework: str, url: str, tmp_path: Path) -> None:
    del url
    example = await asyncio.to_thread(Example, framework, "redis://127.0.0.1:1/0", tmp_path)
    async with example.web() as client:
        answer = await client.post("/orders", json={"number": 1})
        assert (answer.status_code, answer.text) == (503, "try again later")
