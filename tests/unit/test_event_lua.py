"""The header of each script of events names its arguments; its step and the script itself must agree."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest

from apressure import Client
from apressure.connection.wire.script import Request, prelude_of
from apressure.core.added_letters import Added
from apressure.core.browsing import Asked
from apressure.events.engine.keys import EventKeys, names_among
from apressure.events.engine.steps import EventSteps
from tests import event_steps
from tests.unit.scripts import names_every_argument, reads_only_what_it_names, sent, unused

LUA = {
    path.name.removesuffix(".lua"): path.read_text()
    for path in (resources.files("apressure.events.engine") / "lua").iterdir()
    if path.name.endswith(".lua")
}
PRELUDE = LUA.pop("prelude")
SHARED = "".join(
    path.read_text() for path in (resources.files("apressure.connection") / "lua").iterdir() if path.is_file()
)
CODE = {name: re.sub(r"--.*", "", text) for name, text in {**LUA, "prelude": PRELUDE}.items()}

EVENTS = [(b"a", b"1"), (b"b", b"2")]
CALLS: dict[str, Callable[[EventSteps], Any]] = {
    "push": lambda steps: event_steps.push(steps, EVENTS, front=True, expected=True),
    "delay": lambda steps: event_steps.delay(steps, [(*event, b"500") for event in EVENTS], expected=True),
    "pop": lambda steps: event_steps.pop(steps, 3, limit=2, expected=True, in_hand=4, place=b"me"),
    "settle": lambda steps: event_steps.settle(steps, EVENTS, "nack", anywhere=True),
    "extend": lambda steps: steps.extend(EVENTS, 5.0),
    "heal": lambda steps: steps.heal(),
    "peek": lambda steps: steps.peek(newest=True),
    "browse": lambda steps: steps.browse(Asked("delayed", False, 17, 18, 19)),
    "status": lambda steps: steps.status(),
    "register": lambda steps: steps.register(b"c"),
    "create": lambda steps: steps.create(3),
    "close": lambda steps: steps.close(expected=True),
    "flush": lambda steps: steps.delete(),
    "purge": lambda steps: steps.purge(3, expected=True),
    "bury": lambda steps: steps.bury([Added("a", b"1", 2, 3, 4, b"why")], expected=True),
    "requeue": lambda steps: steps.requeue(3, [b"+1:a0:"], expected=True),
    "promote": lambda steps: steps.promote(3, [b"a", b"b"], expected=True),
    "discard": lambda steps: steps.discard([b"+1:a0:"]),
    "dead_letters": lambda steps: steps.dead_letters(3, 4),
    "move": lambda steps: steps.move(steps.series(), EventKeys("source"), [(EVENTS, EVENTS)], True),
    "pause": lambda steps: steps.pause(True, expected=True),
    "resume": lambda steps: steps.pause(False, expected=True),
    "limit": lambda steps: steps.limit({"count": 5, "per": 1000, "burst": None, "held": 3}, expected=True),
    "ready": lambda steps: steps.ready(),
    "resign": lambda steps: steps.resign(b"me", True),
}
each = pytest.mark.parametrize("name", sorted(CALLS))


async def request_of(name: str) -> Request:
    return await sent(EventSteps(Client(url="redis://127.0.0.1:1"), "jobs"), CALLS[name])


def test_every_script_has_a_step() -> None:
    assert {*CALLS, "mend"} == set(LUA)


@each
async def test_the_header_names_every_argument(name: str) -> None:
    request = await request_of(name)
    with contextlib.suppress(asyncio.CancelledError):
        assert names_every_argument(request, LUA[name])
        assert len(request.call.keys) == {"move": 51, "flush": 29, "create": 27, "limit": 27}.get(name, 26)
        assert request.call.script.name == name


@each
async def test_a_repeat_is_marked_where_the_script_reads_that(name: str) -> None:
    request = await request_of(name)
    recalls = "recall(ARGV[1], ARGV[2])" in LUA[name]
    assert (request.again == 1) == recalls
    if recalls:
        assert request.arguments[1] == b"0"


@pytest.mark.parametrize("name", sorted(LUA))
def test_a_script_reads_no_argument_that_it_does_not_name(name: str) -> None:
    assert reads_only_what_it_names(LUA[name], CODE[name])


def test_every_function_and_key_of_the_prelude_is_used() -> None:
    assert unused(CODE["prelude"], CODE) == []


def test_what_rooms_share_is_defined_once() -> None:
    shared = re.findall(r"^local function (\w+)", SHARED, re.MULTILINE)
    assert len(shared) == len(set(shared)) > 5
    for room in ("apressure.pressure.engine", "apressure.events.engine"):
        defined = re.findall(r"^local function (\w+)", prelude_of(room), re.MULTILINE)
        assert len(defined) == len(set(defined)) > len(shared)


def test_the_keys_have_one_hash_tag_and_their_own_names() -> None:
    keys = EventKeys("a:b")
    assert len(set(keys.as_source)) == len(keys.as_source) == 25
    assert all(b"{a:b}" in key for key in (*keys.as_source, keys.lock(b"x"), keys.operation("y")))
    assert keys.lock(b"x") == b"queue:{a:b}:lock:x"


def test_names_are_found_among_keys() -> None:
    found = [b"queue:{b}:items", b"queue:{a:x}:consumers", b"queue:{a:x}:items", b"queue:{c}", b"queue:{d}:lock:x",
             b"other:{e}:items", b"queue:{}:items", b"queue:{x}y}:items", b"apressure:queue:{f}:delayed",
             b"apressure:queue:{g}:bound", b"apressure:queue:{h}:later"]  # fmt: skip
    assert names_among(found) == ["a:x", "b", "f", "g"]
