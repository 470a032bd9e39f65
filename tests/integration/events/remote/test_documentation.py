"""The code for okq servers in the docs runs."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.integration.events.remote.conftest import Open, fails, in_time

DOCS = Path(__file__).parents[4] / "docs"


async def test_the_program_for_an_okq_server(
    okq_url: str, open_queue: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {"OKQ_URL": okq_url}
    for code in re.findall(r"```python\n(.*?)```", (DOCS / "do" / "events.md").read_text(), re.DOTALL):
        exec(code, names)
    await in_time(names["feed_and_work_on_okq"]())
    assert capsys.readouterr().out == "b'order 1'\n"
    assert await (await open_queue("orders")).qsize() == 0


async def test_the_consumer_of_the_server_page(okq_url: str, open_queue: Open) -> None:
    (code,) = re.findall(r"```py\n(.*?)```", (DOCS / "do" / "events-server.md").read_text(), re.DOTALL)
    program = "async def consume():\n" + textwrap.indent(code.replace("okq://127.0.0.1:4777", okq_url), "    ")
    queue = await open_queue("foo")
    await queue.put_many([b"1", b"2"])
    handled: list[bytes] = []

    def handle(item: bytes) -> None:
        if item == b"2":
            raise LookupError
        handled.append(item)

    names: dict[str, Any] = {"handle": handle}
    exec("from apressure import EventQueue\n" + program, names)
    await fails(LookupError, names["consume"]())
    assert handled == [b"1"]
    assert await queue.get() == b"2"
