"""The demo is a user's program: it imports public names only."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import apressure

DEMO = Path(apressure.__file__).parent / "demo"
PUBLIC = (
    "apressure", "apressure.embedded", "apressure.exceptions", "apressure.pressure", "apressure.spark",
    "apressure.testing",
)  # fmt: skip


def foreign(source: str) -> Iterator[str]:
    """Name what a program uses of apressure that is not public. Modules of the demo are the program itself."""
    modules = {}  # by the name that they have in the program
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (found.name for found in node.names if found.name.startswith("apressure"))
        elif isinstance(node, ast.ImportFrom) and (module := node.module or "").startswith("apressure"):
            for found in node.names:
                name = f"{module}.{found.name}"
                if name in PUBLIC:
                    modules[found.asname or found.name] = name
                elif not f"{name}.".startswith("apressure.demo.") and not _is_public(module, found.name):
                    yield name
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        if owner in modules and not _is_public(modules[owner], node.attr):
            yield f"{modules[owner]}.{node.attr}"
        if node.attr.startswith("_") and not node.attr.endswith("__") and owner not in ("self", "cls", "os"):
            yield f"{owner}.{node.attr}"


def _is_public(module: str, name: str) -> bool:
    return module in PUBLIC and name in importlib.import_module(module).__all__


@pytest.mark.parametrize("file", sorted(path.name for path in DEMO.glob("*.py")))
def test_the_demo_uses_public_names_only(file: str) -> None:
    assert list(foreign((DEMO / file).read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        "from apressure.pressure.queue import AsyncQueue",
        "from apressure import Secret",
        "from apressure import logs",
        "import apressure.logs",
        "from apressure.spark.pipeline import feed",
        "from apressure import spark; spark.task_slots",
        "from apressure import spark as pressure; pressure.running",
        "queue._engine",
    ],
)
def test_other_names_are_found(line: str) -> None:
    assert len(list(foreign(line))) == 1
