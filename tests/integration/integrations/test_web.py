"""The examples for web frameworks, as real servers over HTTP, with real signals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from apressure import AsyncQueue
from tests.integration.commands import PATIENCE, ended, environment, running
from tests.integration.conftest import Opener
from tests.processes import free_port

pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)  # the other tests use each server

WEB = Path(__file__).parents[3] / "examples" / "web"


async def until(condition: Callable[[], Any]) -> Any:
    """Wait until an asynchronous condition is true, and return what it returns."""
    async with asyncio.timeout(PATIENCE):
        while not (found := await condition()):
            await asyncio.sleep(0.05)
        return found


@contextlib.asynccontextmanager
async def fastapi(
    url: str, *options: str, **more: str
) -> AsyncIterator[tuple[subprocess.Popen[bytes], httpx.AsyncClient]]:
    """The FastAPI example under uvicorn, ready, and a client."""
    port = free_port()
    command = ["-m", "uvicorn", "--app-dir", str(WEB), "fastapi_orders:app", "--port", str(port), *options]
    with running([sys.executable, *command], env=environment(url, **more), stderr=subprocess.STDOUT) as process:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client:

            async def ready() -> bool:
                assert process.poll() is None, process.stdout and process.stdout.read()
                with contextlib.suppress(httpx.TransportError):
                    return (await client.get("/health")).status_code == 200
                return False

            await until(ready)
            yield process, client


async def invoiced(invoices: AsyncQueue[Any], orders: AsyncQueue[Any]) -> list[dict[str, int]]:
    """All invoices, when there are no more orders."""

    async def drained() -> bool:
        statistics = await orders.statistics()
        return not statistics.length and not statistics.members

    await until(drained)
    return await invoices.get_many(1000, timeout=0)


async def test_fastapi_says_503_when_the_queue_is_full_and_handles_every_order_it_took(
    url: str, open_queue: Opener
) -> None:
    async with fastapi(url, ORDERS_BOUND="2") as (process, client):
        orders = await open_queue("orders", create=False)
        invoices = await open_queue("invoices", create=False, codec="json")
        assert (await client.post("/orders", json={"number": "?"})).status_code == 422
        await orders.pause()
        answers = [await client.post("/orders", json={"number": number}) for number in range(3)]
        assert [answer.status_code for answer in answers] == [202, 202, 503]
        assert answers[2].headers["Retry-After"] == "1"
        assert answers[2].json()["detail"] == "try again later"
        await orders.resume()

        async def handled() -> bool:
            return await invoices.qsize() == 2

        await until(handled)
        process.send_signal(signal.SIGTERM)
        output = ended(process)[1]
        assert b"Application shutdown complete" in output, output
        assert [invoice["order"] for invoice in await invoiced(invoices, orders)] == [0, 1]


async def test_fastapi_shuts_down_when_its_background_service_fails(url: str, open_queue: Opener) -> None:
    async with fastapi(url) as (process, _):
        orders = await open_queue("orders", create=False)
        await open_queue("invoices", create=False)
        await orders.delete()
        code, output, _ = await asyncio.to_thread(ended, process)
        assert code == -signal.SIGTERM
        assert b"the background service failed: shutting down" in output
        assert b"QueueDoesNotExistError" in output


async def test_two_workers_of_uvicorn_share_the_orders_and_sigterm_loses_none(url: str, open_queue: Opener) -> None:
    taken: set[int] = set()

    async with fastapi(url, "--workers", "2") as (process, client):
        orders = await open_queue("orders", create=False)
        invoices = await open_queue("invoices", create=False, codec="json")

        async def both() -> bool:
            return len((await orders.statistics()).members) == 2

        await until(both)

        async def send(numbers: range) -> None:
            with contextlib.suppress(httpx.TransportError):  # the application has ended
                for number in numbers:
                    if (await client.post("/orders", json={"number": number})).status_code == 202:
                        taken.add(number)

        async with asyncio.TaskGroup() as group:
            for start in range(0, 2000, 500):
                group.create_task(send(range(start, start + 500)))

            async def enough() -> bool:
                return len(taken) >= 200

            await until(enough)
            process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(ended, process)
    assert not (await orders.statistics()).members  # each worker gave back what it had in hand
    assert 200 <= len(taken) < 2000
    async with fastapi(url) as (process, _):  # the next version of the application handles the rest

        async def handled() -> bool:
            return not await orders.qsize()

        await until(handled)
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(ended, process)
    found = await invoiced(invoices, orders)
    assert taken <= {invoice["order"] for invoice in found}
    assert len({invoice["worker"] for invoice in found}) >= 2


@pytest.fixture
async def updates(url: str) -> AsyncIterator[tuple[str, subprocess.Popen[bytes]]]:
    """The aiohttp example, ready: the address of its websocket, and the process."""
    port = free_port()
    with running([sys.executable, str(WEB / "aiohttp_updates.py"), str(port)], env=environment(url)) as process:

        async def ready() -> bool:
            assert process.poll() is None, process.stderr and process.stderr.read()
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return True
            return False

        await until(ready)
        yield f"http://127.0.0.1:{port}/updates", process


async def test_a_websocket_acknowledges_what_the_browser_confirmed_and_sends_the_rest_again(
    updates: tuple[str, subprocess.Popen[bytes]], open_queue: Opener
) -> None:
    address, process = updates
    queue = await open_queue("updates", create=False, codec="text")
    await queue.put_many(["a", "b", "c"])
    async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as session:
        browser = await session.ws_connect(address)
        sent = [await browser.receive_json() for _ in range(3)]
        assert [(update["item"], update["redelivered"]) for update in sent] == [
            ("a", False),
            ("b", False),
            ("c", False),
        ]
        await browser.send_json({"ack": sent[1]["id"]})

        async def confirmed() -> bool:
            return bool((await queue.statistics()).consumed_messages == 1)

        await until(confirmed)
        transport = browser._response.connection and browser._response.connection.transport
        assert transport is not None
        transport.abort()  # the network fails: no goodbye

        again = await session.ws_connect(address)
        resent = [await again.receive_json() for _ in range(2)]
        assert [(update["item"], update["redelivered"]) for update in resent] == [("a", True), ("c", True)]
        await again.send_json({"ack": sent[1]["id"]})  # not of this connection
        closed = await again.receive()
        assert (closed.type, again.close_code) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.POLICY_VIOLATION)

        last = await session.ws_connect(address)
        for update in [await last.receive_json() for _ in range(2)]:
            await last.send_json({"ack": update["id"]})

        async def drained() -> bool:
            return bool((await queue.statistics()).consumed_messages == 3)

        await until(drained)
        process.send_signal(signal.SIGTERM)
        assert (await last.receive()).data == aiohttp.WSCloseCode.GOING_AWAY
        code, _, errors = await asyncio.to_thread(ended, process)
        unexpected = [line for line in errors.splitlines() if b"is delivered again: attempt" not in line]
        assert (code, unexpected) == (0, []), os.fsdecode(errors)
    assert await queue.qsize() == 0
