"""Pages are short, say what they do not cover, and have one place in the navigation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documentation.blocks import DOCS, PAGES, name

LOOKED_UP = ("reference/api/", "reference/errors/", "internals/compatibility/", "README.md")
"""Pages that are made from docstrings, or have another form, which other tests check."""
READ = [page for page in PAGES if not name(page).startswith(LOOKED_UP)]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_is_short(page: Path) -> None:
    lines = len(page.read_text().splitlines())
    assert lines <= 250, f"{lines} lines: split it, or cut what it says twice"


@pytest.mark.parametrize("page", READ, ids=name)
def test_a_page_says_at_its_end_what_it_does_not_cover(page: Path) -> None:
    last = page.read_text().rstrip("\n").rpartition("\n\n")[2]
    assert last.startswith("Not here: ")
    assert last.endswith(".")


def test_each_page_is_in_the_navigation_once() -> None:
    listed = re.findall(r"^ *- ([\w/.-]+\.md)$", (DOCS / "site" / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted([*map(name, PAGES), "changelog.md"])
