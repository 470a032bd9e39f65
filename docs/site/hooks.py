"""Makes one site of the pages: what a page links to outside `docs/` becomes a part of the site.

The pages are plain Markdown, with relative links that work in a clone and on a hosting site. A link to a test or an
example leads to a copy of the file as text; the changelog becomes a page.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {"CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside `docs/` that a page links to."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    outside = {
        path
        for file in files.documentation_pages()
        for target in LINK.findall(file.content_string)
        if (path := _outside(file.src_uri, target)) and path not in PAGES
    }
    worker = (DOCS / "site" / "iframe-worker.js").read_text()
    files.append(File.generated(config, "assets/iframe-worker.js", content=worker))
    for path in sorted(outside):
        files.append(File.generated(config, f"source/{path}.txt", content=_text(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links to files outside `docs/` lead to their copies."""
    del config, files

    def inside(match: re.Match[str]) -> str:
        path = _outside(page.file.src_uri, match[0])
        if path is None:
            return match[0]
        return "../" * page.file.src_uri.count("/") + PAGES.get(path, f"source/{path}.txt")

    return LINK.sub(inside, markdown)


def on_post_build(config: Any) -> None:
    """Put the Markdown beside the pages, for readers of llms.txt."""
    site = Path(config.site_dir)
    for page in DOCS.rglob("*.md"):
        shutil.copyfile(page, site / page.relative_to(DOCS))
    listing = (DOCS / "llms.txt").read_text()
    for name, page in PAGES.items():
        shutil.copyfile(ROOT / name, site / page)
        listing = listing.replace(f"(../{name})", f"({page})")
    (site / "llms.txt").write_text(listing)


def _outside(page: str, target: str) -> str | None:
    """Return the path of a link's target from the root of the project, or None if it is in `docs/` or missing."""
    path = (DOCS / PurePosixPath(page).parent / target).resolve()
    if path.is_relative_to(DOCS) or not path.is_relative_to(ROOT) or not path.exists():
        return None
    return path.relative_to(ROOT).as_posix()


def _text(path: Path) -> str:
    """Return the text of a file, or the names in a folder."""
    return "\n".join(sorted(each.name for each in path.iterdir())) if path.is_dir() else path.read_text()
