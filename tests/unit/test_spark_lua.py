"""The header of each of Spark's scripts names what the script takes and returns."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from apressure.connection.wire.script import prelude_of
from apressure.spark.engine.steps import script

LUA = {
    path.name.removesuffix(".lua"): path.read_text()
    for path in (resources.files("apressure.spark.engine") / "lua").iterdir()
    if path.name.endswith(".lua")
}
PRELUDE = prelude_of("apressure.pressure.engine")
each = pytest.mark.parametrize("name", sorted(LUA))


def header(name: str) -> dict[str, str]:
    lines = []
    for line in LUA[name].splitlines():
        if not line.startswith("--"):
            break
        lines.append(line.removeprefix("--").strip())
    parts = re.split(r"\b(KEYS|ARGV|Returns):", " ".join(lines))
    return dict(zip(parts[1::2], (part.strip() for part in parts[2::2]), strict=True))


@each
def test_a_script_has_a_header(name: str) -> None:
    assert set(header(name)) == {"KEYS", "ARGV", "Returns"}
    assert header(name)["KEYS"].startswith("those of the queue's prelude")


@each
def test_a_script_reads_no_argument_and_no_key_that_its_header_does_not_name(name: str) -> None:
    body = "\n".join(line for line in LUA[name].splitlines() if not line.startswith("--"))
    for word, first in (("ARGV", 1), ("KEYS", 27)):
        named = {int(number) for number in re.findall(r"(?:^|, |\s)(\d+)(?:\.\.\.)? ", header(name)[word])}
        used = {int(number) for number in re.findall(rf"{word}\[(\d+)\]", body)}
        assert {number for number in used if number >= first} <= named


@each
def test_a_script_answers_with_nothing_that_its_header_does_not_name(name: str) -> None:
    body = "\n".join(line.partition("--")[0] for line in LUA[name].splitlines())
    answers = {
        word for line in re.findall(r"(?:return|answer =) (.*)", body) for word in re.findall(r"\{'([a-z]+)'", line)
    }
    answers |= {"missing", "corrupt"} if "check(" in body else set()
    answers |= {"busy"} if "enter(" in body else set()
    assert answers <= set(re.findall(r"\{'([a-z]+)'", header(name)["Returns"]))


@each
def test_a_script_has_the_functions_of_the_queues_prelude_that_it_uses(name: str) -> None:
    source = re.sub(r"--.*", "", script(name).source.decode())
    for function in re.findall(r"^local function (\w+)", PRELUDE, re.MULTILINE):
        uses = re.findall(rf"(?<!function )\b{function}\b", source)
        assert bool(uses) == (f"local function {function}(" in source)
