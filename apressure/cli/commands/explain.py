"""`apressure explain`: what an error means, without a network."""

from __future__ import annotations

import posixpath
import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from apressure.cli.options import Common
from apressure.cli.show import print_json

_SIBLING: Final = re.compile(r"\[([^]]+)\]\([\w-]+\.md\)")
_LINK: Final = re.compile(r"\[([^]]+)\]\((\.\./[\w/.-]+)[^)]*\)")
_PLACE: Final = "docs/reference/errors"


def explain(
    common: Common,
    error: Annotated[
        str | None, typer.Argument(metavar="[ERROR]", help="The name of an error, such as QueueFullError.")
    ] = None,
) -> None:
    """Say what an error means: what happened, why, what to do, and what was lost. Without a name, list the errors."""
    texts = explanations()
    if error is None:
        print_json(sorted(texts)) if common.json else sys.stdout.write("\n".join(texts) + "\n")
        return
    name = error.rpartition(".")[2].rstrip(":")  # as it stands in a traceback
    found = next((each for each in texts if each.lower() == name.lower()), None)
    if found is None:
        raise typer.BadParameter(f"there is no error {name!r}. `apressure explain` lists the errors.")
    if common.json:
        print_json({"error": found, "text": texts[found]})
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(texts[found]))
    else:
        sys.stdout.write(texts[found])


def explanations() -> dict[str, str]:
    """Return the page of each error. A link to another page of the docs becomes that page's name."""
    folder = Path(str(files("apressure.cli"))) / "errors"  # the wheel has a copy of the pages
    if not folder.is_dir():  # an editable installation
        folder = Path(__file__).parents[3] / _PLACE
    pages = {page.stem: page.read_text(encoding="utf-8") for page in sorted(folder.glob("*Error.md"))}
    return {name: _LINK.sub(_named, _SIBLING.sub(r"\1", text)) for name, text in pages.items()}


def _named(link: re.Match[str]) -> str:
    return f"{link[1]} ({posixpath.normpath(posixpath.join(_PLACE, link[2]))})"
