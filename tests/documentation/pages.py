"""Makes docs/llms.txt, the list of all pages for programs: `python -m tests.documentation.pages`."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

from tests.documentation.blocks import DOCS, PAGES, ROOT, name

HEAD = """# apressure

> Queues between processes that behave like a bounded asyncio.Queue, over Redis, Valkey or a directory.
> Python 3.11 or later, asyncio, POSIX. Wire formats: pressure 0.15, okq, Blueque and vsqs.

Every page is plain Markdown beside this file. Code in the pages is run by tests.
"""
SECTIONS = {
    "": "apressure",
    "learn": "Learn",
    "do": "Do",
    "do/migrate": "Do: move to apressure",
    "rely": "Rely on it",
    "reference": "Reference",
    "reference/api": "Reference: API",
    "reference/errors": "Reference: errors",
    "internals": "Internals",
    "internals/benchmarks": "Internals: benchmarks",
    "internals/compatibility": "Internals: compatibility",
}


def listing() -> str:
    """Return what docs/llms.txt should be: a line for each page, with its title and its first sentence."""
    lines = [HEAD]
    pages = [*PAGES, ROOT / "CHANGELOG.md"]
    for folder, group in groupby(sorted(pages, key=_place), key=_folder):
        lines.append(f"\n## {SECTIONS[folder]}\n")
        lines += [_line(page) for page in group]
    return "\n".join(lines) + "\n"


def _folder(page: Path) -> str:
    return page.parent.relative_to(DOCS).as_posix().removeprefix(".") if page.is_relative_to(DOCS) else ""


def _place(page: Path) -> tuple[int, str]:
    return list(SECTIONS).index(_folder(page)), name(page) if page.is_relative_to(DOCS) else page.name


def _line(page: Path) -> str:
    text = page.read_text()
    (title,) = re.findall(r"\A# (.*)", text)
    body = re.sub(r"^(```.*?^```|#.*?|\|.*?|:::.*?|<!--.*?)$", "", text, flags=re.MULTILINE | re.DOTALL)
    first = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(body.split())).replace("**", "")
    sentence = re.match(r".*?[.:](?= |$)", first)
    target = Path("..") / page.relative_to(ROOT) if not page.is_relative_to(DOCS) else page.relative_to(DOCS)
    return f"- [{title}]({target.as_posix()}): {sentence[0].rstrip('.:') if sentence else first}."


if __name__ == "__main__":
    (DOCS / "llms.txt").write_text(listing())
