"""What the tests of Lua headers share: what a header names, what a step sends, and what a script reads."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import Any, cast

from apressure.connection.wire.reconnecting import ReconnectingConnection
from apressure.connection.wire.script import Request
from tests.unit.fakes import FakeConnection


def arguments_of(script: str) -> tuple[int, bool]:
    """How many ARGV the header of a script names, and whether the last one stands for any number."""
    lines = [line.removeprefix("--").strip() for line in script.splitlines() if line.startswith("--")]
    text = " ".join(lines).partition("ARGV:")[2].partition("Returns:")[0]
    assert text, "the header names ARGV and Returns"
    if text.strip() == "none":
        return 0, False
    count = 0
    while found := re.search(rf"(?:^|, ) ?{count + 1}(\.\.\.)? ", text):
        count += 1
        if found[1]:
            return count, True
    return count, False


async def sent(steps: Any, call: Any) -> Request:
    """The request that a step sends."""
    connection = FakeConnection()
    steps.connection = cast("ReconnectingConnection", connection)
    result = call(steps)
    if inspect.isawaitable(result):
        task = asyncio.ensure_future(result)
        await asyncio.sleep(0)
        task.cancel()
    (request,) = connection.requests
    return request


def names_every_argument(request: Request, script: str) -> bool:
    """Whether a step sends as many arguments as the header of its script names."""
    count, many = arguments_of(script)
    return (len(request.arguments) >= count) if many else (len(request.arguments) == count)


def reads_only_what_it_names(script: str, code: str, more: int = 0) -> bool:
    """Whether a script reads no argument beyond those that its header names, and `more`."""
    count, many = arguments_of(script)
    read = {int(number) for number in re.findall(r"ARGV\[(\d+)\]", code)}
    return (not read or max(read) <= count + more) and many == bool(re.search(r"#ARGV|ARGV\[i|set_limits\(", code))


def unused(defined: str, code: dict[str, str]) -> list[str]:
    """Functions of a prelude that nothing calls."""
    names = re.findall(r"^local function (\w+)", defined, re.MULTILINE)
    return [name for name in names if sum(len(re.findall(rf"\b{name}\b", text)) for text in code.values()) <= 1]
