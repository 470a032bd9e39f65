"""The header of each script of events names its arguments; its step and the script itself must agree."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections.abc import Callable
from importlib import resources
from typing import Any, cast

import pytest

from apressure import Client
from apressure.connection.wire.reconnecting import ReconnectingConnection
from apressure.connection.wire.request import Request
from apressure.connection.wire.script import prelude_of
from apressure.events.engine.keys import EventKeys, names_among
from apressure.events.engine.steps import EventSteps
from tests.unit.fakes import FakeConnection

LUA = {
    path.name.removesuffix(".lua"): path.read_text()
    for path in (resources.files("apressure.events.engine") / "lua").iterdir()
    if path.name.endswith(".lua")
}
PRELUDE = LUA.pop("prelude")
SHARED = "".join(path.read_text() for path in (resources.files("apressure.connection") / "lua").iterdir())
CODE = {name: re.sub(r"--.*", "", text) for name, text in {**LUA, "prelude": PRELUDE}.items()}

EVENTS = [(b"a", b"1"), (b"b", b"2")]
CALLS: dict[str, Callable[[EventSteps], Any]] = {
    "push": lambda steps: steps.push(EVENTS, front=True, force=True, expected=True),
    "pop": lambda steps: steps.pop(3, 30.0, limit=2, expected=True, in_hand=4, place=b"me"),
    "settle": lambda steps: steps.settle(EVENTS, "nack", anywhere=True),
    "extend": lambda steps: steps.extend(EVENTS, 5.0),
    "heal": lambda steps: steps.heal(),
    "peek": lambda steps: steps.peek(newest=True),
    "status": lambda steps: steps.status(),
    "register": lambda steps: steps.register(b"c"),
    "create": lambda steps: steps.create(3),
    "close": lambda steps: steps.close(expected=True),
    "flush": lambda steps: steps.delete(),
    "purge": lambda steps: steps.purge(3, expected=True),
    "requeue": lambda steps: steps.requeue(3, [b"+1:a0:"], expected=True),
    "dead_letters": lambda steps: steps.dead_letters(3, 4),
    "move": lambda steps: steps.move(steps.series(), EventKeys("source"), [(EVENTS, EVENTS)], True),
    "pause": lambda steps: steps.pause(expected=True),
    "resume": lambda steps: steps.resume(expected=True),
    "resign": lambda steps: steps.resign(b"me", True),
}
each = pytest.mark.parametrize("name", sorted(CALLS))


def arguments_of(name: str) -> tuple[int, bool]:
    """How many ARGV the header of a script names, and whether the last one stands for any number."""
    lines = [line.removeprefix("--").strip() for line in LUA[name].splitlines() if line.startswith("--")]
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


async def sent(name: str) -> Request:
    steps = EventSteps(Client(url="redis://127.0.0.1:1"), "jobs")
    connection = FakeConnection()
    steps.connection = cast("ReconnectingConnection", connection)
    call = CALLS[name](steps)
    if inspect.isawaitable(call):
        task = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        task.cancel()
    (request,) = connection.requests
    return request


def test_every_script_has_a_step() -> None:
    assert {*CALLS, "mend"} == set(LUA)


@each
async def test_the_header_names_every_argument(name: str) -> None:
    request = await sent(name)
    with contextlib.suppress(asyncio.CancelledError):
        count, many = arguments_of(name)
        assert (len(request.arguments) >= count) if many else (len(request.arguments) == count)
        assert len(request.call.keys) == (37 if name == "move" else 19)
        assert request.call.script.name == name


@each
async def test_a_repeat_is_marked_where_the_script_reads_that(name: str) -> None:
    request = await sent(name)
    recalls = "recall(ARGV[1], ARGV[2])" in LUA[name]
    assert (request.again == 1) == recalls
    if recalls:
        assert request.arguments[1] == b"0"


@pytest.mark.parametrize("name", sorted(LUA))
def test_a_script_reads_no_argument_that_it_does_not_name(name: str) -> None:
    count, many = arguments_of(name)
    read = {int(number) for number in re.findall(r"ARGV\[(\d+)\]", CODE[name])}
    assert not read or max(read) <= count
    assert many == bool(re.search(r"#ARGV|ARGV\[i", CODE[name]))


def test_every_function_and_key_of_the_prelude_is_used() -> None:
    for name in re.findall(r"^local function (\w+)", CODE["prelude"], re.MULTILINE):
        uses = sum(len(re.findall(rf"\b{name}\b", text)) for text in CODE.values())
        assert uses > 1, name


def test_what_rooms_share_is_defined_once() -> None:
    shared = re.findall(r"^local function (\w+)", SHARED, re.MULTILINE)
    assert len(shared) == len(set(shared)) > 5
    for room in ("apressure.queue.engine", "apressure.events.engine"):
        defined = re.findall(r"^local function (\w+)", prelude_of(room), re.MULTILINE)
        assert len(defined) == len(set(defined)) > len(shared)


def test_the_keys_have_one_hash_tag_and_their_own_names() -> None:
    keys = EventKeys("a:b")
    assert len(set(keys.types)) == len(keys.types) == 18
    assert all(b"{a:b}" in key for key in (*keys.types, keys.lock(b"x"), keys.operation("y")))
    assert keys.lock(b"x") == b"queue:{a:b}:lock:x"


def test_names_are_found_among_keys() -> None:
    found = [b"queue:{b}:items", b"queue:{a:x}:consumers", b"queue:{a:x}:items", b"queue:{c}", b"queue:{d}:lock:x",
             b"other:{e}:items", b"queue:{}:items", b"queue:{x}y}:items"]  # fmt: skip
    assert names_among(found) == ["a:x", "b"]
