"""`apressure web` as a process: where it listens, whom it refuses, its streams, and its end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from apressure import AsyncQueue, Client
from apressure.embedded import EmbeddedServer
from apressure.web import live
from tests import processes
from tests.integration.acl_roles import PASSWORD, allow, documented
from tests.integration.commands import COMMAND, Commands, environment, running
from tests.integration.web.conftest import OpenPage, shown, until

pytestmark = [
    pytest.mark.parametrize("server", ["valkey"], indirect=True),  # nothing of this depends on the server
    pytest.mark.leaves_keys,
]

LONG = "a-token-of-many-characters"


def url_of(process: processes.Popen[bytes]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    assert line.startswith("the page is at http://127.0.0.1:"), line
    return line.split()[-1]


async def test_the_command_serves_until_ctrl_c_also_with_open_streams(url: str, client: Client) -> None:
    await AsyncQueue("orders", client=client).create()
    command = [*COMMAND, "web", "orders", "--port", "0", "--interval", "0.1", "--no-history"]
    with running(command, env=environment(url)) as process:
        async with httpx.AsyncClient(base_url=await asyncio.to_thread(url_of, process), timeout=60) as page:
            await shown(page, 1)
            assert "server" not in (await page.get("/")).headers
            async with page.stream("GET", "/events") as stream:
                assert stream.headers["content-type"].startswith("text/event-stream")
                lines = stream.aiter_lines()
                async for line in lines:
                    if line == "event: look":
                        break
                process.send_signal(signal.SIGINT)
                assert await asyncio.to_thread(process.wait, 60) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""


async def test_streams_are_limited_and_end(open_page: OpenPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LASTS", 0.3)
    monkeypatch.setattr(live, "MOST", 2)
    page = await open_page("orders")
    first, second = (asyncio.ensure_future(page.get("/events")) for _ in range(2))
    await asyncio.sleep(0.1)
    assert (await page.get("/events")).status_code == 503
    assert "event: open" in (await first).text
    await second
    assert (await page.get("/events")).status_code == 200  # there is room again


def test_it_refuses_to_let_everybody_in(cli: Commands, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        assert b"others reach" in cli("web", "--host", host, code=2).stderr
    for text in ("", "short", "admin " + LONG):
        tokens.write_text(text)
        refused = cli("web", "--host", "0.0.0.0", "--token-file", str(tokens), code=2).stderr
        assert LONG.encode() not in refused
    tokens.write_bytes(b"\xff" * 20)
    cli("web", "--token-file", str(tokens), code=2)
    cli("web", "--token-file", str(tmp_path / "missing"), code=2)
    assert b"short" not in cli("web", env={"APRESSURE_WEB_TOKEN": "short"}, code=2).stderr
    for wrong in (["--operator", "ann"], ["--redact", "card"], ["--port", "65536"], ["--url", "embedded://"]):
        cli("web", *wrong, code=2)
    taken = cli("web", "--host", "192.0.2.1", "--trust-header", "X-User", "--port", "0", code=1).stderr
    assert b"cannot serve the page at 192.0.2.1" in taken


async def test_a_user_who_only_reads_sees_queues_and_messages(
    open_page: OpenPage, make_server: Callable[..., EmbeddedServer]
) -> None:
    own = make_server()
    async with Client(own.url) as client:
        orders = AsyncQueue[bytes]("orders", client=client)
        await orders.create(bound=5)
        await orders.put(b"first")
    reading = allow(own, "viewer", documented(plain=False)["viewer"])
    page = await open_page("orders", url=reading, show_bodies=True, history=True)
    await until(page, "/queue?at=orders&format=json", lambda found: found["state"] == "unconsumed")
    for path in ("/", "/queue?at=orders", "/workers", "/schedules"):
        answer = await page.get(path)
        assert answer.status_code == 200
        assert PASSWORD not in answer.text
    assert "first" in (await page.get("/queue/messages?at=orders")).text
    for path in ("letters", "doctor"):
        answer = await page.get(f"/queue/{path}?at=orders")
        assert answer.status_code in (200, 503)
        assert PASSWORD not in answer.text
