"""The code blocks of the pages.

The title of a block, which the site shows above it, says what the tests do with it:

* no title: Python is executed, and shell commands are run, in the order of the page;
* a file name (`title="shop.py"`): the block is written to that file, for the commands that follow;
* `title="not run: REASON"`: nothing. Pages outside `ELSEWHERE` have no other way to leave a block out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
PAGES: Final = sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "site")
NOT_RUN: Final = "not run: "

_FENCE: Final = re.compile(
    r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]*)\")?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_CHECK: Final = re.compile(
    r"(\w+=\S+ )*(\.venv/bin/)?(pip|nox|git|python3? -m (venv|pytest|tests\.)|apressure pipeline|redis-cli ACL)"
)


@dataclass(frozen=True)
class Block:
    """One code block of a page."""

    line: int
    language: str
    title: str
    code: str

    @property
    def runs(self) -> bool:
        """Whether the block is code that the page does not leave out."""
        return self.language in ("python", "py", "sh", "console") and not self.title.startswith(NOT_RUN)

    @property
    def commands(self) -> list[str]:
        """The commands of a shell block, without comments and continued lines joined."""
        lines = self.code.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [command for line in lines if (command := re.sub(r"(^|\s)#.*", "", line).strip())]

    @property
    def is_checked(self) -> bool:
        """Whether the block installs something, or calls a check of the project: that is looked at, and not run."""
        return self.language in ("sh", "console") and all(_CHECK.match(command) for command in self.commands)


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(text[: found.start()].count("\n") + 1, found["language"], found["title"] or "", found["code"])
        for found in _FENCE.finditer(text)
    ]


def name(page: Path) -> str:
    """Return the name of a page: its path in `docs/`."""
    return page.relative_to(DOCS).as_posix()


def stand_in(page: Path) -> str:
    """Return the module with what the code of a page takes for granted; it need not exist."""
    return f"tests.documentation.stand_ins.{name(page).removesuffix('.md').replace('/', '_').replace('-', '_')}"
