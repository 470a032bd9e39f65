"""The reference has every public name, at the place where it is public."""

from __future__ import annotations

import importlib
import re

import apressure
from tests.documentation.blocks import DOCS

MODULES = {
    "apressure", "apressure.codecs", "apressure.connection", "apressure.core", "apressure.dead_letters",
    "apressure.events", "apressure.exceptions", "apressure.files", "apressure.pressure", "apressure.service",
    "apressure.tasks",
}  # fmt: skip
PAGES = [path.read_text() for path in sorted((DOCS / "reference" / "api").glob("*.md"))]
SHOWN = {name for page in PAGES for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)}


def test_every_public_name_is_in_the_reference() -> None:
    public = {name for module in MODULES for name in importlib.import_module(module).__all__}
    shown = {f"{module}.{name}" for module in MODULES for name in public} & SHOWN
    missing = public - {name.rpartition(".")[2] for name in shown} - set(apressure.exceptions.__all__)
    assert missing == {"recovery"}  # it and the exceptions are modules, shown as a whole
    assert {"apressure.pressure.doctor.recovery", "apressure.exceptions"} <= SHOWN


def test_the_reference_shows_no_name_at_a_place_that_it_has_left() -> None:
    shown = {name.removeprefix("apressure.") for name in SHOWN if re.fullmatch(r"apressure\.[A-Z]\w+", name)}
    assert shown <= set(apressure.__all__)


def test_the_list_of_pages_names_the_top_level() -> None:
    listed = (DOCS / "reference" / "api" / "README.md").read_text()
    rows = re.findall(r"^\| \[[^|]+\| ([^|]*) \|", listed, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(apressure.__all__)


def test_the_pages_import_names_from_where_they_are_public() -> None:
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md")]
    imported = re.compile(r"^(?: *|> *)from (apressure(?:\.\w+)?) import (\w+(?:, \w+)*)", re.MULTILINE)
    found = [
        (page.name, module, name)
        for page in pages
        for module, names in imported.findall(page.read_text())
        for name in names.split(", ")
        if module in MODULES
    ]
    assert len(found) > 100
    classes = [one for one in found if one[2][0].isupper()]
    assert [one for one in classes if one[2] not in importlib.import_module(one[1]).__all__] == []
