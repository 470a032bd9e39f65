"""Every function that a script calls is defined: a server would tell only when the line is reached."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from apressure.connection.wire.script import Script

PRESSURE = "apressure.pressure.engine"
ROOMS = {
    PRESSURE: None, "apressure.events.engine": None, "apressure.tasks.engine": None, "apressure.spark.engine": PRESSURE,
    "apressure.connection.history": None, "apressure.connection.requests": None, "apressure.connection.workers": None,
}  # fmt: skip
"""The packages with scripts, and whose prelude each uses if it is not its own."""

BUILT_IN = {"error", "ipairs", "next", "pairs", "pcall", "select", "tonumber", "tostring", "type", "unpack"}
_STRING = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""


def undefined(source: str) -> set[str]:
    """Return the functions that Lua code calls and does not define."""
    code = re.sub(_STRING, "''", re.sub(r"--.*", "", source))
    called = set(re.findall(r"(?<![\w.:])([A-Za-z_]\w*)\s*(?=\()", code))
    defined = set(re.findall(r"\bfunction (\w+)", code))
    for names in re.findall(r"\blocal ([\w, ]+)", code) + re.findall(r"\bfunction \w*\(([\w, ]*)\)", code):
        defined |= set(re.findall(r"\w+", names))
    words = {"and", "elseif", "function", "if", "in", "not", "or", "return", "until", "while"}
    return called - defined - words - BUILT_IN


def scripts() -> list[tuple[str, str]]:
    return [
        (room, file.name.removesuffix(".lua"))
        for room in ROOMS
        for file in (resources.files(room) / "lua").iterdir()
        if file.name.endswith(".lua") and file.name != "prelude.lua"
    ]


@pytest.mark.parametrize(("room", "name"), scripts())
def test_a_script_defines_what_it_calls(room: str, name: str) -> None:
    assert undefined(Script(room, name, ROOMS[room]).source.decode()) == set()


def test_what_is_not_defined_is_found() -> None:
    assert undefined("local function a(b) b() end\na(c('d()'))  -- e()\nif (x) then redis.call() end") == {"c"}
