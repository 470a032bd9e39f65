"""`apressure explain`: what an error means, without a network."""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from apressure.cli.options import Common
from apressure.cli.show import print_json

_SECTION: Final = re.compile(r"^## (\w+)\n\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\[([^]]+)\]\(([\w/.-]+)[^)]*\)")


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

        Console().print(Markdown(f"## {found}\n\n{texts[found]}"))
    else:
        sys.stdout.write(f"{found}\n\n{texts[found].replace('**', '')}")


def explanations() -> dict[str, str]:
    """Return the text of each error. A link to a page of the docs becomes the page's name."""
    page = files("apressure.cli").joinpath("errors.md")  # the wheel has a copy of docs/errors.md
    if not page.is_file():  # an editable installation
        page = Path(__file__).parents[3] / "docs" / "errors.md"
    sections = _SECTION.findall(page.read_text(encoding="utf-8"))
    return {name: _LINK.sub(r"\1 (docs/\2)", text.strip()) + "\n" for name, text in sections}
