"""The tables of compatibility name code and tests that exist, and every section of each specification."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path

import pytest

import apressure
from tests.documentation.blocks import DOCS

PACKAGE = Path(apressure.__file__).parent
TABLES = sorted((DOCS / "compatibility").glob("*.md"))
SECTIONS = {
    "blueque": "enqueue listen start complete fail channel scheduled deleted",
    "okq": "QLPUSH QRPUSH QLPEEK QRPEEK QRPOP QACK REDO QREGISTER QNOTIFY QFLUSH QSTATUS QINFO",
    "pressure": "Create Exists Length Closed Put Non-blocking Get Close Delete",
    "vsqs": "New Ready Deleted Requeuing",
}


def rows(table: Path) -> list[list[str]]:
    lines = [line for line in table.read_text().splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines if "---" not in line and "the specification |" not in line]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.stem)
def test_every_row_names_code_and_a_test(table: Path) -> None:
    assert len(rows(table)) > 10
    for sentence, code, tests in rows(table):
        names = re.findall(r"`([\w./]+)`", code)
        assert names, sentence
        for name in names:
            assert (PACKAGE.parent / name).exists() if "/" in name else found(name), name
        named = re.findall(r"\[(test_\w+)\]\(([^)]+)\)", tests)
        assert named, sentence
        for test, path in named:
            assert re.search(rf"def {test}\(", (table.parent / path).read_text()), f"{path} has no {test}"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.stem)
def test_no_part_of_a_specification_is_missing(table: Path) -> None:
    text = table.read_text()
    for word in SECTIONS[table.stem].split():
        assert word in text, word


def found(name: str) -> bool:
    """Return whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        try:
            functools.reduce(getattr, parts[length:], module)
        except AttributeError:
            return False
        return True
    return False
