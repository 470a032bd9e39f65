"""The header of each script of tasks names its arguments; its step and the script itself must agree."""

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
from apressure.tasks.engine.answers import Claim
from apressure.tasks.engine.keys import TaskKeys, task_key
from apressure.tasks.engine.steps import Change, TaskSteps, Want
from apressure.tasks.letters import told
from tests.unit.scripts import names_every_argument, reads_only_what_it_names, sent, unused

LUA = {
    path.name.removesuffix(".lua"): path.read_text()
    for path in (resources.files("apressure.tasks.engine") / "lua").iterdir()
    if path.name.endswith(".lua")
}
PRELUDE = prelude_of("apressure.tasks.engine")
CODE = {name: re.sub(r"--.*", "", text) for name, text in {**LUA, "prelude": PRELUDE}.items()}

CLAIM = Claim(b"id", b"token", b"host_1")
TASKS = [(b"a", b"1", b""), (b"b", b"2", b"5.0")]
CALLS: dict[str, Callable[[TaskSteps], Any]] = {
    "enqueue": lambda steps: steps.send_enqueue(steps.series(), TASKS, True, print),
    "reserve": lambda steps: steps.send_reserve(steps.series(), 3, Want(1, 2, "fail", b"host_1", True, 4), print),
    "settle": lambda steps: steps.send_settle([Change("complete", CLAIM, b"done", {"a": "b"})], 5.0, print),
    "reopen": lambda steps: steps.reopen_soon([CLAIM]),
    "extend": lambda steps: steps.extend([CLAIM], 5.0),
    "peek": lambda steps: steps.peek(newest=True),
    "browse": lambda steps: steps.browse(Asked("delayed", False, 17, 18, 19)),
    "status": lambda steps: steps.status(),
    "register": lambda steps: steps.register(b"host_1", b"block", 5.0),
    "create": lambda steps: steps.create(3),
    "close": lambda steps: steps.close(expected=True),
    "pause": lambda steps: steps.pause(True, expected=True),
    "limit": lambda steps: steps.limit({"count": 5, "burst": None}, expected=True),
    "purge": lambda steps: steps.purge("failed", 3, 5.0, expected=True),
    "delete": lambda steps: steps.delete(),
    "tend": lambda steps: steps.tend(5.0, 6.0),
    "bury": lambda steps: steps.bury([told(Added("a", b"1", 2, 3, 4, b"why"))], expected=True),
    "requeue": lambda steps: steps.requeue(3, expected=True),
    "promote": lambda steps: steps.promote(3, [b"a", b"b"], expected=True),
    "cancel": lambda steps: steps.cancel(b"id"),
    "retry": lambda steps: steps.retry(b"id", True, b"5.0"),
    "remove": lambda steps: steps.remove(b"id", True, b"5.0"),
    "adopt": lambda steps: steps.adopt(b"host_1", "retry", 5.0, True, [(b"id", True, b"token")]),
}
each = pytest.mark.parametrize("name", sorted(CALLS))


async def request_of(name: str) -> Request:
    return await sent(TaskSteps(Client(url="redis://127.0.0.1:1"), "jobs"), CALLS[name])


def test_every_script_has_a_step() -> None:
    assert set(CALLS) == set(LUA)


@each
async def test_the_header_names_every_argument(name: str) -> None:
    request = await request_of(name)
    with contextlib.suppress(asyncio.CancelledError):
        assert names_every_argument(request, LUA[name])
        assert len(request.call.keys) == (25 if name == "delete" else 23)
        assert request.call.script.name == name


@each
async def test_a_repeat_is_marked_where_the_script_reads_that(name: str) -> None:
    request = await request_of(name)
    numbered = re.search(r"(recall|begin)\(ARGV\[1\], ARGV\[2\]\)", LUA[name]) is not None
    assert request.again == (1 if numbered else 0 if name == "settle" else None)
    if request.again is not None:
        assert request.arguments[request.again] == b"0"


@pytest.mark.parametrize("name", sorted(LUA))
def test_a_script_reads_no_argument_that_it_does_not_name(name: str) -> None:
    assert reads_only_what_it_names(LUA[name], CODE[name], more=1)


def test_every_function_of_the_prelude_is_used() -> None:
    own = "".join(
        path.read_text() for path in (resources.files("apressure.tasks.engine") / "lua" / "prelude").iterdir()
    )
    assert unused(own, CODE) == []


def test_the_keys_are_blueques_and_ours() -> None:
    keys = TaskKeys("video.encode")
    assert keys.pending == b"blueque_pending_tasks_video.encode"
    assert keys.reserved(b"a_b_1") == b"blueque_reserved_tasks_video.encode_a_b_1"
    assert task_key(b"x") == b"blueque_task_x"
    assert len({*keys.blueque, *keys.ours}) == 12
    assert all(key.endswith(b"video.encode") for key in (*keys.blueque, *keys.ours))
    assert all(key.startswith((b"blueque_", b"apressure:blueque:")) for key in keys.for_script("y"))


@pytest.mark.parametrize("name", ["", "a" * 5000, "\ud800"])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        TaskKeys(name)


def test_the_usual_case_of_a_reservation_knows_what_an_earlier_attempt_leaves() -> None:
    usual = (resources.files("apressure.tasks.engine") / "lua" / "usual" / "reserve.lua").read_text()
    stale, replaced = (
        set(re.findall(r"(\w+) = true", re.findall(rf"local {name} = {{([^}}]+)}}", LUA["reserve"])[0]))
        for name in ("STALE", "REPLACED")
    )
    assert set(re.findall(r"UNUSUAL = ' (.*) '", usual)[0].split()) == stale | {"expires"}
    assert set(re.findall(r"(\w+) = true", usual)) == replaced
