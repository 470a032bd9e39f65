"""The tables of compatibility name code and tests that exist, and have rows for each section of a specification."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path

import pytest

import apressure
from tests.documentation.blocks import DOCS

PACKAGE = Path(apressure.__file__).parent
TABLES = sorted((DOCS / "internals" / "compatibility").glob("*.md"))
HEADER = "| sentence | code | tests |"
SECTIONS = {
    "pressure": [
        "Introduction", "Message brokers", "Clients", "Queues", "Create", "Exists", "Length", "Closed",
        "Put", "Put (Non-Blocking)", "Get", "Get (Non-Blocking)", "Close", "Delete", "Reference implementation",
        "Released clients",
    ],
    "pressure-0.1": ["Queue Operations", "Put", "Get", "Redis Reference Implementation"],
    "okq": [
        "Introduction", "Install", "Configuration", "Usage", "Commands", "QLPUSH", "QRPUSH", "QLPEEK", "QRPEEK",
        "QRPOP", "QACK", "QREGISTER", "QNOTIFY", "QFLUSH", "QSTATUS", "QINFO", "Consumers",
    ],
    "blueque": [
        "Terminology", "Client Connection", "Queue", "Task", "Listener", "Processor", "Data Storage", "Task Queue",
        "Listener Task List", "Task Channel", "Task List", "Task Data", "Listeners", "Queues", "Task Workflow",
        "Submission", "Node Task Pop", "Task Queue Channel Message", "Task Started", "Task Completed Successfully",
        "Task Failed", "Delete Finished Task", "Schedule Task", "Enqueue Scheduled Tasks",
    ],
    "vsqs": ["Introduction", "File State Transitions", "New", "Ready", "Deleted", "Requeuing"],
}  # fmt: skip
"""The sections of each specification; of pressure 0.1, those that differ from 0.15."""


def table(text: str, header: str) -> list[list[str]]:
    """Return the cells of the table below a header; nothing if there is none."""
    lines = text.partition(header)[2].splitlines()[2:]
    rows = lines[: next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    return [row.removeprefix("| ").removesuffix(" |").split(" | ") for row in rows]


def sections(page: Path) -> dict[str, list[list[str]]]:
    """Return the rows of each section."""
    parts = re.split(r"^## (.*)\n", page.read_text(), flags=re.MULTILINE)
    return {title: table(text, HEADER) for title, text in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.parametrize("page", TABLES, ids=lambda page: page.stem)
def test_every_row_names_code_and_a_test(page: Path) -> None:
    for row in (row for rows in sections(page).values() for row in rows):
        sentence, code, tests = row
        names = re.findall(r"`([\w./]+)`", code)
        assert names, sentence
        for name in names:
            assert (PACKAGE.parent / name).exists() if "/" in name else found(name), name
        named = re.findall(r"\[(test_\w+)\]\(([^)]+)\)", tests)
        assert named, sentence
        for test, path in named:
            assert defines((page.parent / path).resolve(), test), f"{path} has no {test}"


@pytest.mark.parametrize("page", TABLES, ids=lambda page: page.stem)
def test_no_section_of_a_specification_is_missing(page: Path) -> None:
    rows = sections(page)
    assert list(rows) == SECTIONS[page.stem]
    assert all(rows.values())


@functools.cache
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


@functools.cache
def defines(path: Path, test: str) -> bool:
    """Return whether a file has a test of this name."""
    return bool(re.search(rf"def {test}\(", path.read_text()))
